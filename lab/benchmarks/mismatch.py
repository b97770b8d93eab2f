"""The mismatch experiment in the lab: every constraint under every sampler, tuned alike.

    python lab/benchmarks/mismatch.py tune   # nine trials of each constraint, on tuning seeds
    python lab/benchmarks/mismatch.py test   # the best of them, on fresh seeds

Each continues what was interrupted. The files are in lab/benchmarks/mismatch-tiny;
`mismatch_report.py` makes the tables and figures of them.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from early_warning import alarm
from rich.console import Console

from trustclip_lab.recipes import LAB
from trustclip_lab.stack import LabSettings, load, run_lab
from trustclip_lab.stack.results import read, write_rows
from trustclip_lab.stack.run import cells, curves

RECIPE = LAB / "mismatch.yaml"
FOLDER = Path(__file__).parent / "mismatch-tiny"

#: Seeds that settings are chosen on, and fresh ones that are reported: first, and how many.
TUNING, TEST = (10_000, 8), (0, 16)

#: Samplers that a constraint is tuned under, one after the other.
TUNED = ("exact",)

#: Samplers of the stress test.
STRESSED = ("exact", "int4", "lag1", "lag4")

#: Learning rate of the stress test: twice the largest of the grid.
STRESS = 2.4e-2

#: Numbers that might warn of a collapse, and whether danger is where they are high or low.
WATCHED = {
    "sampler/k3": 1, "sampler/abs": 1, "sampler/chi2": 1, "sampler/sequence_ess": -1,
    "sampler/current/k3": 1, "sampler/current/sequence_ess": -1, "k3": 1, "entropy": -1,
}  # fmt: skip

#: Generations that "early" is the mean of; runs that have fallen by then are left out.
EARLY = 5

#: Share of the runs without a collapse that an alarm may wake.
FALSE = 0.05

Row = dict[str, Any]


def settings(task: str, out: Path, first: int, many: int) -> LabSettings:
    """The recipe, for a task, with these seeds."""
    changes = {"task": task, "output_dir": out / task, "first_seed": first, "seeds": many}
    return load(RECIPE, changes)


def tune(task: str, out: Path, console: Console) -> None:
    """Nine trials of each constraint under each of `TUNED`, and the mean end of each as a table."""
    base = settings(task, out, *TUNING)
    base = replace(base, sweep=base.sweep | {"sampler": _only(base, TUNED)})
    rows = run_lab(base, console)
    trials: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        key = (row["method"], row["sampler"], f"{row['learning_rate']:g}")
        trials.setdefault(key, []).append(row["end"])
    table = [
        {"method": m, "sampler": s, "learning_rate": rate, "end": statistics.mean(ends)}
        for (m, s, rate), ends in trials.items()
    ]
    write_rows(FOLDER / f"tuning-{task}.parquet", table)


def _only(base: LabSettings, labels: Iterable[str]) -> dict[str, Any]:
    return {label: base.sweep["sampler"][label] for label in labels}


def best_trials(rows: Sequence[Mapping[str, str]], sampler: str) -> dict[str, tuple[str, float]]:
    """By constraint, the label and the learning rate of the best trial under a sampler."""
    best: dict[str, tuple[float, str, float]] = {}
    for row in rows:
        if row["sampler"] == sampler:
            family = row["method"].partition("-")[0]
            trial = (float(row["end"]), row["method"], float(row["learning_rate"]))
            best[family] = max(best.get(family, trial), trial, key=lambda one: one[0])
    return {family: (label, rate) for family, (_, label, rate) in best.items()}


def designs(base: LabSettings, trials: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, Any]]:
    """(design, settings of one learning rate, samplers and methods) of the test.

    ``carried``: tuned with an exact sampler, tested under all. ``tuned``: tuned under the sampler
    of the test. ``stress``: the thresholds of ``carried`` at the learning rate `STRESS`.
    """
    exact = best_trials(trials, "exact")
    every = tuple(base.sweep["sampler"])
    yield from _of("carried", base, exact, every)
    for sampler in TUNED[1:]:
        yield from _of("tuned", base, best_trials(trials, sampler), (sampler,))
    yield from _of("stress", base, {f: (m, STRESS) for f, (m, _) in exact.items()}, STRESSED)


def _of(
    design: str, base: LabSettings, choice: Mapping[str, tuple[str, float]], samplers: Sequence[str]
) -> Iterator[tuple[str, LabSettings]]:
    for rate in sorted({rate for _, rate in choice.values()}):
        methods = {m: base.methods[m] for m, its in choice.values() if its == rate}
        sweep = {"learning_rate": (rate,), "sampler": _only(base, samplers)}
        yield design, replace(base, methods=methods, sweep=sweep)


def test(task: str, out: Path, console: Console) -> None:
    """Run what was chosen on fresh seeds; runs.parquet, and every generation in generations.csv."""
    base = settings(task, out, *TEST)
    trials = read(FOLDER / f"tuning-{task}.parquet")
    runs: list[Row] = []
    generations: list[Row] = []
    for design, part in designs(base, trials):
        for row in run_lab(part, Console(quiet=True)):
            runs.append({"design": design, **_split_label(row)})
        for cell in cells(part):
            key = {"design": design, **_split_label(cell.keys)}
            for curve in curves(cell):
                generations += [
                    {**key, "seed": curve.seed, "generation": i, "score": score, **numbers}
                    for i, (score, numbers) in enumerate(_generations(curve))
                ]
        console.print(design, part.sweep["learning_rate"], len(runs), "runs", highlight=False)
    write_rows(FOLDER / f"runs-{task}.parquet", runs)
    write_rows(out / task / "generations.csv", generations)
    write_rows(FOLDER / f"watched-{task}.parquet", warning_rows(generations, runs))


def warning_rows(generations: Sequence[Row], runs: Sequence[Row]) -> list[Row]:
    """For each run and watched number: its mean in the first generations, and its first alarm.

    An alarm is the first generation, before a fall, whose number exceeds what `FALSE` of the runs
    without a collapse ever exceed; empty for none.
    """
    names = ("design", "method", "sampler", "seed")
    fell = {tuple(str(run[n]) for n in names): run["fell"] for run in runs}
    series: dict[tuple[str, ...], list[Row]] = {key: [] for key in fell}
    for row in generations:
        if row["generation"]:
            series[tuple(str(row[n]) for n in names)].append(row)
    table = [dict(zip(names, key, strict=True)) | {"fell": f} for key, f in fell.items()]
    for name, sign in WATCHED.items():
        values = {key: [sign * row[name] for row in rows] for key, rows in series.items()}
        others = [values[key] for key, f in fell.items() if f != f]
        fallen = [(values[key], f) for key, f in fell.items() if f == f]
        threshold = alarm(fallen, others, FALSE).threshold
        for row, (key, f) in zip(table, fell.items(), strict=True):
            before = values[key][: int(f) if f == f else None]
            first = next((i for i, v in enumerate(before) if v > threshold), float("nan"))
            row[f"early {name}"] = statistics.mean(values[key][:EARLY])
            row[f"alarm {name}"] = first
    return table


def _split_label(row: Mapping[str, Any]) -> Row:
    family, _, variant = row["method"].partition("-")
    return {**row, "method": family, "variant": variant}


def _generations(curve: Any) -> Iterator[tuple[float, Mapping[str, float]]]:
    nothing = dict.fromkeys(curve.rows[0], float("nan"))
    yield from zip(curve.scores, [nothing, *curve.rows], strict=True)


def main() -> None:
    """Read the stage and the task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["tune", "test"])
    parser.add_argument("--task", default="needle")
    parser.add_argument("--out", type=Path, default=Path("runs/mismatch"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    {"tune": tune, "test": test}[options.stage](options.task, options.out, console)


if __name__ == "__main__":
    main()
