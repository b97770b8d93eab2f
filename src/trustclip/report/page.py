"""The page: one HTML file with everything in it, which asks nothing of any network."""

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

import trustclip
from trustclip.report import charts, results
from trustclip.report.collect import Report, collect
from trustclip.report.groups import Group
from trustclip.report.marks import BANDS, DARK_PALETTE, PALETTE, Figure
from trustclip.report.runs import Run
from trustclip.report.samples import COLUMNS, MAX_CHARACTERS, Problems, viewed


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
      key: its anchor.
      title: of it.
      figures: in it.
      tables: above the figures.
    """

    key: str
    title: str
    figures: list[Figure]
    tables: list[Any]


def write_page(folder: Path, title: str) -> str:
    """Write ``report.html`` of one run directory from what it holds.

    Args:
      folder: the run directory.
      title: of the page.

    Returns:
      Name of the file.

    Raises:
      ValueError: the folder is no run directory.
    """
    (folder / "report.html").write_text(render(collect([folder]), title), encoding="utf-8")
    return "report.html"


def render(report: Report, title: str) -> str:
    """The page of a report, as HTML.

    Args:
      report: what it is about.
      title: of the page.
    """
    template = _environment().get_template("page.html.j2")
    scripts = [Markup(charts.script()), Markup(_environment().get_template("page.js.j2").render())]
    sections = _sections(report)
    drawn = {
        f"{figure.key}/{i}": charts.spec(panel)
        for section in sections
        for figure in section.figures
        for i, panel in enumerate(figure.panels)
    }
    page = template.render(
        title=title,
        report=report,
        sections=sections,
        legend=_legend(report.groups),
        runs=[_run(group, run) for group in report.groups for run in group.runs],
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        figures=embedded({"figures": drawn, "palettes": [PALETTE, DARK_PALETTE], "bands": BANDS}),
        samples=embedded(_samples(report)),
        version=trustclip.__version__,
        height=charts.height,
        colours={"light": PALETTE, "dark": DARK_PALETTE},
    )
    # A text from a run may hold half a surrogate pair, which no file can.
    return page.encode("utf-8", "backslashreplace").decode()


@cache
def _environment() -> Environment:
    loader = PackageLoader("trustclip.report")
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def embedded(value: Any) -> Markup:
    """JSON that can stand in a script element, whatever its texts say.

    Example:
      >>> embedded(["</script>", "<!--", "\\u2028"])
      Markup('["\\\\u003c/script\\\\u003e","\\\\u003c!--","\\\\u2028"]')
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _hash(script: str) -> str:
    """Hash by which the page's own policy allows a script, and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _sections(report: Report) -> list[Section]:
    parts = [
        Section("scores", "Scores", report.scores, report.tables),
        Section("constraint", "Constraint", report.constraint, report.intervals),
        Section("training", "Training", report.training, []),
        Section("sweep", "Sweep", report.sweeps, []),
        Section("budget", "Samples and K", report.budgets, []),
        Section("gate", "Gate", report.gates, []),
    ]
    return [part for part in parts if part.figures or part.tables]


def _legend(groups: list[Group]) -> list[dict[str, Any]]:
    """Labels with their colours, each once."""
    return [
        {"label": label, "series": series}
        for label, series in {group.label: group.series for group in groups}.items()
    ]


def _run(group: Group, run: Run) -> dict[str, Any]:
    """What the page says of a run as such."""
    final = run.final
    metric = group.metrics[0] if group.metrics else None
    score = final.score(None, metric) if final and metric else None
    gated = (run.summary.get("training") or {}).get("mean_gated")
    return {
        "label": group.label,
        "series": group.series,
        "model": run.model,
        "seed": run.seed,
        "path": str(run.path),
        "command": run.command,
        "finished": run.finished,
        "steps": run.last_step,
        "metric": results.title_of(metric) if metric else "",
        "score": results.percent(score["value"], 2) if score else "-",
        "gated": results.percent(gated, 2),
        "hours": _duration(run.summary.get("seconds")),
        "remarks": run.remarks,
        "notices": run.notices,
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "environment": yaml.safe_dump(
            dict(run.environment) or {"versions": run.summary.get("versions")}, sort_keys=False
        ),
    }


def _duration(seconds: Any) -> str:
    """Time for people.

    Example:
      >>> _duration(55.7), _duration(7260), _duration(None)
      ('56 s', '2 h 1 min', '-')
    """
    if not isinstance(seconds, int | float):
        return "-"
    minutes = round(seconds) // 60
    if minutes < 2:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _samples(report: Report) -> dict[str, Any]:
    """The completions that the viewer has, and how many it has not."""
    problems = Problems()
    pairs = [(group, run) for group in report.groups for run in group.runs]
    share = MAX_CHARACTERS // max(len(pairs), 1)
    runs = [
        {
            "name": f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label,
            "model": run.model,
            "total": len(run.samples.places),
            "rows": viewed(run.path, run.samples, share, problems),
        }
        for group, run in pairs
    ]
    return {
        "columns": COLUMNS,
        "problems": problems.texts,
        "runs": [run for run in runs if run["total"]],
    }
