"""The runs of a suite of the arena in TRL as a table, and what that table says.

    python lab/benchmarks/arena_trl.py runs/arena-trl-tuning runs/arena-trl
    python lab/benchmarks/arena_trl.py runs/arena-trl-small-tuning runs/arena-trl-small

It writes runs.parquet, in the arena's columns, and answers.parquet to the folder of benchmarks that
has the suite's name; lab/benchmarks/arena_report.py writes the page from them.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from arena_analysis import (
    Answer,
    Question,
    Runs,
    answers,
    differences,
    rate,
    seed_mean,
)
from arena_scores import crossed_interval
from arena_tables import contrast_table

from trustclip.logs.reader import Run, find, read_run
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.stats import Difference, RunSummary
from trustclip.stats.scores import Floats
from trustclip.support.text import bracket, percent
from trustclip_lab.arena.table import COLUMNS, read_runs, write_runs
from trustclip_lab.stats.equivalence import paired_runs

#: Margin of equivalence, and the fall from the best generation that counts as a collapse.
MARGIN, FALL = 0.03, 0.10
METRIC = "4"
#: Designs of the runs: tuned, and at the rate of atr; what labels of the latter end with.
MAIN, RATE, AT_RATE = "trl", "trl-rate", "-at-atr-rate"


def row_of(run: Run, stage: str) -> dict[str, Any]:
    """A finished run as a row of the arena's table, with how often each problem was solved."""
    rl, steps = run.config["rl"], run.metrics["rl"]
    first, last = run.evaluations[0], run.evaluations[-1]
    (task,) = last.tasks
    shares = [row["rewards/correct/mean"] for row in steps if "rewards/correct/mean" in row]
    end = last.scores["average"][f"mean@{METRIC}"]["value"]
    best = max(shares)
    threshold = [v for k, v in rl["method"].items() if k in ("delta", "epsilon")]
    means = {
        # An update in which no completion can move the policy logs none of them.
        name: float(np.mean([row[key] for row in steps if (key := f"trustclip/{name}") in row]))
        for name in ("entropy", "k3", "gated")
    }
    label = run.entry["label"]
    constraint = label.removesuffix(AT_RATE)
    return {
        "stage": stage, "design": MAIN if label == constraint else RATE,
        "task": task, "depth": rl["steps_per_generation"],
        "constraint": constraint, "width": threshold[0] if threshold else nan,
        "label": label, "learning_rate": rl["learning_rate"],
        "seed": run.entry["seed"], "generations": len(shares),
        "start": first.scores["average"][f"mean@{METRIC}"]["value"], "end": end,
        "best": best, "area": float(np.mean([*shares, end])), "collapsed": int(end <= best - FALL),
        "fell": nan, "time": nan, "passk": last.scores["average"][f"pass@{METRIC}"]["value"],
        **means, "seconds": nan,
        "right": [sum(scores) for scores in last.answers[task].values()],
    }  # fmt: skip


def collect(folder: Path, stage: str) -> list[dict[str, Any]]:
    """Rows of the seeds that every constraint has finished, seed by seed."""
    runs = [run for path in find([folder]) if (run := read_run(path)).entry.get("method")]
    rows = [row_of(run, stage) for run in runs if run.finished]
    complete = [row for design in (MAIN, RATE) for row in _whole(rows, design)]
    order = ("design", "seed", "constraint", "learning_rate")
    return sorted(complete, key=lambda row: [row[name] for name in order])


def _whole(rows: list[dict[str, Any]], design: str) -> list[dict[str, Any]]:
    own = [row for row in rows if row["design"] == design]
    labels = {row["label"] for row in own}
    labels_by_seed: dict[int, set[str]] = {}
    for row in own:
        labels_by_seed.setdefault(row["seed"], set()).add(row["label"])
    return [row for row in own if labels_by_seed[row["seed"]] == labels]


@dataclass(frozen=True)
class Experiment:
    """A suite whose constraints were tuned by another, and its tables of runs.

    Args:
      folder: of the tables, with the suite's name.
      questions: the contrasts that were fixed before the runs.
    """

    folder: Path
    questions: tuple[Question, ...]

    @property
    def block(self) -> str:
        """What the names of its blocks of the page begin with."""
        return self.folder.name.removeprefix("arena-")

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write both tables."""
        self.folder.mkdir(exist_ok=True)
        write_runs(self.folder / "runs.parquet", rows)
        rows = [row for row in rows if (row["stage"], row["design"]) == ("test", MAIN)]
        names = {"constraint": pa.string(), "seed": pa.int32(), "right": pa.list_(pa.int8())}
        columns = {n: pa.array([row[n] for row in rows], kind) for n, kind in names.items()}
        pq.write_table(pa.table(columns), self.folder / "answers.parquet", compression="zstd")

    def read(self) -> tuple[Runs, dict[str, Floats]]:
        """The tests, and by constraint what share each problem was solved in, [seeds, problems]."""
        rows = [row for row in read_runs(self.folder / "runs.parquet") if row["stage"] == "test"]
        rows = [row for row in rows if row["design"] == MAIN]
        solved: dict[str, list[list[int]]] = {}
        for row in pq.read_table(self.folder / "answers.parquet").to_pylist():
            solved.setdefault(row["constraint"], []).append(row["right"])
        runs = Runs({name: [row[name] for row in rows] for name in COLUMNS})
        return runs, {name: np.array(right) / int(METRIC) for name, right in solved.items()}

    def contrasts(self) -> list[Answer]:
        """The contrasts that were fixed before the runs, answered."""
        return answers(self.read()[0], self.questions, "Mean@4", MARGIN)

    def tables(self) -> dict[str, Table]:
        """The contrasts, and every constraint's scores, by block of the page."""
        return {
            f"{self.block}-contrasts": contrast_table({"Mean@4": self.contrasts()}),
            f"{self.block}-scores": _scores(*self.read()),
        }

    def descriptions(self) -> dict[str, str]:
        """The number of runs in words, by block of the page."""
        runs, _ = self.read()
        seeds = runs.values("seed")
        text = (
            f"{len(runs)} runs: {len(runs.constraints)} constraints on the {len(seeds)} seeds "
            f"{seeds[0]} to {seeds[-1]}."
        )
        return {f"{self.block}-settings": text}


def _scores(runs: Runs, solved: dict[str, Floats]) -> Table:
    reference = runs.constraints["atr"]
    rows = [
        TableRow(name, [*_own(own), *_beside(own, reference, solved, name)])
        for name, own in runs.constraints.items()
    ]
    names = [
        "rate", "before", "end", "Pass@4", "area", "entropy", "cut", "collapsed",
        "minus atr, seeds and problems", "entropy minus atr's",
    ]  # fmt: skip
    notes = [
        "Percent, 95 % intervals over seeds; each constraint at its own learning rate. Area: mean "
        "of the shares of right samples in each generation and of the end. Entropy of the sampled "
        "tokens, nats. Cut: share of tokens without gradient. Collapsed: the end 10 points or more "
        "below the best generation. Seeds and problems: the same differences of the end, with both "
        "resampled.",
    ]
    return Table("trl-scores", "Scores in TRL", "constraint", [("", names)], rows, notes)


def _own(runs: Runs) -> Iterator[Cell]:
    yield Cell(f"{runs['learning_rate'][0]:.2g}")
    yield Cell(percent(runs.mean("start")))
    for name in ("end", "passk", "area"):
        interval = seed_mean(runs, name)
        yield Cell(percent(interval.value), bracket(interval.low, interval.high))
    yield Cell(f"{runs.mean('entropy'):.3f}")
    yield Cell(percent(runs.mean("gated")))
    interval = rate(runs, "collapsed")
    yield Cell(percent(interval.value), bracket(interval.low, interval.high))


def _beside(runs: Runs, reference: Runs, solved: dict[str, Floats], name: str) -> Iterator[Cell]:
    if name == "atr":
        yield from (Cell("-"), Cell("-"))
        return
    gap = crossed_interval(solved[name] - solved["atr"])
    yield Cell(percent(gap.value), bracket(gap.low, gap.high))
    seeds = paired_runs(differences(runs, reference, "entropy"))
    value, ends = f"{seeds.value:+.3f}", f"[{seeds.low:.3f}, {seeds.high:.3f}]"
    yield Cell(value.replace("-", "−"), ends.replace("-", "−"))


ROOT = Path(__file__).parent
NONE, SOFT, NARROW = (
    Question("a constraint against none", "atr", "none"),
    Question("hard against soft", "atr", "soft-gate"),
    Question("wide against narrow", "atr", "clip"),
)
#: Policies of 0.4 and of 3.2 million parameters.
TINY = Experiment(ROOT / "arena-trl", (NONE, SOFT, NARROW))
SMALL = Experiment(ROOT / "arena-trl-small", (NONE, NARROW))


def gaps(experiment: Experiment, other: str, column: str = "end") -> RunSummary:
    """atr minus another constraint, seed by seed."""
    by = experiment.read()[0].constraints
    return differences(by["atr"], by[other], column)


def pooled(other: str, column: str = "end") -> Difference:
    """atr minus another constraint over the seeds of both experiments, each a pair."""
    values: list[float] = []
    for experiment in (TINY, SMALL):
        by = experiment.read()[0].constraints
        (ours, theirs) = (by[name].matrix(column, by[name].cells) for name in ("atr", other))
        values += [float((ours[seed] - theirs[seed]).mean()) for seed in ours]
    return paired_runs(RunSummary.of(values))


def main() -> None:
    """Write the tables from the folders of the suites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tuning", type=Path, help="folder of the suite that tuned")
    parser.add_argument("test", type=Path, help="folder of the suite, which has its name")
    args = parser.parse_args()
    experiments = {experiment.folder.name: experiment for experiment in (TINY, SMALL)}
    if (experiment := experiments.get(args.test.name)) is None:
        parser.error(f"the folder {args.test} is not named {' or '.join(experiments)}")
    experiment.write(collect(args.tuning, "tuning") + collect(args.test, "test"))
    print(*experiment.descriptions().values())


if __name__ == "__main__":
    main()
