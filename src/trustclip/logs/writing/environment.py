"""Versions and machine of a run."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import trustclip

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "math-verify")
#: Instructions by which libraries choose how they compute, and so round.
WIDE = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of what results depend on, ``"not installed"`` of a package that is missing."""
    by_package = {"trustclip": trustclip.__version__, "python": platform.python_version()}
    for name in packages:
        try:
            by_package[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            by_package[name] = "not installed"
    return by_package


def environment() -> dict[str, Any]:
    """Versions and machine, for a run's record and for `trustclip doctor`."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "git": _git(),
    }


def processor() -> str:
    """Kind of the processor: rounding may differ between kinds, and so may sampled tokens.

    Name, family and model, and the instructions of which the widest present are used, as Linux
    tells them; elsewhere the name that Python knows.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    wide = [name for name in WIDE if name in facts.get("flags", "").split()]
    numbers = [f"family {facts.get('cpu family')}", f"model {facts.get('model')}", *wide]
    return f"{facts['model name']} ({', '.join(numbers)})"


def _git() -> dict[str, Any] | None:
    """Commit of the working directory's repository, and whether it has changes; None without."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "changed": bool(git("status", "-s"))}
    except (OSError, subprocess.SubprocessError):
        return None
