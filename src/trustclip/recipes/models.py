"""Loading and saving of models: a folder, a hub id, or the tiny one."""

from pathlib import Path
from typing import Any

from trustclip.names import nearest
from trustclip.recipes.settings import TINY
from trustclip.recipes.tiny import tiny_model
from trustclip.tasks.prompts import set_chat_template


def check_model(name: str) -> None:
    """Refuse a model that cannot be one, before anything heavy is imported.

    Args:
      name: folder, hub id ``owner/name``, or ``"tiny"``.

    Raises:
      ValueError: it looks like a folder and is none that holds a model.
    """
    path = Path(name)
    if name == TINY or (path / "config.json").is_file():
        return
    if path.is_dir():
        raise ValueError(f"the folder {name!r} holds no model: it has no config.json.")
    if path.is_absolute() or name.startswith(".") or name.count("/") != 1 or path.parent.is_dir():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, [*beside, TINY])
        found = near if near == TINY else str(path.parent / near) if near else ""
        hint = f" Did you mean {found!r}?" if found else ""
        raise ValueError(
            f"no model {name!r}: give a folder with a config.json, a hub id owner/name, or "
            f"{TINY!r}.{hint}"
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
      ValueError: no such model.
    """
    check_model(name)
    if name == TINY:
        return tiny_model(seed)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except OSError as error:
        raise ValueError(f"cannot load the model {name!r}: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    set_chat_template(tokenizer, prompt_style)
    return model, tokenizer


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model that any Hugging Face program loads: adapters merged, tokenizer beside it."""
    whole = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def lora_config(rank: int, alpha: int) -> Any:
    """Adapters on every linear layer, without dropout; None for rank 0.

    Dropout would make the ratio differ from 1 before any update: two passes, two masks.
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
