"""The log of a trainer's metrics: whose it is, what its settings say, and what it leaves open.

The plainest is ``metrics.jsonl`` of tinker-cookbook and prime-rl: JSON lines of numbers, each with
its step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.constraints.schedule import Schedule as Arithmetic
from trustclip.logs import names
from trustclip.logs.log import Log, Schedule, Source, gather, numbers
from trustclip.support.inside import Inside
from trustclip.support.jsonl import Row, numbered, parse_line
from trustclip.support.reading import opened

#: Settings that say how many updates a generation of TRL gets.
_SCHEDULE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
#: Bytes in which a name of one of these trainers must stand: prime-rl's first rows have none.
_SEARCHED = 1 << 16


def log_of(
    path: Path,
    kind: str,
    measured: Iterable[tuple[int, Mapping[str, Any]]],
    config: Mapping[str, Any] | None = None,
    remarks: Sequence[str] = (),
    trainer: str | None = None,
    schedule: Callable[[Sequence[Row]], Schedule | None] | None = None,
) -> Log:
    """A log of metrics by update, see `gather`, with the settings that its trainer had.

    The trainer and its updates per generation, by the rows, are given where the kind of the log
    tells them; else the names of the metrics and the settings do. Remarks may grow while measured.
    """
    rows, more, told = gather(path, measured)
    whose = trainer or told
    settings = settings_of(whose, config or {})
    updates = schedule(rows) if schedule else _SCHEDULES.get(whose or "", lambda _: None)(settings)
    unknown = []
    if whose is not None:
        known: set[str] = set().union(*rows)
        # The first update of a generation moves by nothing before it.
        if updates is not None and updates.updates <= 1:
            known.add("one update a generation")
        questions = names.TABLE[whose].get("open", names.TABLE["others"]["open"])
        unknown += [
            question["what"].format(trainer=whose)
            for question in questions
            if not known & {*question.get("unless", ())}
        ]
    if not settings:
        such = f" such as {names.TABLE[trainer]['such_as']}" if trainer else ": the log has none"
        unknown.append(f"settings{such}")
    return Log(
        path, whose or "unknown trainer", kind, rows, settings, updates, unknown=unknown,
        remarks=[*remarks, *more], two_policies="two_policies" in names.TABLE.get(whose or "", {}),
    )  # fmt: skip


def settings_of(trainer: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a sentence may need, from a trainer's configuration."""
    part = names.TABLE.get(trainer or "", {})
    if trainer != "verl":
        wanted = (*part.get("settings", ()), *part.get("of_gate", ()))
        return {name: config[name] for name in wanted if name in config}
    settings = {}
    for name, path in part["settings"].items():
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            settings[name] = value
    return settings


def of_trl(settings: Mapping[str, Any]) -> Schedule | None:
    """Updates per generation, from the fields of a `GRPOConfig`.

    Example:
      >>> of_trl({"steps_per_generation": 4, "num_iterations": 2,
      ...         "gradient_accumulation_steps": 4}).updates
      2.0
    """
    values = [settings.get(name) for name in _SCHEDULE]
    if not all(isinstance(value, int) and value > 0 for value in values):
        return None
    iterations, steps, accumulation = values
    arithmetic = Arithmetic(steps, iterations, accumulation)  # type: ignore[arg-type]
    updates = 1.0 if arithmetic.inert else arithmetic.updates_per_generation
    basis = (
        "steps_per_generation x num_iterations / gradient_accumulation_steps = "
        f"{steps} x {iterations} / {accumulation}"
    )
    return Schedule(updates, basis)


def of_verl(settings: Mapping[str, Any]) -> Schedule | None:
    """Updates per generation; None where verl measures ratios against the sampler, too.

    In bypass mode the sampler's log-probabilities replace the old ones, so not even the first
    update is at ratio 1.

    Example:
      >>> of_verl({"train_batch_size": 8, "ppo_mini_batch_size": 4, "ppo_epochs": 2}).updates
      4.0
    """
    sizes = ("train_batch_size", "ppo_mini_batch_size", "ppo_epochs")
    batch, mini, epochs = (settings.get(name) for name in sizes)
    complete = all(isinstance(value, int) and value > 0 for value in (batch, mini, epochs))
    if not complete or settings.get("bypass_mode"):
        return None
    basis = f"train_batch_size / ppo_mini_batch_size x ppo_epochs = {batch} / {mini} x {epochs}"
    return Schedule(batch / mini * epochs, basis)  # type: ignore[operator]


#: What the settings of a trainer say of its schedule.
_SCHEDULES = {"TRL": of_trl, "verl": of_verl}


def _accepts(path: Path, head: bytes) -> bool:
    whole = head[: head.rfind(b"\n") + 1].splitlines()
    rows = [row for line in whole if (row := parse_line(line)) is not None]
    known = names.trainer_of([name for row in rows for name in row]) in names.VALUES
    return path.suffix == ".jsonl" and known and isinstance(rows[0].get("step"), int)


def _candidates(folder: Path) -> list[Path]:
    path = Inside(folder).file("metrics.jsonl")
    if not path.is_file():
        return []
    with opened(path) as file:
        return [path] if _accepts(path, file.read(_SEARCHED)) else []


def _read(path: Path) -> Log:
    """Read a file of metrics; a row without a step, of running totals, is left out.

    Raises:
      ValueError: it is damaged, holds two runs, or no metric of reinforcement learning.
    """
    remarks: list[str] = []
    rows = (row for _, row in numbered(path, remarks) if isinstance(row.get("step"), int))
    measured = ((row["step"], numbers(row)) for row in rows)
    return log_of(path, path.name, measured, remarks=remarks)


SOURCE = Source(
    "metrics.jsonl, JSON lines with step and metrics (tinker-cookbook, prime-rl)",
    _accepts,
    _candidates,
    _read,
)
