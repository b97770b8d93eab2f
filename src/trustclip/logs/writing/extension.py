"""More updates for a run that has begun: which settings say so, and what that leaves exact."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trustclip.logs.identity import BEFORE, NEUTRAL

#: Where the number of updates stands in the settings of each command.
LENGTH: Mapping[str, str] = {"sft": "max_steps", "rl": "max_steps", "run": "rl.max_steps"}


@dataclass(frozen=True)
class Extension:
    """A run that gets more updates: a line of `trustclip.train.runs.directory.EXTENSIONS`."""

    before: int  # updates that it was to have
    now: int  # updates that it will have
    exact: bool  # whether it ends as a run that was to have ``now`` from the start
    text: str  # both, for people


def extension(
    command: str, stored: Mapping[str, Any], current: Mapping[str, Any]
) -> Extension | None:
    """What settings change of a run's length; None where it stays, or may not change so.

    Example:
      >>> settings = {"max_steps": 200, "lr_scheduler_type": "constant", "warmup_steps": 0}
      >>> extension("rl", settings, settings | {"max_steps": 400}).exact
      True
    """
    key = LENGTH.get(command, "")
    before, now = stored.get(key), current.get(key)
    if not isinstance(before, int) or not isinstance(now, int) or not 0 < before < now:
        return None
    place = key.removesuffix("max_steps")
    schedule = current.get(f"{place}lr_scheduler_type")
    warmup = current.get(f"{place}warmup_steps", 0)
    head = f"{now} updates in place of {before}: "
    warmed = schedule == "constant_with_warmup" and (warmup == 0 or warmup >= 1)
    if schedule == "constant" or warmed:
        text = f"{head}the schedule is {schedule}, so the run ends as one of {now} from the start."
        return Extension(before, now, True, text)
    text = (
        f"{head}the learning rate follows the {schedule} schedule of {now} updates from here on, "
        f"and followed that of {before} until now, so the run does not end as one of {now} from "
        "the start; lr_scheduler_type constant would."
    )
    return Extension(before, now, False, text)


def unchangeable(path: Any, command: str, key: str, values: tuple[Any, Any], elsewhere: str) -> str:
    """The sentence about a setting that another run in the folder has differently."""
    stored, current = values
    free = ", ".join(name for name in NEUTRAL if name != "output_dir")
    name = key.rpartition(".")[2]
    if stored is None and BEFORE.get(name) is not None:
        return (
            f"{path} holds a run of a release that had no setting {key}, and did what "
            f"{BEFORE[name]!r} does now, not {current!r}: continue it with --{key} {BEFORE[name]}, "
            f"or choose another {elsewhere}."
        )
    if key == LENGTH.get(command):
        more = f"a run that has begun may get more updates, not fewer ({stored!r} so far)"
    else:
        longer = f"{LENGTH[command]} upwards, and " if command in LENGTH else ""
        more = f"of a run that has begun you may change {longer}{free}"
    return (
        f"{path} holds a run with {key}={stored!r}, not {current!r}; continue it with the same "
        f"settings or choose another {elsewhere}: {more}."
    )
