"""A suite of two short runs of the tiny model."""

from pathlib import Path
from typing import Any

import yaml

RECIPE: dict[str, Any] = {
    "name": "few",
    "model": "tiny",
    "output_dir": "runs/few",
    "rl": {
        "dataset": "arithmetic",
        "limit": 64,
        "max_steps": 2,
        "max_completion_length": 8,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "lora_r": 0,
    },
}
SUITE: dict[str, Any] = {
    "name": "few",
    "recipe": "few.yaml",
    "output_dir": "out",
    "seeds": [0],
    "methods": {"atr": {"name": "atr"}, "clip": {"name": "clip"}},
}


def written(folder: Path) -> Path:
    """The suite's file in a folder; its runs are in ``out`` beside it."""
    (folder / "few.yaml").write_text(yaml.safe_dump(RECIPE))
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    return folder / "suite.yaml"
