"""Tiny models under the names that TRL's tests load, in a Hub cache of this machine.

    python -m peers.models FOLDER

The folder becomes ``HF_HOME``; with ``HF_HUB_OFFLINE=1`` every `from_pretrained` finds its model
there, so that nothing in a test has to be patched. Models with images (`peers.vision`) are made
where torchvision is installed.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from peers.vision import MARKS, VISION, config_and_processor

OWNER = "trl-internal-testing"
COMMIT = "0" * 40

#: Sizes that all configurations share.
SMALL = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip

#: Embeddings of every model, more than its tokenizer has: few random completions draw the end.
VOCABULARY = 8192

#: Names of TRL's tiny causal models: class, chat template of TRL, and further configuration.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tiny-Qwen2ForCausalLM-2.5": ("Qwen2", "qwen2_5", {}),
    "tiny-Qwen3ForCausalLM": ("Qwen3", "qwen3", {"head_dim": 8}),
    "tiny-LlamaForCausalLM-3.2": ("Llama", "llama3_2", {}),
    "tiny-MistralForCausalLM-0.2": ("Mistral", "qwen2_5", {}),
    "tiny-Gemma2ForCausalLM": ("Gemma2", "gemma", {"head_dim": 8}),
    "tiny-Cohere2ForCausalLM": ("Cohere2", "cohere2", {}),
    "tiny-GptOssForCausalLM": (
        "GptOss",
        "gptoss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "tiny-Qwen3MoeForCausalLM": (
        "Qwen3Moe",
        "qwen3",
        {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "tiny-Glm4MoeForCausalLM": (
        "Glm4Moe",
        "glm4moe",
        {
            "head_dim": 4, "moe_intermediate_size": 32, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "attention_bias": True, "use_qk_norm": True,
            "routed_scaling_factor": 2.5,
        },
    ),
    "tiny-NemotronHForCausalLM-nano": (
        "NemotronH",
        "nemotron_3_nano",
        {
            "layers_block_type": ["mamba", "attention", "moe"], "mamba_num_heads": 8,
            "mamba_head_dim": 4, "mamba_n_groups": 1, "ssm_state_size": 16, "mamba_d_conv": 4,
            "mamba_expand": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
            "use_mamba_kernels": False,
        },
    ),
}  # fmt: skip
#: Reward models, by name: class and chat template.
REWARDS = {
    "tiny-Qwen2ForSequenceClassification-2.5": ("Qwen2", "qwen2_5"),
    "tiny-Qwen3ForSequenceClassification": ("Qwen3", "qwen3"),
    "tiny-LlamaForSequenceClassification-3.2": ("Llama", "llama3_2"),
}
#: A model of two Python files beside its weights, which load with ``trust_remote_code`` only.
REMOTE = "tiny-RemoteForCausalLM"
REMOTE_FILES = {
    "configuration_remote.py": """\
from transformers import LlamaConfig


class RemoteConfig(LlamaConfig):
    model_type = "remote"
""",
    "modeling_remote.py": """\
from transformers import LlamaForCausalLM

from .configuration_remote import RemoteConfig


class RemoteForCausalLM(LlamaForCausalLM):
    config_class = RemoteConfig
""",
}

#: What the token ids of Qwen's vocabularies in TRL's tests say; `peers.plugin` translates them.
REAL_TOKENS = {
    151643: "<|endoftext|>", 151645: "<|im_end|>", 151657: "<tool_call>", 151658: "</tool_call>",
    0: "!", 11: ",", 16: "1", 17: "2", 18: "3", 19: "4", 25: ":", 27: "<", 29: ">", 40: "I",
    64: "a", 65: "b", 66: "c", 198: "\n", 220: " ", 293: " b", 314: " {", 330: ' "', 397: ">\n",
    411: "out", 450: "dec", 497: '",', 522: "</", 606: "name", 788: '":', 894: " any", 927: "sh",
    944: "'t", 1318: "text", 1414: " know", 1513: " don", 2765: " won", 4913: '{"', 5212: ' {"',
    5392: " tool", 6023: "hi", 6659: "call", 7692: "async", 9520: "step", 11248: "}}\n",
    13477: "rement", 14172: "tool", 16252: " increment", 16370: "arguments", 17453: "Done",
    22785: "_tool", 35744: "increment", 64648: "multiply", 93054: "_multiply", 95642: '"}}\n',
    248044: "<|endoftext|>", 248046: "<|im_end|>", 248058: "<tool_call>", 248059: "</tool_call>",
    510: "</", 866: " any", 914: "'t", 1366: " know", 1459: " don", 1628: "function",
    5224: " tool", 13744: "=screen", 16936: "Done", 22076: "_tool", 30091: "shot",
}  # fmt: skip


def made() -> set[str]:
    """The names of the models that this environment can make."""
    with_images = VISION if importlib.util.find_spec("torchvision") else {}
    return {*MODELS, *REWARDS, *with_images, REMOTE}


def make(home: Path) -> None:
    """Write every model that is not there yet below ``home``."""
    import transformers

    for name, (family, template, more) in MODELS.items():
        cls = getattr(transformers, f"{family}ForCausalLM")
        _write(home, name, cls, tokenizer_with(template), more)
    for name, (family, template) in REWARDS.items():
        cls = getattr(transformers, f"{family}ForSequenceClassification")
        _write(home, name, cls, tokenizer_with(template), {"num_labels": 1})
    for name in sorted(made() & set(VISION)):
        family, template = VISION[name]
        _write_vision(home, name, family, tokenizer_with(template, MARKS[family]))
    _write_remote(home)


def tokenizer_with(template: str, marks: dict[str, Any] | None = None) -> Any:
    """The byte-level tokenizer with a chat template of TRL's, and the tokens of its tests."""
    import trl

    from trustclip.train.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    words = sorted({text for text in REAL_TOKENS.values() if len(text) > 1} - {*special})
    tokenizer.add_tokens(words)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.bos_token = "<|im_start|>"
    if marks:  # behind the others, so that these have one id in every tokenizer
        tokenizer.add_tokens(list(marks.values()), special_tokens=True)
        tokenizer._set_model_specific_special_tokens(marks)
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / f"{template}.jinja").read_text()
    return tokenizer


def _write(home: Path, name: str, cls: Any, tokenizer: Any, more: dict[str, Any]) -> None:
    snapshot = _snapshot(home, name)
    if snapshot.exists():
        return
    torch.manual_seed(0)
    config = cls.config_class(**{**SMALL, **_shared(tokenizer), **more})
    cls(config).save_pretrained(snapshot)
    tokenizer.save_pretrained(snapshot)


def _write_vision(home: Path, name: str, family: str, tokenizer: Any) -> None:
    import transformers

    snapshot = _snapshot(home, name)
    if snapshot.exists():
        return
    torch.manual_seed(0)
    config, processor = config_and_processor(family, tokenizer, _shared(tokenizer))
    processor.chat_template = tokenizer.chat_template
    getattr(transformers, f"{family}ForConditionalGeneration")(config).save_pretrained(snapshot)
    processor.save_pretrained(snapshot)


def _write_remote(home: Path) -> None:
    import json

    snapshot = _snapshot(home, REMOTE)
    if snapshot.exists():
        return
    import transformers

    _write(home, REMOTE, transformers.LlamaForCausalLM, tokenizer_with("llama3_2"), {})
    for name, text in REMOTE_FILES.items():
        (snapshot / name).write_text(text)
    config = json.loads((snapshot / "config.json").read_text())
    config["model_type"], config["architectures"] = "remote", ["RemoteForCausalLM"]
    config["auto_map"] = {
        "AutoConfig": "configuration_remote.RemoteConfig",
        "AutoModelForCausalLM": "modeling_remote.RemoteForCausalLM",
    }
    (snapshot / "config.json").write_text(json.dumps(config))


def _shared(tokenizer: Any) -> dict[str, Any]:
    """The settings of every configuration that come from its tokenizer."""
    ends = [f"{end}_token_id" for end in ("pad", "eos", "bos")]
    return {"vocab_size": VOCABULARY, **{end: getattr(tokenizer, end) for end in ends}}


def _snapshot(home: Path, name: str) -> Path:
    """The folder of a model in the cache, with the reference that names it."""
    repository = home / "hub" / f"models--{OWNER}--{name}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


if __name__ == "__main__":
    make(Path(sys.argv[1]))
