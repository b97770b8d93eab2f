"""The page: one self-contained HTML file, without network access."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

import trustclip
from trustclip.findings.differences import Said
from trustclip.findings.groups import Group
from trustclip.logs.tokens import TOKENS
from trustclip.report.collect import Report, Section, collect
from trustclip.report.draw import charts
from trustclip.report.draw.marks import BANDS, DARK_PALETTE, PALETTE
from trustclip.report.html import embedded, environment, rendered, script_hash
from trustclip.report.microscope import SCRIPTS, microscope_page, tokens_data
from trustclip.runs.reader import Run
from trustclip.runs.samples import COLUMNS, MAX_CHARACTERS, viewed
from trustclip.support.jsonl import write_text
from trustclip.support.secrets import redacted, redacted_argv
from trustclip.support.text import duration, percent, title_of

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


def render(report: Report, title: str, live: str = "", saved: bool = False) -> str:
    """The page of a report, as HTML.

    A page that follows its runs has a number, ``live``; of one that is ``saved``, the files of
    tables and figures lie beside it, to be linked.
    """
    template = environment().get_template("page.html.j2")
    own = ["common.js.j2", "page.js.j2", *SCRIPTS, *(["live.js.j2"] if live else [])]
    scripts = [Markup(charts.script()), *rendered(*own)]
    sections = [part for part in report.sections if part.figures or part.tables]
    page = template.render(
        title=title,
        live=live,
        saved=saved,
        anchors={section.key: section.title.lower() for section in sections} | _ANCHORS,
        report=report,
        sections=sections,
        legend=[
            {"label": label, "series": series}
            for label, series in {group.label: group.series for group in report.groups}.items()
        ],
        parts_of=_PARTS,
        runs=[_run(said) for said in report.said],
        scripts=scripts,
        hashes=[script_hash(script) for script in scripts],
        figures=figures(sections),
        samples=embedded(_samples(report)),
        tokens=embedded(_tokens(report)),
        version=trustclip.__version__,
        height=charts.height,
        colours={"light": PALETTE, "dark": DARK_PALETTE},
    )
    return writable(page)


def figures(sections: Sequence[Section]) -> Markup:
    """Every panel as a chart, with the colours of both grounds."""
    drawn = {
        f"{figure.key}/{i}": charts.spec(panel)
        for section in sections
        for figure in section.figures
        for i, panel in enumerate(figure.panels)
    }
    return embedded({"figures": drawn, "palettes": [PALETTE, DARK_PALETTE], "bands": BANDS})


def token_page(paths: Sequence[Path], title: str) -> str:
    """The microscope with files of tokens in it, as HTML; see `microscope_page`."""
    return writable(microscope_page(paths, title))


def writable(page: str) -> str:
    """Without half a surrogate pair: a text from a run may hold one, and no file can."""
    return page.encode("utf-8", "backslashreplace").decode()


def _run(said: Said) -> dict[str, Any]:
    group, run = said.group, said.run
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
        "name": said.name,
        "findings": said.findings,
        "notices": [found for found in said.findings if found.subject in ("start", "guard")],
        "watched": bool(run.training or run.evaluations) and run.log is None,
        "config": _shown(dict(run.config)),
        "environment": _shown(dict(run.environment) or {"versions": run.summary.get("versions")}),
    }


def _shown(record: dict[str, Any]) -> str:
    """A record of a run as YAML, without the secrets that an older version may have written."""
    found = redacted(record)
    if isinstance(argv := found.get("argv"), list):
        found["argv"] = redacted_argv([str(argument) for argument in argv])
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True)


def _tokens(report: Report) -> dict[str, Any]:
    pairs = [(group, run) for group in report.groups for run in group.runs]
    return tokens_data(
        [
            (_name(group, run), run.path)
            for group, run in pairs
            if (run.log and run.log.tokens) or any((run.path / TOKENS).glob("*.parquet"))
        ]
    )


def _name(group: Group, run: Run) -> str:
    return f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label


def _samples(report: Report) -> dict[str, Any]:
    problems: dict[str, int] = {}
    pairs = [(group, run) for group in report.groups for run in group.runs]
    share = MAX_CHARACTERS // max(len(pairs), 1)
    runs = [
        {
            "name": _name(group, run),
            "model": run.model,
            "total": len(run.samples.places),
            "rows": viewed(run.path, run.samples, share, problems),
        }
        for group, run in pairs
    ]
    return {
        "columns": COLUMNS,
        "problems": list(problems),
        "runs": [run for run in runs if run["total"]],
    }
