"""Comparisons for programs and papers: JSON, rows of LaTeX, a figure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trustclip.findings.comparison import Compared, points
from trustclip.findings.groups import Group
from trustclip.report.draw.plots import forest_figure
from trustclip.report.results import p_text
from trustclip.report.tables import latex_text
from trustclip.support.jsonl import plain, write_bytes
from trustclip.support.names import unknown
from trustclip.support.text import title_of


def as_json(groups: Sequence[Group], comparisons: Sequence[Compared], notes: Sequence[str]) -> str:
    """Scores and comparisons, in shares of 1; null where a number is not known."""
    scores = [
        {"arm": group.label, "score": metric, "runs": len(group.scored), **vars(estimate)}
        for group in groups
        for metric in group.metrics
        if (estimate := group.estimate(None, metric)) is not None
    ]
    found = {
        "reference": groups[0].label,
        "scores": scores,
        "comparisons": [_of(one) for one in comparisons],
        "notes": [*notes],
    }
    return json.dumps(plain(found), indent=2, ensure_ascii=False)


def _of(one: Compared) -> dict[str, Any]:
    return {
        "score": one.metric,
        "arm": one.group.label,
        "runs": one.seeds,
        "paired_by_seed": one.same_seeds,
        "difference": one.difference,
        "p_holm": one.p_holm,
        "detectable": one.detectable,
        "lost_counted_as_wrong": one.counted,
        "resolved": one.resolved,
        "verdict": one.verdict,
    }


def as_latex(comparisons: Sequence[Compared]) -> str:
    """A row for each comparison: arm, score, runs, difference with its interval, corrected p."""
    rows = ["% arm & score & runs & difference [95 % interval], points & p (Holm)"]
    for one in comparisons:
        gap = "-" if one.difference is None else points(one.difference)
        cells = [one.group.label, title_of(one.metric), str(one.seeds), gap, p_text(one.p_holm)]
        rows.append(" & ".join(map(latex_text, cells)) + r" \\")
    return "\n".join(rows)


def draw(groups: Sequence[Group], compared: Sequence[Compared], path: Path) -> None:
    """Draw scores and differences with their intervals into a file, SVG or PDF.

    Raises:
      ValueError: the file has another ending.
    """
    if path.suffix not in (".svg", ".pdf"):
        raise ValueError(unknown("format", path.suffix, (".svg", ".pdf")))
    from trustclip.report.draw import figures

    figure = forest_figure(groups, compared)
    assert figure is not None  # runs without a score are refused before
    picture = figures.draw(figure)
    write_bytes(path, picture.svg.encode() if path.suffix == ".svg" else picture.pdf)
