"""Tables and figures of the mismatch experiment, from the committed files alone.

    python lab/benchmarks/mismatch_report.py --task needle

Writes tables-TASK.md and a figure into lab/benchmarks/mismatch-tiny.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from early_warning import Observation, auc_interval

from trustclip.report.draw.figures import save
from trustclip.report.draw.marks import Figure, Mark, Panel
from trustclip.stats import Interval, mean_interval
from trustclip_lab.stack.results import number, read
from trustclip_lab.stack.table import mean, paired

FOLDER = Path(__file__).parent / "mismatch-tiny"

#: Generations whose mean is "early", as in `mismatch`.
EARLY = 5

#: Order of the tables.
METHODS = (
    "none", "clip", "clip_higher", "atr", "dual_clip", "tis", "icepop", "trm", "dppo", "opsm",
    "m2po", "gspo",
)  # fmt: skip

#: Samplers that are drawn.
DRAWN = ("exact", "int4", "lag4")

Runs = Sequence[Mapping[str, str]]

#: Text of a table's cell from its runs, method and sampler.
CellText = Callable[[Runs, str, str], str]


def cell(rows: Runs, **keys: str) -> list[Mapping[str, str]]:
    """The rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in keys.items())]


def values(rows: Runs, name: str) -> list[str]:
    """Values of a column in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows))


def points(interval: Interval, sign: str = "") -> str:
    """A share in points with its interval."""
    low, value, high = (100 * x for x in (interval.low, interval.value, interval.high))
    return f"{value:{sign}.1f} [{low:.1f}, {high:.1f}]".replace("-", "−")


def level_of(comparisons: int) -> float:
    """Confidence of each interval for 95 % of all together."""
    return 1 - 0.05 / max(comparisons, 1)


def ends(runs: Runs, design: str) -> str:
    """Score at the end, of every method under every sampler."""
    return _grid(runs, design, lambda rows, _, __: points(mean(rows, "end")))


def losses(runs: Runs, design: str) -> str:
    """What a sampler costs a method: score minus that with an exact sampler, paired by seed."""
    level = level_of(len(METHODS) * (len(values(cell(runs, design=design), "sampler")) - 1))

    def text(rows: Runs, method: str, sampler: str) -> str:
        exact = cell(runs, design=design, method=method, sampler="exact")
        return "-" if sampler == "exact" else points(paired(rows, exact, "end", level), "+")

    return _grid(runs, design, text)


def gains(runs: Runs, design: str) -> str:
    """What a constraint is worth: score minus that without one, paired by seed."""
    level = level_of((len(METHODS) - 1) * len(values(cell(runs, design=design), "sampler")))

    def text(rows: Runs, method: str, sampler: str) -> str:
        none = cell(runs, design=design, method="none", sampler=sampler)
        return "-" if method == "none" else points(paired(rows, none, "end", level), "+")

    return _grid(runs, design, text)


def collapses(runs: Runs, design: str) -> str:
    """Runs that have collapsed, and the interval of their share."""

    def text(rows: Runs, _: str, __: str) -> str:
        fallen = sum(int(row["collapsed"]) for row in rows)
        rate = mean_interval([[int(row["collapsed"])] for row in rows])
        return f"{fallen} of {len(rows)} [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"

    return _grid(runs, design, text)


def _grid(runs: Runs, design: str, text: CellText) -> str:
    own = cell(runs, design=design)
    samplers = values(own, "sampler")
    lines = ["| method | " + " | ".join(samplers) + " |", "|---" * (len(samplers) + 1) + "|"]
    for method in METHODS:
        cells = [text(cell(own, method=method, sampler=s), method, s) for s in samplers]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def risk(watched: Runs, name: str, *, within: bool) -> Interval:
    """Area under the ROC curve of a number's early mean for a later collapse.

    Args:
      watched: the runs.
      name: of the number.
      within: compare runs of the same design, sampler and method only, else all with all.
    """
    runs = [
        Observation(
            int(row["seed"]),
            (row["design"], row["sampler"], row["method"]) if within else None,
            bool(row["fell"]),
            number(row[f"early {name}"]),
        )
        for row in watched
        if not row["fell"] or number(row["fell"]) > EARLY
    ]
    return auc_interval(runs)


def warnings(watched: Runs) -> str:
    """What each number is worth as a warning."""
    lines = [
        "| number | AUC, all runs | AUC, same method and sampler | collapses seen before | lead |",
        "|---|---|---|---|---|",
    ]
    fallen = [row for row in watched if row["fell"]]
    for name in [key.removeprefix("early ") for key in watched[0] if key.startswith("early ")]:
        leads = [
            number(row["fell"]) - number(row[f"alarm {name}"])
            for row in fallen
            if row[f"alarm {name}"]
        ]
        lead = f"{median(leads):g}" if leads else "-"
        areas = [risk(watched, name, within=within) for within in (False, True)]
        texts = [f"{a.value:.2f} [{a.low:.2f}, {a.high:.2f}]" for a in areas]
        lines.append(f"| `{name}` | {' | '.join(texts)} | {len(leads)} of {len(fallen)} | {lead} |")
    return "\n".join(lines)


def figure(runs: Runs, design: str, title: str) -> Figure:
    """Score at the end of every method, a panel for each sampler."""
    own = cell(runs, design=design)
    panels = []
    for sampler in DRAWN:
        marks = []
        for method in reversed(METHODS):
            interval = mean(cell(own, sampler=sampler, method=method), "end")
            whisker = [100 * interval.low], [100 * interval.high]
            marks.append(Mark("points", [100 * interval.value], [], method, 0, *whisker))
        panels.append(Panel(sampler, "percent right", "", marks, across=True, x_range=(0, 60)))
    caption = "Mean of the last three evaluations, with 95 % intervals over seeds."
    return Figure(f"ends-{design}", title, caption, panels)


def tables(task: str) -> str:
    """Every table, as Markdown."""
    runs, watched = (read(FOLDER / f"{name}-{task}.parquet") for name in ("runs", "watched"))
    parts = [f"# The mismatch experiment: {task}"]
    for design in values(runs, "design"):
        heads = {"Score at the end, %": ends, "Minus an exact sampler, points": losses,
                 "Minus no constraint, points": gains, "Collapsed": collapses}  # fmt: skip
        for head, make in heads.items():
            parts.append(f"## {head}, {design}\n\n{make(runs, design)}")
    parts.append(f"## Early warning\n\n{warnings(watched)}")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Read the task and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="needle")
    task = parser.parse_args().task
    runs = read(FOLDER / f"runs-{task}.parquet")
    (FOLDER / f"tables-{task}.md").write_text(tables(task), encoding="utf-8")
    pdf, _ = save(figure(runs, "stress", "Constraints and samplers, stress"), FOLDER)
    pdf.unlink()


if __name__ == "__main__":
    main()
