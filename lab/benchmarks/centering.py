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
from rich.console import Console

from trustclip.runs.reader import read_run
from trustclip.stats import RunSummary
from trustclip_lab.recipes import LAB
from trustclip_lab.stack import load, run_lab
from trustclip_lab.stack.results import read, written
from trustclip_lab.stack.table import collapse_rate, mean
from trustclip_lab.stats.equivalence import Contrast, contrasts

FOLDER = Path(__file__).parent / "centering"
TASKS = ("teacher", "needle", "many")
METHODS = ("reinforce", "none", "tis", "atr", "dppo")
SAMPLERS = ("exact", "int8", "lag4")
#: Samplers of the suite on the tiny model.
TINY = ("int4", "lag2")

#: A difference that would not matter, and what is kept of each run.
MARGIN = 0.02
KEPT = ("start", "end", "area", "collapsed", "k3", "gated", "drift/share", "sampler/k3")

LOGGED = ("drift/share", "sampler/k3")

Runs = Sequence[Mapping[str, str]]


def run(out: Path, console: Console) -> None:
    """Train what is not on disk yet, one file of runs for each task."""
    for task in TASKS:
        changes = {"task": task, "output_dir": out / task}
        rows = run_lab(load(LAB / "centering.yaml", changes), console)
        names = ("method", "sampler", "learning_rate", "seed", *KEPT)
        written(FOLDER / f"runs-{task}.parquet", [{n: row[n] for n in names} for row in rows])


def tiny(folder: Path) -> None:
    """A row for each finished run of the suite on the tiny model."""
    rows = []
    for path in sorted(folder.glob("*-sampler*-seed*")):
        run = read_run(path)
        if not run.finished:
            continue
        method, sampler, seed = path.name.rsplit("-", 3)[:3]
        scores = {row["step"]: row["mean@8"] for row in run.metrics["eval"]}
        logged = run.training
        means = {name: _mean(logged, f"trustclip/{name}") for name in ("k3", "gated", *LOGGED)}
        rows.append(
            {
                **{"method": method, "sampler": sampler.removeprefix("sampler")},
                **{"learning_rate": "0.0003", "seed": seed.removeprefix("seed")},
                **{"start": scores[0], "end": scores[max(scores)], **means},
            }
        )
    written(FOLDER / "runs-tiny.parquet", rows)


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
    found = contrasts([gains(runs[t], m, s) for t, m, s in keys], MARGIN)
    return dict(zip(keys, found, strict=True))


def in_trl(runs: Runs) -> str:
    """The contrasts of the suite on the tiny model, a family of their own, in Markdown."""
    keys = [(method, sampler) for method in METHODS[1:] for sampler in TINY]
    found = contrasts([gains(runs, *key) for key in keys], MARGIN)
    lines = ["| method | sampler | plain, end % | centered | difference |", "|---" * 5 + "|"]
    for (method, sampler), contrast in zip(keys, found, strict=True):
        own = [row for row in runs if row["sampler"] == sampler]
        arms = (method, f"{method}-centered")
        ends = [100 * mean([r for r in own if r["method"] == m], "end").value for m in arms]
        d = contrast.difference
        text = f"{100 * d.value:+.1f} [{100 * d.low:.1f}, {100 * d.high:.1f}]".replace("-", "−")
        shown = (f"{ends[0]:.1f}", f"{ends[1]:.1f}", f"{text}, {contrast.conclusion}")
        lines.append(f"| `{method}` | {sampler} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def report(runs: Mapping[str, Runs]) -> str:
    """Every table of the lab, in Markdown."""
    tested = primary(runs)
    lines = ["| task | method | " + " | ".join(SAMPLERS) + " |", "|---" * 5 + "|"]
    for task in TASKS:
        for method in METHODS:
            shown = []
            for sampler in SAMPLERS:
                interval = gains(runs[task], method, sampler).interval()
                low, value, high = (100 * x for x in (interval.low, interval.value, interval.high))
                text = f"{value:+.1f} [{low:.1f}, {high:.1f}]"
                if contrast := tested.get((task, method, sampler)):
                    text += f", {contrast.conclusion}"
                shown.append(text.replace("-", "−"))
            lines.append(f"| {task} | `{method}` | {' | '.join(shown)} |")
    lines += ["", "| task | sampler | rate | method | end % | collapsed | k3 | drift % |"]
    lines.append("|---" * 8 + "|")
    for task in TASKS:
        for key, rows in _cells(runs[task]).items():
            measured = [row for row in rows if row["drift/share"]]  # all but without an advantage
            collapsed = collapse_rate([{"collapsed": int(float(r["collapsed"]))} for r in rows])
            numbers = (
                f"{100 * mean(rows, 'end').value:.1f}",
                f"{100 * collapsed.value:.0f} %",
                f"{mean(rows, 'k3').value:.3f}",
                f"{100 * mean(measured, 'drift/share').value:.1f}",
            )
            lines.append(f"| {' | '.join((task, *key, *numbers))} |")
    return "\n".join(lines) + "\n"


def _cells(runs: Runs) -> dict[tuple[str, str, str], list[Mapping[str, str]]]:
    found: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in runs:
        key = (row["sampler"], row["learning_rate"], row["method"])
        found.setdefault(key, []).append(row)
    return found


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
