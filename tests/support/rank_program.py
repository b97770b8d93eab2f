"""How a program that a test runs under a launcher begins, tells the test, and ends."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trustclip.train.durable.ranks import leave


def run(commands: Callable[[Path, list[str]], Mapping[str, Callable[[], Any]]]) -> None:
    """Run the command that ``COMMAND FOLDER [MORE]`` names; the first rank tells what it returns.

    Args:
      commands: from the folder and what follows it, every command by name.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, folder, rest = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    told = commands(folder, rest)[name]()
    if os.environ["RANK"] == "0":
        (folder / "told.json").write_text(json.dumps(told))
    leave()
