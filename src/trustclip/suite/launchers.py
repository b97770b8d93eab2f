"""Where the runs of a suite work: on this machine, or where another scheduler puts them."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from trustclip.checked import checked
from trustclip.names import unknown
from trustclip.recipes.files import parse_scalar
from trustclip.suite.processes import RunProcess, environment, gpus


@checked
class Resources:
    """What one run asks a scheduler for.

    Example:
      >>> Resources(gpus=-1)
      Traceback (most recent call last):
      ...
      ValueError: `gpus` should be greater than or equal to 0, got -1
    """

    gpus: Annotated[int, Field(ge=0)] = 1
    """GPUs."""
    cpus: Annotated[int, Field(ge=1)] = 4
    """Processors."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Time limit of a Slurm job; 24 when unset. At its end the run saves and leaves."""
    partition: Annotated[str, Field(min_length=1)] | None = None
    """Partition of a Slurm cluster."""
    extra: dict[str, str | int | float] = field(default_factory=dict)
    """Options of sbatch (account: ...), or amounts of a Ray cluster's custom resources."""


class Running(Protocol):
    """A run that was started, wherever it works."""

    started: float

    @property
    def pid(self) -> int | str | None:
        """Its process or job; None where an earlier call started it."""
        ...

    def poll(self) -> int | None:
        """Exit status (negative: the signal that ended it), None until then."""
        ...

    def ask_to_end(self) -> None:
        """Have it save what it did, and leave."""
        ...

    def kill(self) -> None:
        """End it and all it started."""
        ...

    def last_lines(self) -> list[str]:
        """The end of what it wrote."""
        ...


class Launcher(Protocol):
    """Starts runs."""

    def start(self, folder: Path, command: Sequence[str], slot: int) -> Running:
        """Start ``command`` for a run directory, in one of the suite's places."""
        ...

    def close(self) -> None:
        """Let go of what starting runs has needed."""
        ...


class Local:
    """Processes of this machine, which share its processors and GPUs.

    Args:
      slots: runs at once.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._gpus = gpus() if slots > 1 else []

    def start(self, folder: Path, command: Sequence[str], slot: int) -> RunProcess:
        """A process with its share of the machine."""
        return RunProcess(folder, command, environment(slot, self._slots, self._gpus))

    def close(self) -> None:
        """There is nothing to let go of."""


#: Where else -> (module, its launcher, package that it needs).
ELSEWHERE = {
    "slurm": ("on_slurm", "Slurm", "submitit"),
    "ray": ("on_ray", "Ray", "ray"),
}


def elsewhere(on: str, resources: Resources) -> Launcher:
    """The launcher of another scheduler.

    Args:
      on: ``"slurm"`` or ``"ray"``.
      resources: that each run asks for.

    Raises:
      ValueError: the package is missing, there is no such cluster, or it cannot give that much.
    """
    module, name, package = ELSEWHERE[on]
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"--on {on} needs the package {package}: pip install 'trustclip[{on}]', here and "
            "where the runs work."
        )
    return getattr(importlib.import_module(f"trustclip.suite.{module}"), name)(resources)


def resources_of(on: str, given: Mapping[str, Any]) -> Resources | None:
    """Resources from the command line's options.

    Args:
      on: where the runs work.
      given: options by name, None where one was left out; ``extra`` as ``NAME=VALUE`` texts.

    Returns:
      What each run asks for; None on this machine, where nobody is asked.

    Raises:
      ValueError: unknown ``on``, a value out of range, or an option that means nothing there.
    """
    if on not in ("local", *ELSEWHERE):
        raise ValueError(unknown("place for --on", on, ("local", *ELSEWHERE)))
    said = {name: value for name, value in given.items() if value not in (None, ())}
    places = {"local": (), "ray": ("gpus", "cpus", "extra")}
    allowed = places.get(on, [f.name for f in fields(Resources)])  # type: ignore[arg-type]
    for name in said:
        if name not in allowed:
            others = [o for o in ("slurm", "ray") if o != on and name in places.get(o, (name,))]
            raise ValueError(
                f"--{name} means nothing to --on {on}: it is for {' and '.join(others)}."
            )
    if "extra" in said:
        said["extra"] = _pairs(said["extra"])
    return None if on == "local" else Resources(**said)


def _pairs(texts: Sequence[str]) -> dict[str, Any]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--extra needs NAME=VALUE, got {text!r}.")
        pairs[name] = parse_scalar(value)
    return pairs
