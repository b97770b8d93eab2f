"""On which GPUs this head was measured to be faster than TRL's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

#: By compute capability: for a ``"frozen"`` and a ``"trained"`` head the seconds of this head over
#: those of TRL's, forward and backward with entropies, in one run; ``"device"`` and ``"date"``.
FILE = Path(__file__).with_name("measured.json")


def table() -> dict[str, dict[str, Any]]:
    """What `FILE` holds."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def takes(entry: Mapping[str, Any], kind: str) -> bool:
    """Whether an entry of the table says to take this head, ``"frozen"`` or ``"trained"``.

    Example:
      >>> takes({"frozen": 0.5}, "frozen"), takes({"frozen": 0.5, "refused": "wrong"}, "frozen")
      (True, False)
    """
    return "refused" not in entry and entry.get(kind, float("inf")) < 1


def serves(device: torch.device, trained: bool) -> bool:
    """Whether ``head="auto"`` takes this head on a device: a CPU, or a GPU it is faster on."""
    if device.type == "cpu":
        return True
    # AMD's GPUs are "cuda" too, with capabilities of their own that mean other architectures.
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return takes(table().get(capability, {}), "trained" if trained else "frozen")
