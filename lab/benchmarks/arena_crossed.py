"""Trials x seeds: the trials of one tuning on the test seeds of the other, and the table of both.

The arena was run twice, with other tuning seeds and other test seeds, so that its two answers
differ in both. Here the trials that the first time chose are run on the second time's test seeds,
and the reverse, which says which of the two made the difference.

    python lab/benchmarks/arena_crossed.py            # runs what is missing, then writes the table
    python lab/benchmarks/arena_crossed.py --collect  # writes the table of the runs on disk
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from arena_analysis import Question, Runs
from arena_entry import Entry, read_entry
from arena_parts import FIRST
from arena_tables import gap_cell

from trustclip.report.tables import Table, TableRow
from trustclip.stats import Difference, RunSummary
from trustclip_lab.arena import plan
from trustclip_lab.arena.plan import Cell, Setting
from trustclip_lab.arena.run import TABLE, compute
from trustclip_lab.arena.settings import MAIN
from trustclip_lab.arena.table import COLUMNS, parse_row, read_runs, write_runs
from trustclip_lab.stack.results import read
from trustclip_lab.stats.equivalence import paired_runs

ROOT = Path(__file__).parent
ARENA, CROSSED = ROOT / "arena", ROOT / "arena-crossed"


def cells(trials: Entry, seeds: Entry, folder: Path, tasks: list[str]) -> Iterator[Cell]:
    """Tests of the constraints that are compared, at one tuning's trials on the other's seeds."""
    settings = replace(trials.settings, test=seeds.settings.test, output_dir=folder)
    names = {name for pair in settings.contrasts.values() for name in pair}
    for place in plan.places(settings):
        if place.design == MAIN and place.task in tasks:
            for cell in plan.tests(settings, place, tested_trials(trials, place)):
                if cell.variant.constraint in names:
                    yield cell


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


@dataclass(frozen=True)
class Crossed:
    """Both times' trials on both times' test seeds.

    Args:
      first: the arena as it was run first.
      again: the arena.
    """

    first: Entry
    again: Entry

    @cached_property
    def runs(self) -> Runs:
        """The new runs; the column ``design`` says whose trials."""
        rows = read_runs(CROSSED / TABLE)
        return Runs({name: [row[name] for row in rows] for name in COLUMNS})

    @property
    def tasks(self) -> list[str]:
        """Tasks that were run."""
        return self.runs.values("task")

    def gaps(self, question: Question, task: str) -> dict[tuple[str, str], dict[int, float]]:
        """(whose trials, whose seeds) -> difference of each seed, mean over depths."""
        every = {
            ("first", "first"): self.first.main,
            ("first", "again"): self.runs.where(design="first"),
            ("again", "first"): self.runs.where(design="again"),
            ("again", "again"): self.again.main,
        }
        by_pair = {}
        for key, runs in every.items():
            own = runs.where(task=task).constraints
            ours, theirs = own[question.ours], own[question.theirs]
            a, b = ours.matrix("end", ours.cells), theirs.matrix("end", ours.cells)
            by_pair[key] = {seed: float((a[seed] - b[seed]).mean()) for seed in a}
        return by_pair

    def trials(self, question: Question, task: str) -> Difference:
        """First trials minus second ones, on all test seeds of both times, paired by seed."""
        gaps = self.gaps(question, task)
        return student(
            [gaps["first", seeds][s] - gaps["again", seeds][s]
             for seeds in ("first", "again") for s in gaps["first", seeds]]
        )  # fmt: skip

    def table(self, task: str) -> Table:
        """A row for each contrast of a task."""
        rows = []
        for question in self.again.questions:
            gaps = self.gaps(question, task)
            cells = [gap_cell(student([*of.values()])) for of in gaps.values()]
            cells.append(gap_cell(self.trials(question, task)))
            note = f"{question.ours} − {question.theirs}"
            rows.append(TableRow(question.asks, cells, note=note))
        notes = [
            f"{task}: points of the score at the end, mean of depths 16 and 64, paired by seed, "
            "with 95 % intervals that are not corrected; on the first time's 64 test seeds or on "
            "the second's 128. The trials: first minus second ones, seed by seed on all 192."
        ]
        head = [
            ("first trials", ["first seeds", "second seeds"]),
            ("second trials", ["first seeds", "second seeds"]),
            ("", ["the trials"]),
        ]
        return Table(f"crossed-{task}", "Trials and seeds", "question", head, rows, notes)

    def tables(self) -> dict[str, Table]:
        """Tables, by block of the page."""
        return {f"crossed-{task}": self.table(task) for task in self.tasks}


def student(values: Sequence[float]) -> Difference:
    """Mean of differences with Student's interval."""
    return paired_runs(RunSummary.of(values))


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/arena-crossed"))
    parser.add_argument("--tasks", nargs="+", default=["many", "teacher", "needle"])
    parser.add_argument("--collect", action="store_true", help="train nothing")
    args = parser.parse_args()
    first, again = read_entry(FIRST), read_entry(ARENA)
    rows = []
    for name, pair in {"first": (first, again), "again": (again, first)}.items():
        (args.folder / name / "cells").mkdir(parents=True, exist_ok=True)
        for cell in cells(*pair, args.folder / name, args.tasks):
            if not (cell.path.exists() or args.collect):
                compute(cell)
                print(name, cell.path.name, flush=True)
            if cell.path.exists():
                rows += [parse_row(row) | {"design": name} for row in read(cell.path)]
    if rows:
        CROSSED.mkdir(exist_ok=True)
        write_runs(CROSSED / TABLE, rows)
    print(f"{len(rows)} runs in {CROSSED / TABLE}")


if __name__ == "__main__":
    main()
