"""Methods with and without their drift, in the lab: the runs, and the tables made of them.

    python lab/benchmarks/centering.py run      # continues what was interrupted
    python lab/benchmarks/centering.py tiny runs/centering-tiny   # the suite's finished runs
    python lab/benchmarks/centering.py report   # tables.md, from the committed files alone

The plan is docs/lab/centering.md; the files are in lab/benchmarks/centering.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mismatch_report import points
from rich.console import Console

from trustclip.logs.reader import read_run
from trustclip.stats import RunSummary
from trustclip.support.text import markdown_table
from trustclip_lab.recipes import LAB
from trustclip_lab.stack import load, run_lab
from trustclip_lab.stack.results import read, write_rows
from trustclip_lab.stack.table import cells_of, mean
from trustclip_lab.stats.equivalence import Contrast, contrasts

FOLDER = Path(__file__).parent / "centering"
TASKS = ("teacher", "needle", "many")
METHODS = ("reinforce", "none", "tis", "atr", "dppo")
SAMPLERS = ("exact", "int8", "lag4")
#: Samplers of the suite on the tiny model.
TINY = ("int4", "lag2")

#: A difference that would not matter, and what is kept of each run.
MARGIN = 0.02
LOGGED = ("k3", "gated", "drift/share", "sampler/k3")
KEPT = ("start", "end", "area", "collapsed", *LOGGED)

Runs = Sequence[Mapping[str, str]]


def run(out: Path, console: Console) -> None:
    """Train what is not on disk yet, one file of runs for each task."""
    for task in TASKS:
        changes = {"task": task, "output_dir": out / task}
        rows = run_lab(load(LAB / "centering.yaml", changes), console)
        names = ("method", "sampler", "learning_rate", "seed", *KEPT)
        write_rows(FOLDER / f"runs-{task}.parquet", [{n: row[n] for n in names} for row in rows])


def tiny(folder: Path) -> None:
    """A row for each finished run of the suite on the tiny model."""
    rows = []
    for path in sorted(folder.glob("*-sampler*-seed*")):
        run = read_run(path)
        if not run.finished:
            continue
        method, sampler, seed = path.name.rsplit("-", 3)[:3]
        scores = {row["step"]: row["mean@8"] for row in run.metrics["eval"]}
        steps = run.training
        means = {name: _mean(steps, f"trustclip/{name}") for name in LOGGED}
        rows.append(
            {
                **{"method": method, "sampler": sampler.removeprefix("sampler")},
                **{"learning_rate": "0.0003", "seed": seed.removeprefix("seed")},
                **{"start": scores[0], "end": scores[max(scores)], **means},
            }
        )
    write_rows(FOLDER / "runs-tiny.parquet", rows)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Over the updates that have it; they lack it where no completion has an advantage."""
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else float("nan")


def gains(runs: Runs, method: str, sampler: str, column: str = "end") -> RunSummary:
    """Centered minus plain, averaged over the rates and paired by seed."""
    terms: dict[str, list[float]] = {}
    rates = {row["learning_rate"] for row in runs}
    for row in runs:
        sign = {method: -1, f"{method}-centered": 1}.get(row["method"], 0)
        if sign and row["sampler"] == sampler:
            terms.setdefault(row["seed"], []).append(sign * float(row[column]) / len(rates))
    return RunSummary.of([sum(of) for of in terms.values() if len(of) == 2 * len(rates)])


def primary(runs: Mapping[str, Runs]) -> dict[tuple[str, str, str], Contrast]:
    """The planned family: every task and method under the samplers that differ."""
    keys = [(t, m, s) for t in TASKS for m in METHODS for s in SAMPLERS if s != "exact"]
    results = contrasts([gains(runs[t], m, s) for t, m, s in keys], MARGIN)
    return dict(zip(keys, results, strict=True))


def in_trl(runs: Runs) -> str:
    """The contrasts of the suite on the tiny model, a separate family, in Markdown."""
    keys = [(method, sampler) for method in METHODS[1:] for sampler in TINY]
    each = [gains(runs, *key) for key in keys]
    cells = cells_of(runs, ("method", "sampler"))
    rows = []
    for (method, sampler), gain, contrast in zip(keys, each, contrasts(each, MARGIN), strict=True):
        arms = (cells[arm, sampler] for arm in (method, f"{method}-centered"))
        plain, centered = (f"{100 * mean(arm, 'end').value:.1f}" for arm in arms)
        text = f"{points(gain.interval(), '+')}, {contrast.conclusion}"
        rows.append([f"`{method}`", sampler, plain, centered, text])
    return markdown_table(["method", "sampler", "plain, end %", "centered", "difference"], rows)


def report(runs: Mapping[str, Runs]) -> str:
    """Every table of the lab, in Markdown."""
    planned = primary(runs)
    differences, cells = [], []
    for task in TASKS:
        for method in METHODS:
            texts = []
            for sampler in SAMPLERS:
                contrast = planned.get((task, method, sampler))
                text = points(gains(runs[task], method, sampler).interval(), "+")
                texts.append(f"{text}, {contrast.conclusion}" if contrast else text)
            differences.append([task, f"`{method}`", *texts])
        names = ("sampler", "learning_rate", "method")
        for key, rows in cells_of(runs[task], names).items():
            with_drift = [row for row in rows if row["drift/share"]]  # all but without an advantage
            numbers = (
                f"{100 * mean(rows, 'end').value:.1f}",
                f"{100 * mean(rows, 'collapsed').value:.0f} %",
                f"{mean(rows, 'k3').value:.3f}",
                f"{100 * mean(with_drift, 'drift/share').value:.1f}",
            )
            cells.append([task, *key, *numbers])
    head = ["task", "sampler", "rate", "method", "end %", "collapsed", "k3", "drift %"]
    tables = markdown_table(["task", "method", *SAMPLERS], differences), markdown_table(head, cells)
    return "\n\n".join(tables) + "\n"


def main() -> None:
    """Read the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["run", "tiny", "report"])
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/centering"))
    options = parser.parse_args()
    if options.stage == "run":
        torch.set_num_threads(1)
        run(options.out, Console())
    elif options.stage == "tiny":
        tiny(options.out)
    else:
        text = report({task: read(FOLDER / f"runs-{task}.parquet") for task in TASKS})
        (FOLDER / "tables.md").write_text(text, "utf-8")
        print(in_trl(read(FOLDER / "runs-tiny.parquet")))


if __name__ == "__main__":
    main()
