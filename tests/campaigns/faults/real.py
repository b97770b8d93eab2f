"""A run of ``trustclip rl`` itself: a tiny language model, TRL's trainer, three updates."""

from io import StringIO
from pathlib import Path

import torch
from rich.console import Console

from trustclip.train.files import Source, build, preset
from trustclip.train.rl import rl
from trustclip.train.settings.stages import RLSettings
from trustclip.train.tiny import tiny_model

from .runs import Runs
from .setups import Setup


def runs(base: Path) -> Runs:
    """Real runs, of a model that is written into a folder first."""
    torch.manual_seed(0)
    for part in tiny_model():
        part.save_pretrained(base / "model")

    def work(folder: Path, _: Setup) -> bool:
        changes = {
            "model": str(base / "model"), "output_dir": folder, "max_steps": 3, "save_steps": 1,
            "save_total_limit": 3,  # all, as the undisturbed run has every one to compare with
            "steps_per_generation": 2, "max_completion_length": 8, "limit": 64,
            "per_device_train_batch_size": 16,
        }  # fmt: skip
        settings = build(RLSettings, preset("rl", "tiny"), Source(changes=changes))
        run = rl(settings, Console(file=StringIO()))
        return bool(run.summary.get("finished"))

    return Runs(work, base, foreign=True)
