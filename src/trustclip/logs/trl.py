"""TRL's ``trainer_state.json``, as a stock `GRPOTrainer` leaves it in its checkpoints."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trustclip.logs import names
from trustclip.logs.log import Log, Schedule, Source, numbers
from trustclip.logs.metrics import log_of
from trustclip.support.inside import Inside
from trustclip.support.jsonl import Row, read_mapping

NAME = "trainer_state.json"
#: Settings that results depend on and that a recipe has too.
OF_RECIPES = tuple(names.TABLE["TRL"]["settings"])


def _accepts(path: Path, head: bytes) -> bool:
    return path.name == NAME or (head.lstrip()[:1] == b"{" and b'"log_history"' in head)


def _candidates(folder: Path) -> list[Path]:
    """The state in a folder: its own, or that of its last checkpoint."""
    files = Inside(folder)
    if (own := files.file(NAME)).is_file():
        return [own]
    found = (
        (int(checkpoint[1]), path)
        for path in files.files(f"checkpoint-*/{NAME}")
        if (checkpoint := re.fullmatch(r"checkpoint-(\d+)", path.parent.name))
    )
    return [path for _, path in sorted(found)[-1:]]


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
    step, planned = state.get("global_step"), state.get("max_steps")
    whole = isinstance(step, int) and isinstance(planned, int) and step >= planned > 0
    every = partial(_schedule, logging_steps=state.get("logging_steps"))
    measured = [(row["step"], numbers(row)) for row in history]
    return replace(log_of(path, NAME, measured, trainer="TRL", schedule=every), finished=whole)


def _schedule(rows: Sequence[Row], logging_steps: Any) -> Schedule | None:
    """Updates per generation, from the distances of the rows that came with new rewards."""
    trained = [row for row in rows if "grad_norm" in row or "loss" in row]
    generated = [row["step"] for row in trained if row.keys() & {"reward", "reward_std"}]
    if logging_steps != 1 or len(trained) < 4 or len(generated) < 2:
        return None
    # The last generation may have had only some of its updates.
    updates = (generated[-1] - generated[0]) / (len(generated) - 1)
    basis = f"{len(generated)} of {len(trained)} logged updates came with new rewards"
    return Schedule(updates, basis)


SOURCE = Source("trainer_state.json, alone or in checkpoint-* (TRL)", _accepts, _candidates, _read)
