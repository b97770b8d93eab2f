"""The machine: device, driver, clocks, versions."""

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import trustclip
from trustclip_lab.bench.table import machine

#: Packages whose versions decide a result, present or not.
PACKAGES = (
    *("torch", "triton", "transformers", "trl", "peft", "accelerate", "datasets"),
    *("liger-kernel", "cut-cross-entropy", "quack-kernels", "nvidia-cutlass-dsl"),
    *("stable-baselines3", "gymnasium", "numpy"),
)
_CARD = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "clocks.max.mem")
_NOW = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


def box(device: str) -> dict[str, Any]:
    """The machine as JSON values, those of a GPU only where there is one."""
    import torch

    facts: dict[str, Any] = {
        **machine(device),
        "device": machine(device).get("device", "none: no GPU was at hand"),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "commit": _commit(),
        "trustclip": trustclip.__version__,
        "packages": {name: _version(name) for name in PACKAGES},
    }
    if device != "cuda":
        return facts
    card = torch.cuda.get_device_properties(0)
    return facts | {
        "cuda": torch.version.cuda,
        "capability": f"sm_{card.major}{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "card": _query(_CARD),
    }


def identity(facts: dict[str, Any]) -> str:
    """Eight digits that are the same for sessions whose results belong together."""
    same = {k: v for k, v in facts.items() if k not in ("date", "commit", "threads")}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]


def clocks() -> str:
    """The device's clocks, temperature and power now, as text; empty without a GPU."""
    readings = _query(_NOW)
    return ", ".join(f"{name} {value}" for name, value in readings.items())


def _query(names: tuple[str, ...]) -> dict[str, str]:
    if shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", "--id=0"]
    try:
        process = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(names, map(str.strip, process.stdout.split(",")), strict=False))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
