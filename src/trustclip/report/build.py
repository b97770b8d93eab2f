"""The report as files: a page, its tables and its figures."""

from collections.abc import Sequence
from pathlib import Path

from trustclip.logs.choice import Choice
from trustclip.logs.recognise import holds_tokens
from trustclip.logs.score_files import own_paths
from trustclip.report.collect import collect
from trustclip.report.microscope import token_page
from trustclip.report.page import drawn, render
from trustclip.report.tables import latex, markdown
from trustclip.support.jsonl import write_text


def build(
    runs: Sequence[Path],
    out: Path,
    *,
    reference: str | None = None,
    title: str | None = None,
    reaches: float | None = None,
    choice: Choice | None = None,
) -> list[Path]:
    """Build the report of runs: ``index.html``, ``tables.*`` and ``figures/``.

    Run directories are only read; unfinished runs are reported up to their last update.

    Args:
      runs: run directories, suites for all of theirs, or scores of other programs; or files of
        tokens alone, of any engine, whose report is the page of the tokens.
      out: folder of the report, created if missing; files of an earlier report are replaced.
      reference: label of the method that the others are compared with; the suite's own, or the
        first, when None.
      title: of the page.
      reaches: score whose time is reported, a share of 1; the suite's own when None.
      choice: how scores of other programs are read.

    Returns:
      The files written, the page first.

    Raises:
      ValueError: no run, runs that hold nothing to report, a path that is neither a run directory
        nor a suite, or an ``out`` that is a file.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder for the report.")
    choice = choice or Choice()
    own = own_paths(runs, choice)
    if runs and own and all(p.is_file() and holds_tokens(p) for p in runs):
        page = token_page(runs, title or "Tokens")
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "index.html", page)
        return [out / "index.html"]
    report = collect(runs, reference, reaches, choice)
    recorded = [run for group in report.groups for run in group.runs]
    if all(run.silence and not run.samples.places for run in recorded):
        many = f"none of {len(recorded)} runs has logged an update or an evaluation."
        raise ValueError(many if len(recorded) > 1 else recorded[0].silence)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    pictures = drawn(report.figures)
    texts = {
        "index.html": render(report, title or "Report", saved=True, pictures=pictures),
        "tables.md": "\n".join(markdown(table) for table in report.tables),
        "tables.tex": "% Needs the package booktabs.\n" + "\n".join(map(latex, report.tables)),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    images = [path for f in report.figures for path in pictures[f.key].save(f, out / "figures")]
    return [*(out / name for name in texts), *images]
