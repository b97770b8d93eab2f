"""The page: one self-contained HTML file, without network access."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trustclip.constraints.base import methods
from trustclip.constraints.registry import method
from trustclip.findings.differences import RunFindings
from trustclip.findings.groups import Group
from trustclip.logs.reader import Run
from trustclip.logs.samples import COLUMNS, MAX_CHARACTERS, page_rows
from trustclip.logs.tokens import TOKENS
from trustclip.report.collect import Report, collect
from trustclip.report.draw.marks import PALETTE, Figure
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.report.microscope import SCRIPTS, tokens_data
from trustclip.support.inside import Inside
from trustclip.support.jsonl import write_text
from trustclip.support.secrets import redact, redacted_argv
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
    group, run = entry.group, entry.run
    final = run.final
    metric = group.metrics[0] if group.metrics else None
    score = final.score(None, metric) if final and metric else None
    training = run.summary.get("training")
    gated = training.get("mean_gated") if isinstance(training, Mapping) else None
    return {
        "label": group.label,
        "series": group.series,
        "model": run.model,
        "seed": run.seed,
        "path": str(run.path),
        "command": run.command,
        "finished": run.finished,
        "steps": run.last_step,
        "metric": title_of(metric) if metric else "",
        "score": percent(score["value"], 2) if score else "-",
        "gated": percent(gated if isinstance(gated, int | float) else None, 2),
        "time": duration(run.summary.get("seconds")),
        "remarks": run.remarks,
        "name": entry.name,
        "findings": entry.findings,
        "notices": [finding for finding in entry.findings if finding.subject in ("start", "guard")],
        "watched": bool(run.training or run.evaluations) and run.log is None,
        "config": _as_yaml(dict(run.config)),
        "environment": _as_yaml(dict(run.environment) or {"versions": run.summary.get("versions")}),
    }


def _as_yaml(record: dict[str, Any]) -> str:
    """A record of a run as YAML, without the secrets that an older version may have written."""
    public = redact(record)
    if isinstance(argv := public.get("argv"), list):
        public["argv"] = redacted_argv([str(argument) for argument in argv])
    return yaml.safe_dump(public, sort_keys=False, allow_unicode=True)


def _tokens(report: Report) -> dict[str, Any]:
    return tokens_data(
        [
            (name, run.path)
            for name, run in _named_runs(report)
            if (run.log and run.log.digest) or any(Inside(run.path).files(f"{TOKENS}/*.parquet"))
        ],
        {_method_of(group): group.series % len(PALETTE) for group in report.groups},
    )


def _method_of(group: Group) -> str:
    """Name of a method that is used as its paper gives it; the label of any other group."""
    chosen = group.method
    known = chosen is not None and chosen.name in methods() and chosen == method(chosen.name)
    return chosen.name if chosen is not None and known else group.label


def _named_runs(report: Report) -> Iterator[tuple[str, Run]]:
    for group in report.groups:
        for run in group.runs:
            yield f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label, run


def _samples(report: Report) -> dict[str, Any]:
    problems: dict[str, int] = {}
    by_name = [*_named_runs(report)]
    share = MAX_CHARACTERS // max(len(by_name), 1)
    runs = [
        {
            "name": name,
            "model": run.model,
            "total": len(run.samples.places),
            "rows": page_rows(run.path, run.samples, share, problems),
        }
        for name, run in by_name
    ]
    return {
        "columns": COLUMNS,
        "problems": list(problems),
        "runs": [run for run in runs if run["total"]],
    }
