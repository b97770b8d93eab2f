"""TRL's ``trainer_state.json``, as a stock `GRPOTrainer` leaves it in its checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.constraints.schedule import Schedule as Arithmetic
from trustclip.logs import names
from trustclip.logs.log import Log, Schedule, Source, gather, numbers
from trustclip.support.inside import Inside
from trustclip.support.jsonl import Row, read_mapping

NAME = "trainer_state.json"
#: Settings that results depend on and that a recipe has too; and with them those of TRL's gate.
OF_RECIPES = tuple(names.TABLE["TRL"]["settings"])
SETTINGS = (*OF_RECIPES, *names.TABLE["TRL"]["of_gate"])
#: Settings that say how many updates a generation gets.
_SCHEDULE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")


def _accepts(path: Path, head: bytes) -> bool:
    return path.name == NAME or (head.lstrip()[:1] == b"{" and b'"log_history"' in head)


def _candidates(folder: Path) -> list[Path]:
    """The state in a folder: its own, or that of its last checkpoint."""
    files = Inside(folder)
    if (own := files.file(NAME)).is_file():
        return [own]
    paths = [path for path in files.files(f"checkpoint-*/{NAME}") if _number(path) is not None]
    return sorted(paths, key=lambda path: _number(path) or 0)[-1:]


def _number(path: Path) -> int | None:
    digits = path.parent.name.removeprefix("checkpoint-")
    return int(digits) if digits.isdecimal() else None


def _read(path: Path) -> Log:
    """Read a ``trainer_state.json``.

    Raises:
      ValueError: it is damaged, of a trainer without a history, or of no reinforcement learning.
    """
    state = read_mapping(path)
    history = state.get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, Mapping) for row in history):
        raise ValueError(
            f"{path} has no `log_history`; expected the state of Transformers' Trainer."
        )
    if unnumbered := [row for row in history if not isinstance(row.get("step"), int)]:
        raise ValueError(f"{path}: {len(unnumbered)} entries of `log_history` have no `step`.")
    rows, remarks = gather(path, [(row["step"], numbers(row)) for row in history])
    step, planned = state.get("global_step"), state.get("max_steps")
    whole = isinstance(step, int) and isinstance(planned, int) and step >= planned > 0
    schedule = _schedule(rows, state.get("logging_steps"))
    return Log(
        path=path,
        trainer="TRL",
        kind=NAME,
        rows=rows,
        schedule=schedule,
        unknown=[*left_open(rows, schedule), "settings such as epsilon and num_iterations"],
        remarks=remarks,
        finished=whole,
    )


def _schedule(rows: Sequence[Row], logging_steps: Any) -> Schedule | None:
    """Updates per generation, from the rows that came with new rewards."""
    trained = [row for row in rows if "grad_norm" in row or "loss" in row]
    generated = [row for row in trained if "reward" in row]
    if logging_steps != 1 or len(trained) < 4 or not generated:
        return None
    updates = len(trained) / len(generated)
    basis = f"{len(generated)} of {len(trained)} logged updates came with new rewards"
    return Schedule(updates, basis)


def schedule_of(settings: Mapping[str, Any]) -> Schedule | None:
    """Updates per generation, from the fields of a `GRPOConfig`.

    Example:
      >>> schedule_of({"steps_per_generation": 4, "num_iterations": 2,
      ...              "gradient_accumulation_steps": 4}).updates
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


def left_open(rows: Sequence[Row], schedule: Schedule | None) -> list[str]:
    """What TRL's metrics leave open; an update on every generation moves by nothing before it."""
    single = {"one update a generation"} if schedule and schedule.updates <= 1 else set()
    return names.left_open("TRL", single.union(*rows))


SOURCE = Source("trainer_state.json, alone or in checkpoint-* (TRL)", _accepts, _candidates, _read)
