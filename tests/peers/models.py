"""Tiny models under the names that TRL's tests load, in a Hub cache of this machine.

    python -m peers.models FOLDER

The folder becomes ``HF_HOME``; with ``HF_HUB_OFFLINE=1`` every `from_pretrained` finds its model
there, so that nothing in a test has to be patched.
"""

import sys
from pathlib import Path
from typing import Any

import torch

OWNER = "trl-internal-testing"

#: Sizes that all configurations share.
SMALL = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip

#: Embeddings of every model, more than its tokenizer has: few random completions draw the end.
VOCABULARY = 1024

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
}
#: Reward models, by name: class and chat template.
REWARDS = {
    "tiny-Qwen2ForSequenceClassification-2.5": ("Qwen2", "qwen2_5"),
    "tiny-Qwen3ForSequenceClassification": ("Qwen3", "qwen3"),
    "tiny-LlamaForSequenceClassification-3.2": ("Llama", "llama3_2"),
}


def make(home: Path) -> None:
    """Write every model that is not there yet below ``home``."""
    import transformers

    for name, (family, template, more) in MODELS.items():
        _write(home, name, getattr(transformers, f"{family}ForCausalLM"), template, more)
    for name, (family, template) in REWARDS.items():
        cls = getattr(transformers, f"{family}ForSequenceClassification")
        _write(home, name, cls, template, {"num_labels": 1})


def tokenizer_with(template: str) -> Any:
    """The byte-level tokenizer with a chat template of TRL's, the tokens of Qwen's among them."""
    import trl

    from trustclip.recipes.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.bos_token = "<|im_start|>"
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / f"{template}.jinja").read_text()
    return tokenizer


def _write(home: Path, name: str, cls: Any, template: str, more: dict[str, Any]) -> None:
    repository = home / "hub" / f"models--{OWNER}--{name}"
    snapshot = repository / "snapshots" / "0"
    if snapshot.exists():
        return
    tokenizer = tokenizer_with(template)
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("pad", "eos")}
    torch.manual_seed(0)
    cls(cls.config_class(vocab_size=VOCABULARY, **SMALL, **ends, **more)).save_pretrained(snapshot)
    tokenizer.save_pretrained(snapshot)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text("0")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
