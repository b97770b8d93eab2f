"""The report as files: a page, its tables and its figures."""

from collections.abc import Sequence
from pathlib import Path

from trustclip.report import results
from trustclip.report.collect import collect
from trustclip.report.draw import figures
from trustclip.report.page import render, token_page
from trustclip.report.tables import latex, markdown
from trustclip.runs.foreign.recognise import holds_tokens
from trustclip.runs.jsonl import write_text


def build(
    runs: Sequence[Path], out: Path, *, reference: str | None = None, title: str | None = None
) -> list[Path]:
    """Build the report of runs: ``index.html``, ``tables.*`` and ``figures/``.

    Run directories are only read; unfinished runs are reported up to their last update.

    Args:
      runs: run directories, and suites for all of theirs; or files of tokens alone, of any engine,
        whose report is the page of the tokens.
      out: folder of the report, created if missing; files of an earlier report are replaced.
      reference: label of the method that the others are compared with; the suite's own, or the
        first, when None.
      title: of the page.

    Returns:
      The files written, the page first.

    Raises:
      ValueError: no run, runs that hold nothing to report, or a path that is neither a run
        directory nor a suite.
    """
    if runs and all(path.is_file() and holds_tokens(path) for path in runs):
        page = token_page(runs, title or "Tokens")
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "index.html", page)
        return [out / "index.html"]
    report = collect(runs, reference)
    found = [run for group in report.groups for run in group.runs]
    if all(run.silence and not run.samples.places for run in found):
        many = f"none of {len(found)} runs has logged an update or an evaluation."
        raise ValueError(many if len(found) > 1 else found[0].silence)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    texts = {
        "index.html": render(report, title or "Report", saved=True),
        "tables.md": "\n".join(markdown(table) for table in report.tables),
        "tables.tex": "% Needs the package booktabs.\n" + "\n".join(map(latex, report.tables)),
        "tables.csv": results.tidy(report.groups),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    drawn = [path for figure in report.figures for path in figures.save(figure, out / "figures")]
    return [*(out / name for name in texts), *drawn]
