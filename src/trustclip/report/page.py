"""The report as files: a page, one self-contained HTML file; its tables and its figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trustclip.constraints.base import methods
from trustclip.constraints.registry import method
from trustclip.findings.differences import RunFindings
from trustclip.findings.groups import Group
from trustclip.logs.choice import Choice
from trustclip.logs.recognise import holds_tokens
from trustclip.logs.samples import COLUMNS, MAX_CHARACTERS, page_rows
from trustclip.logs.score_files import own_paths
from trustclip.logs.tokens import TOKENS
from trustclip.report.collect import Report, collect
from trustclip.report.draw.marks import PALETTE, Figure
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.report.microscope import SCRIPTS, token_page, tokens_data
from trustclip.report.tables import latex, markdown
from trustclip.support.inside import Inside
from trustclip.support.jsonl import write_text
from trustclip.support.secrets import redact
from trustclip.support.text import duration, percent, title_of

if TYPE_CHECKING:
    from trustclip.report.draw.figures import Picture

#: Parts of every page, and what a link to them says.
_ANCHORS = {"notices": "warnings", "runs": "runs"}
#: Part that shows the subject of a finding, where its key is another.
_PARTS = {
    **dict.fromkeys(("guard", "start"), "notices"),
    **dict.fromkeys(("entropy", "signal"), "training"),
    "movement": "gate",
    "drift": "sampler",
}


def write_page(folder: Path, title: str) -> str:
    """Write ``report.html`` of one run directory from its files; returns that name.

    Raises:
      ValueError: the folder is not a run directory.
    """
    write_text(folder / "report.html", render(collect([folder]), title))
    return "report.html"


def build(
    runs: Sequence[Path], out: Path, *, reaches: float | None = None, choice: Choice | None = None
) -> list[Path]:
    """Build the report of runs: ``index.html``, ``tables.*`` and ``figures/``.

    Run directories are only read; unfinished runs are reported up to their last update.

    Args:
      runs: run directories, suites for all of theirs, or scores of other programs; or files of
        tokens alone, of any engine, whose report is the page of the tokens.
      out: folder of the report, created if missing; files of an earlier report are replaced.
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
        page = token_page(runs, "Tokens")
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "index.html", page)
        return [out / "index.html"]
    report = collect(runs, reaches, choice)
    recorded = [run for group in report.groups for run in group.runs]
    if all(run.silence and not run.samples.places for run in recorded):
        many = f"none of {len(recorded)} runs has logged an update or an evaluation."
        raise ValueError(many if len(recorded) > 1 else recorded[0].silence)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    pictures = drawn(report.figures)
    texts = {
        "index.html": render(report, "Report", saved=True, pictures=pictures),
        "tables.md": "\n".join(markdown(table) for table in report.tables),
        "tables.tex": "% Needs the package booktabs.\n" + "\n".join(map(latex, report.tables)),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    images = [path for f in report.figures for path in pictures[f.key].save(f, out / "figures")]
    return [*(out / name for name in texts), *images]


def render(
    report: Report,
    title: str,
    saved: bool = False,
    pictures: "Mapping[str, Picture] | None" = None,
) -> str:
    """The page of a report, as HTML.

    Of one that is ``saved``, the files of tables and figures lie beside it, to be linked.
    ``pictures`` are its figures by key, drawn here when None.
    """
    template = environment().get_template("page.html.j2")
    sections = [part for part in report.sections if part.figures or part.tables]
    return page_of(
        template,
        rendered("common.js.j2", "page.js.j2", *SCRIPTS),
        title=title,
        saved=saved,
        anchors={section.key: section.title.lower() for section in sections} | _ANCHORS,
        report=report,
        sections=sections,
        legend=[
            {"label": label, "series": series}
            for label, series in {group.label: group.series for group in report.groups}.items()
        ],
        parts_of=_PARTS,
        runs=[_run(entry) for entry in report.by_run],
        pictures=drawn(report.figures) if pictures is None else pictures,
        samples=embedded(_samples(report)),
        tokens=embedded(_tokens(report)),
    )


def drawn(figures: Sequence[Figure]) -> "dict[str, Picture]":
    """Figures drawn, by their keys."""
    from trustclip.report.draw.figures import draw  # only here: it loads matplotlib

    return {figure.key: draw(figure) for figure in figures}


def _run(entry: RunFindings) -> dict[str, Any]:
    """An entry of the report, and what the page says of it in words."""
    run, final = entry.run, entry.run.final
    metric = next(iter(entry.group.metrics), None)
    score = final.score(None, metric) if final and metric else None
    training = run.summary.get("training")
    gated = training.get("mean_gated") if isinstance(training, Mapping) else None
    return {
        **vars(entry),
        "metric": title_of(metric) + " %" * (run.scale == "percent") if metric else "",
        "score": percent(score["value"], 2) if score else "-",
        "gated": percent(gated if isinstance(gated, int | float) else None, 2),
        "time": duration(run.summary.get("seconds")),
        "notices": [finding for finding in entry.findings if finding.subject in ("start", "guard")],
        "watched": bool(run.training or run.evaluations) and run.log is None,
        "config": _as_yaml(dict(run.config)),
        "environment": _as_yaml(dict(run.environment) or {"versions": run.summary.get("versions")}),
    }


def _as_yaml(record: dict[str, Any]) -> str:
    """A record of a run as YAML, without what an older version may have written of secrets."""
    public = redact({name: value for name, value in record.items() if name != "argv"})
    return yaml.safe_dump(public, sort_keys=False, allow_unicode=True)


def _tokens(report: Report) -> dict[str, Any]:
    return tokens_data(
        [
            (entry.name, entry.run.path)
            for entry in report.by_run
            if (entry.run.log and entry.run.log.digest)
            or any(Inside(entry.run.path).files(f"{TOKENS}/*.parquet"))
        ],
        {_method_of(group): group.series % len(PALETTE) for group in report.groups},
    )


def _method_of(group: Group) -> str:
    """Name of a method that is used as its paper gives it; the label of any other group."""
    chosen = group.method
    known = chosen is not None and chosen.name in methods() and chosen == method(chosen.name)
    return chosen.name if chosen is not None and known else group.label


def _samples(report: Report) -> dict[str, Any]:
    problems: dict[str, int] = {}
    share = MAX_CHARACTERS // max(len(report.by_run), 1)
    runs = [
        {
            "name": entry.name,
            "model": entry.run.model,
            "total": len(entry.run.samples.places),
            "rows": page_rows(entry.run.path, entry.run.samples, share, problems),
        }
        for entry in report.by_run
    ]
    return {
        "columns": COLUMNS,
        "problems": list(problems),
        "runs": [run for run in runs if run["total"]],
    }
