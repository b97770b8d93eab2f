"""Where the runs of a suite are executed: on this machine, or by a scheduler."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from trustclip.recipes.files import parse_scalar
from trustclip.suite.launchers.local import RunProcess, environment, gpus
from trustclip.support.checked import checked
from trustclip.support.names import unknown


@checked
class Resources:
    """Resources of one run under a scheduler.

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
    """Time limit of a Slurm job; 24 when unset. At the limit the run saves and stops."""
    partition: Annotated[str, Field(min_length=1)] | None = None
    """Partition of a Slurm cluster."""
    extra: dict[str, str | int | float] = field(default_factory=dict)
    """Options of sbatch (account: ...), or amounts of a Ray cluster's custom resources."""


class Running(Protocol):
    """A started run."""

    started: float

    @property
    def pid(self) -> int | str | None:
        """Its process or job; None where an earlier call started it."""
        ...

    def poll(self) -> int | None:
        """Exit status (negative: the signal that ended it); None while it runs."""
        ...

    def ask_to_end(self) -> None:
        """Ask it to save and stop."""
        ...

    def kill(self) -> None:
        """Kill it and its children."""
        ...

    def last_lines(self) -> list[str]:
        """Last lines of its output."""
        ...


class Launcher(Protocol):
    """Starts runs."""

    def start(self, folder: Path, command: Sequence[str], slot: int) -> Running:
        """Start ``command`` for a run directory in one of the slots."""
        ...

    def close(self) -> None:
        """Release the launcher's resources."""
        ...


class Local:
    """Processes on this machine, which share its processors and GPUs."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._gpus = gpus() if slots > 1 else []

    def start(self, folder: Path, command: Sequence[str], slot: int) -> RunProcess:
        return RunProcess(folder, command, environment(slot, self._slots, self._gpus))

    def close(self) -> None:
        """Nothing to release."""


#: Scheduler -> (module, launcher class, package that it needs).
ELSEWHERE = {"slurm": ("slurm", "Slurm", "submitit"), "ray": ("ray", "Ray", "ray")}


def elsewhere(on: str, resources: Resources) -> Launcher:
    """The launcher of another scheduler."""
    module, name, package = ELSEWHERE[on]
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"--on {on} needs the package {package}: pip install 'trustclip[{on}]', here and "
            "where the runs execute."
        )
    return getattr(importlib.import_module(f"trustclip.suite.launchers.{module}"), name)(resources)


def resources_of(on: str, options: Mapping[str, Any]) -> Resources | None:
    """The resources of each run that options ask for; None on this machine, without a scheduler.

    Options are given by name, None where omitted; ``extra`` as ``NAME=VALUE`` texts.
    """
    if on not in ("local", *ELSEWHERE):
        raise ValueError(unknown("place for --on", on, ("local", *ELSEWHERE)))
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    places = {"local": (), "ray": ("gpus", "cpus", "extra")}
    allowed = places.get(on, [f.name for f in fields(Resources)])  # type: ignore[arg-type]
    for name in chosen:
        if name not in allowed:
            others = [o for o in ("slurm", "ray") if o != on and name in places.get(o, (name,))]
            raise ValueError(
                f"--{name} does not apply to --on {on}, only to {' and '.join(others)}."
            )
    if "extra" in chosen:
        pairs = {text: text.partition("=") for text in chosen["extra"]}
        if wrong := [text for text, parts in pairs.items() if not all(parts)]:
            raise ValueError(f"--extra needs NAME=VALUE, got {wrong[0]!r}.")
        chosen["extra"] = {name: parse_scalar(value) for name, _, value in pairs.values()}
    return None if on == "local" else Resources(**chosen)
