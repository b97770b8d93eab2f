"""Runs of a folder repeated: are the results the same?"""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trustclip_lab.arena import plan
from trustclip_lab.arena.analysis import Runs
from trustclip_lab.arena.entry import Entry
from trustclip_lab.arena.plan import Cell, Setting
from trustclip_lab.arena.run import compute
from trustclip_lab.arena.settings import MAIN
from trustclip_lab.arena.table import COLUMNS, parse_row
from trustclip_lab.stack.results import read

#: Seeds of a cell that are run again.
SEEDS = 4
#: Columns that say how long it took, not what the result was.
TIMES = ("seconds",)


def differences(entry: Entry, count: int, source: int | None = None) -> Iterator[str]:
    """Run some cells again, a few seeds of each, and say what differs.

    A seed's result does not depend on the others of its stack, so a few of them are enough, and
    on the same kind of machine they are the same to the last digit.

    Args:
      entry: a folder of runs.
      count: of cells, drawn at random among those with runs.
      source: of the random draw; another one each time if None.

    Yields:
      A sentence for each run whose result differs.
    """
    rng = random.Random(source)
    cells = [cell for cell in _cells(entry) if len(_runs_of(entry.runs, cell))]
    for cell in islice(rng.sample(cells, len(cells)), count):
        first = rng.randrange(max(len(cell.seeds) - SEEDS, 0) + 1)
        yield from _compare(replace(cell, seeds=cell.seeds[first : first + SEEDS]), entry.runs)


def _cells(entry: Entry) -> Iterator[Cell]:
    for place in plan.places(entry.settings):
        cells = plan.tuning(entry.settings, place)
        yield from cells if place.design == MAIN else ()
        yield from plan.tests(entry.settings, place, tested_trials(entry, place))


def tested_trials(entry: Entry, place: Setting) -> dict[str, tuple[str, float]]:
    """By constraint, the variant and learning rate that a table of runs was tested at."""
    runs = entry.runs.where(stage="test", design=place.design, task=place.task, depth=place.depth)
    by_label = {one.label: one for own in plan.variants(entry.settings).values() for one in own}
    choice: dict[str, tuple[str, float]] = {}
    for (label, rate), _ in runs.by("label", "learning_rate").items():
        own = by_label[label]
        nearest = min(own.rates, key=lambda planned: abs(planned - rate))
        choice[own.constraint] = (label, nearest)
    return choice


def _runs_of(runs: Runs, cell: Cell) -> Runs:
    at = cell.setting
    return runs.where(
        stage=cell.stage, design=at.design, task=at.task, depth=at.depth, label=cell.variant.label
    )


def _compare(cell: Cell, runs: Runs) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        again = replace(cell, path=Path(folder) / "cell.csv")
        compute(again)
        rows = [parse_row(row) for row in read(again.path)]
    by_run = _runs_of(runs, cell).by("seed", "learning_rate")
    for row in rows:
        run = _nearest(by_run, row)
        where = f"{cell.stage} run of seed {row['seed']}, {cell.variant.label}, at the rate " + (
            f"{row['learning_rate']:g}, {cell.setting.task}, depth {cell.setting.depth}"
        )
        if run is None:
            yield f"the {where}, is not in the table."
            continue
        for name in COLUMNS:
            new, old = row[name], run[name][0]
            if name not in TIMES and not _same(new, old, COLUMNS[name]):
                yield f"{name} of the {where}, is {old:.6g} in the table and {new:.6g} again."


def _nearest(runs: dict[tuple[Any, ...], Runs], row: dict[str, Any]) -> Runs | None:
    """The run of a seed and rate in the table; a file holds six digits of the rate."""
    for (seed, rate), run in runs.items():
        if seed == row["seed"] and abs(rate - row["learning_rate"]) <= 1e-5 * rate:
            return run
    return None


def _same(value: Any, expected: Any, kind: str) -> bool:
    if kind == "text":
        return value == expected
    if kind == "float32":
        value, expected = np.float32(value), np.float32(expected)
    return bool(value == expected or (value != value and expected != expected))
