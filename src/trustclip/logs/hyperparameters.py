"""The log of a tracker, which holds runs of any trainer: whose it is, and what its settings say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.logs import names, trl, verl
from trustclip.logs.log import Log, Schedule
from trustclip.support.jsonl import Row


def log_of(
    path: Path,
    kind: str,
    rows: Sequence[Row],
    config: Mapping[str, Any],
    remarks: Sequence[str],
    logged: Sequence[str],
) -> Log:
    """A log whose metrics and settings a tracker has recorded."""
    trainer = names.trainer_of(logged)
    settings: Mapping[str, Any] = {}
    schedule: Schedule | None = None
    unknown: list[str] = []
    if trainer == "TRL":
        settings = {name: config[name] for name in trl.SETTINGS if name in config}
        schedule = trl.schedule_of(settings)
        unknown = trl.left_open(rows, schedule)
    elif trainer is not None:
        settings = verl.settings_of(config) if trainer == "verl" else {}
        schedule = verl.schedule_of(settings)
        unknown = names.left_open(trainer, set().union(*rows))
    if not settings:
        unknown = [*unknown, "settings: the log has none"]
    return Log(
        path, trainer or "unknown trainer", kind, rows, settings, schedule,
        unknown=unknown, remarks=remarks, two_policies=trainer in names.TWO_POLICIES,
    )  # fmt: skip
