"""The report as files: a page, its tables and its figures."""

from collections.abc import Sequence
from pathlib import Path

from trustclip.recipes.records import write_text
from trustclip.report import figures, results
from trustclip.report.collect import collect
from trustclip.report.page import render
from trustclip.report.tables import latex, markdown


def build(
    runs: Sequence[Path], out: Path, *, reference: str | None = None, title: str | None = None
) -> list[Path]:
    """Build the report of runs: ``index.html``, ``tables.*`` and ``figures/``.

    Run directories are read and not written to; unfinished ones are reported as far as they are.

    Args:
      runs: run directories, and suites for all of theirs.
      out: folder of the report, made if missing; what an earlier report left there is replaced.
      reference: label of the method that the others are compared with; the suite's own, or the
        first, when None.
      title: of the page.

    Returns:
      The files written, the page first.

    Raises:
      ValueError: no run, or a path that is neither a run directory nor a suite.
    """
    report = collect(runs, reference)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    tables = [*report.tables, *report.intervals]
    texts = {
        "index.html": render(report, title or "Report"),
        "tables.md": "\n".join(markdown(table) for table in tables),
        "tables.tex": "% Needs the package booktabs.\n" + "\n".join(map(latex, tables)),
        "tables.csv": results.tidy(report.groups),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    drawn = [path for figure in report.figures for path in figures.save(figure, out / "figures")]
    return [*(out / name for name in texts), *drawn]
