"""More updates for a run that has begun: which settings say so, and what that leaves exact."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustclip.logs.identity import Marks


@dataclass(frozen=True)
class Extension:
    """A run that gets more updates: a line of `trustclip.logs.writing.run.EXTENSIONS`."""

    before: int  # updates that it was to have
    now: int  # updates that it will have
    exact: bool  # whether it ends as a run that was to have ``now`` from the start
    text: str  # both, for people


def extension(key: str, stored: Mapping[str, Any], current: Mapping[str, Any]) -> Extension | None:
    """What settings change of a run's length, at ``key``; None where it stays, or may not change.

    Example:
      >>> settings = {"max_steps": 200, "lr_scheduler_type": "constant", "warmup_steps": 0}
      >>> extension("max_steps", settings, settings | {"max_steps": 400}).exact
      True
    """
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


def unchangeable(
    path: Path, marks: Marks, key: str, stored: Mapping[str, Any], current: Any, elsewhere: str
) -> str:
    """The sentence about a setting that the run in a folder, of ``stored`` values, has differently.

    ``current`` is its value now, and ``marks`` are those of the settings of now.
    """
    held, same = f"with {key}={stored.get(key)!r}, not {current!r}", "the same settings"
    if key not in stored:
        held = f"without {key}, which is {current!r} now"
        same = "the settings and the release of trustclip that began it"
    if key == marks.extends:
        more = f"A run that has begun may get more updates, not fewer ({stored.get(key)!r} so far)"
    else:
        free = dict.fromkeys(name.rpartition(".")[2] for name in marks.neutral)
        names = ", ".join(name for name in free if name != "output_dir")
        longer = f"{marks.extends} upwards, and " if marks.extends else ""
        more = f"Of a run that has begun you may change {longer}{names}"
    return (
        f"{path} holds a run {held}. Continue it with {same}, or choose another {elsewhere}. "
        f"{more}."
    )
