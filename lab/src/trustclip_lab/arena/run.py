"""The arena's runs: every trial on tuning seeds, the best of each constraint on fresh ones.

Each cell is a file, written whole when it is done; an existing file is not computed again.
"""

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from trustclip.stats import curves
from trustclip.support.jsonl import plain, write_text
from trustclip.support.settings import Source, build
from trustclip.train.files import load_yaml
from trustclip_lab.arena import plan
from trustclip_lab.arena.plan import Cell
from trustclip_lab.arena.settings import ArenaSettings
from trustclip_lab.arena.table import parse_row, write_runs
from trustclip_lab.stack.results import Curve, read, summary, write_rows
from trustclip_lab.stack.run import curves_of
from trustclip_lab.stack.training import TrainingResult, train

#: Names of the plan and of the table in the folder of the arena.
PLAN, TABLE = "arena.yaml", "runs.parquet"

#: What a lab measures in each generation that the table keeps the mean of.
MEASURED = ("entropy", "k3", "gated")


def load(file: Path, changes: Mapping[str, Any]) -> ArenaSettings:
    """Settings from a YAML file, with changes by dotted path; everything in them is checked.

    Raises:
      ValueError: all errors, as recipes report them; or the first wrong constraint or setting.
    """
    settings = read_plan(file, changes)
    for _ in plan.all_cells(settings):
        pass
    return settings


def read_plan(file: Path, changes: Mapping[str, Any]) -> ArenaSettings:
    """Settings from a YAML file, whose methods and settings of the lab are not looked at.

    Raises:
      ValueError: all errors, as recipes report them.
    """
    content, lines = load_yaml(file)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file} holds no settings of the arena.")
    return build(ArenaSettings, content, Source(str(file), lines, changes))


def run_arena(settings: ArenaSettings, console: Console) -> list[dict[str, Any]]:
    """Tune, choose and test, setting by setting, and write the table.

    Interrupted, it leaves the table of the settings that are complete.

    Args:
      settings: of the arena.
      console: where progress goes.

    Returns:
      The rows of the table.
    """
    folder = settings.output_dir
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    try:
        with _workers(settings.jobs) as pool:
            for place in plan.places(settings):
                cells = plan.tuning(settings, place)
                _complete(cells, pool, console)
                _complete(plan.tests(settings, place, best_trials(cells)), pool, console)
    finally:
        rows = collect(settings, console)
    return rows


def collect(settings: ArenaSettings, console: Console) -> list[dict[str, Any]]:
    """Write the table of what is complete with its plan, and return its rows."""
    rows, table = complete_rows(settings), settings.output_dir / TABLE
    if rows:
        write_text(settings.output_dir / PLAN, yaml.safe_dump(plain(settings), sort_keys=False))
        write_runs(table, rows)
    console.print(f"{len(rows)} runs in {table}" if rows else "no setting is complete yet")
    return rows


def complete_rows(settings: ArenaSettings) -> list[dict[str, Any]]:
    """Rows of the settings whose trials and tests are all on disk, in the order of the plan.

    A setting without one of its constraints would compare the others in fewer places.
    """
    paths: dict[Path, None] = {}
    for place in plan.places(settings):
        cells = plan.tuning(settings, place)
        if all(cell.path.exists() for cell in cells):
            cells += plan.tests(settings, place, best_trials(cells))
            if all(cell.path.exists() for cell in cells):
                paths |= dict.fromkeys(cell.path for cell in cells)
    return [parse_row(row) for path in paths for row in read(path)]


def best_trials(cells: Sequence[Cell]) -> dict[str, tuple[str, float]]:
    """By constraint, the variant and learning rate of the highest mean score at the end.

    Of equal ones the first: the lower threshold in the file, the lower rate.

    Args:
      cells: of the tuning in one setting, all of them on disk.
    """
    best: dict[str, tuple[float, str, float]] = {}
    for cell in cells:
        rows = [parse_row(row) for row in read(cell.path)]
        # A file rounds a rate to six digits.
        for number, rate in enumerate(cell.variant.rates):
            own = rows[number * len(cell.seeds) : (number + 1) * len(cell.seeds)]
            trial = (statistics.mean(row["end"] for row in own), cell.variant.label, rate)
            name = cell.variant.constraint
            best[name] = max(best.get(name, trial), trial, key=lambda one: one[0])
    return {name: (label, rate) for name, (_, label, rate) in best.items()}


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that compute cells; None where this one does."""
    if jobs == 1:
        yield None
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _complete(cells: Sequence[Cell], pool: ProcessPoolExecutor | None, console: Console) -> None:
    missing = [cell for cell in cells if not cell.path.exists()]
    started = time.monotonic()
    # Both are lazy: a cell is reported when it is done.
    for number, _ in enumerate((pool.map if pool else map)(compute, missing), start=1):
        cell, took = missing[number - 1], time.monotonic() - started
        at = f"{cell.stage} {cell.setting.design} {cell.setting.task} {cell.setting.depth}"
        console.print(
            f"{at}: {cell.variant.label}, {number} of {len(missing)}, {took:.0f} s",
            highlight=False,
        )


def compute(cell: Cell) -> None:
    """Train the runs of a cell and write their rows."""
    started = time.process_time()
    torch.set_num_threads(1)  # more are `jobs`; sums, and so runs, depend on the number of threads
    trained = train(cell.lab, *cell.stack)
    seconds = (time.process_time() - started) / cell.runs
    write_rows(cell.path, rows_of(cell, trained, cell.stack[1], seconds))


def rows_of(
    cell: Cell, trained: TrainingResult, rates: Sequence[float], seconds: float
) -> Iterable[dict[str, Any]]:
    """Rows of the table, of one cell."""
    shares = [float("nan")] * len(rates) if trained.passk is None else trained.passk.tolist()
    for curve, rate, share in zip(curves_of(trained), rates, shares, strict=True):
        numbers = summary(curve, cell.lab.tail, cell.lab.collapse)
        yield {
            "stage": cell.stage,
            "design": cell.setting.design,
            "task": cell.setting.task,
            "depth": cell.setting.depth,
            "constraint": cell.variant.constraint,
            "width": cell.variant.width,
            "label": cell.variant.label,
            "learning_rate": rate,
            "seed": curve.seed,
            "generations": cell.lab.generations,
            **{name: numbers[name] for name in ("start", "end", "best", "area")},
            "collapsed": numbers["collapsed"],
            "fell": numbers["fell"],
            "time": time_to(curve, cell.lab.tail, cell.reaches),
            "passk": share,
            **{name: numbers[name] for name in MEASURED},
            "seconds": seconds,
        }


def time_to(curve: Curve, tail: int, score: float) -> float:
    """First generation whose mean of ``tail`` scores is at least ``score``; nan for never.

    Example:
      >>> time_to(Curve(0, [0.1, 0.3, 0.5], []), 1, 0.3), time_to(Curve(0, [0.1], []), 1, 0.3)
      (1.0, nan)
    """
    means = curve.tail_means(tail)
    return curves.reached(range(len(means)), means, score)
