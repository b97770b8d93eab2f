"""A model as a folder of files."""

from pathlib import Path

from trustclip.train.tiny import tiny_model


def tiny_folder(folder: Path, seed: int = 0) -> Path:
    """A fresh tiny model there, loadable by ``AutoModelForCausalLM`` and ``AutoTokenizer``."""
    for part in tiny_model(seed):
        part.save_pretrained(folder)
    return folder
