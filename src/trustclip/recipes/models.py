"""Loading and saving of models: a folder, a hub id, or the tiny one."""

from pathlib import Path
from typing import Any

from trustclip.constraints.names import nearest
from trustclip.durable.store import same_mode, writing_to
from trustclip.recipes.settings import TINY
from trustclip.recipes.tiny import tiny_model
from trustclip.tasks.prompts import set_chat_template

#: Files any of which holds a tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


def check_model(name: str) -> None:
    """Refuse a name or folder that is not a model, before anything heavy is imported.

    Args:
      name: folder, hub id ``owner/name``, or ``"tiny"``.

    Raises:
      ValueError: there is no such folder, or it lacks a part of a model: it is a LoRA adapter, or
        it has no tokenizer.
    """
    path = Path(name)
    if name == TINY:
        return
    if (path / "config.json").is_file():
        if not any((path / file).is_file() for file in TOKENIZER_FILES):
            raise ValueError(
                f"the folder {name!r} has a model but no tokenizer (none of "
                f"{', '.join(TOKENIZER_FILES)}): save the tokenizer that belongs to the model "
                f"there, with AutoTokenizer.from_pretrained(BASE).save_pretrained({name!r})."
            )
        return
    if (path / "adapter_config.json").is_file():
        raise ValueError(
            f"the folder {name!r} holds a LoRA adapter, not a whole model: merge it first, with "
            f"AutoPeftModelForCausalLM.from_pretrained({name!r}).merge_and_unload()"
            ".save_pretrained(FOLDER), and save its tokenizer to the same folder."
        )
    if path.is_dir():
        raise ValueError(f"the folder {name!r} does not hold a model: it has no config.json.")
    if path.is_absolute() or name.startswith(".") or name.count("/") != 1 or path.parent.is_dir():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, [*beside, TINY])
        found = near if near == TINY else str(path.parent / near) if near else ""
        hint = f" Did you mean {found!r}?" if found else ""
        raise ValueError(
            f"no model {name!r}: give a folder with a config.json, a hub id owner/name, or "
            f"{TINY!r}.{hint}"
        )


def check_tokenizer(tokenizer: Any, config: Any, name: str) -> None:
    """Refuse a tokenizer that does not belong to its model: prompts would be empty or nonsense.

    Args:
      tokenizer: of the model.
      config: the model's configuration.
      name: of the model, for the message.

    Raises:
      ValueError: it encodes text as no tokens, or has tokens that the model lacks.
    """
    size, rows = len(tokenizer), config.get_text_config().vocab_size
    if not tokenizer("What is 1 + 2?", add_special_tokens=False)["input_ids"]:
        raise ValueError(
            f"the tokenizer of {name!r} encodes text as no tokens: every prompt would be empty. "
            "Are its files complete?"
        )
    if size > rows:  # fewer are common: vocabularies are padded
        raise ValueError(
            f"the tokenizer of {name!r} has {size} tokens, the model's vocabulary {rows}: they do "
            "not match."
        )


def load_model(name: str, prompt_style: str, seed: int = 0) -> tuple[Any, Any]:
    """Model and tokenizer, ready to generate and to train.

    Weights come in bfloat16 on a GPU and in float32 on a CPU. A tokenizer without a chat template
    gets that of the prompt style.

    Args:
      name: folder, hub id, or ``"tiny"`` for a fresh, untrained tiny model.
      prompt_style: see `trustclip.tasks.prompts`.
      seed: of the tiny model's weights.

    Returns:
      A Hugging Face causal language model and its tokenizer.

    Raises:
      ValueError: no such model, its files are damaged, a weight is NaN or infinite, or its
        tokenizer does not belong to it.
    """
    check_model(name)
    if name == TINY:
        return tiny_model(seed)
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trustclip.durable.weights import nonfinite

    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot load the model {name!r}: {error}") from error
    if (weight := nonfinite(model)) is not None:
        raise ValueError(f"the model {name!r} cannot be used: {weight} is NaN or infinite.")
    check_tokenizer(tokenizer, model.config, name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    set_chat_template(tokenizer, prompt_style)
    return model, tokenizer


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model that any Hugging Face program loads: adapters merged, tokenizer beside it."""
    whole = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    with writing_to(folder):
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        same_mode(folder / "config.json", folder.glob("*.safetensors"))


def lora_config(rank: int, alpha: int) -> Any:
    """LoRA configuration for every linear layer, without dropout; None for rank 0.

    Dropout would make the ratio differ from 1 before any update: each pass draws its own mask.
    """
    if rank == 0:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
