"""The page: one self-contained HTML file, without network access."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

import trustclip
from trustclip.report import results
from trustclip.report.collect import Report, collect
from trustclip.report.draw import charts
from trustclip.report.draw.marks import BANDS, DARK_PALETTE, PALETTE
from trustclip.report.groups import Group
from trustclip.report.tokens import views
from trustclip.runs.reader import Run
from trustclip.runs.samples import COLUMNS, MAX_CHARACTERS, Problems, viewed
from trustclip.runs.secrets import redacted, redacted_argv
from trustclip.runs.text import duration, percent
from trustclip.runs.tokens import TOKENS


def write_page(folder: Path, title: str) -> str:
    """Write ``report.html`` of one run directory from its files.

    Args:
      folder: the run directory.
      title: of the page.

    Returns:
      Name of the file.

    Raises:
      ValueError: the folder is not a run directory.
    """
    (folder / "report.html").write_text(render(collect([folder]), title), encoding="utf-8")
    return "report.html"


def render(report: Report, title: str, live: str = "") -> str:
    """The page of a report, as HTML.

    Args:
      report: what it is about.
      title: of the page.
      live: number of this version, of a page that follows its runs; empty for a file.
    """
    template = _environment().get_template("page.html.j2")
    own = ["common.js.j2", "page.js.j2", "tokens.js.j2", *(["live.js.j2"] if live else [])]
    scripts = [Markup(charts.script()), *_scripts(*own)]
    sections = [part for part in report.sections if part.figures or part.tables]
    drawn = {
        f"{figure.key}/{i}": charts.spec(panel)
        for section in sections
        for figure in section.figures
        for i, panel in enumerate(figure.panels)
    }
    page = template.render(
        title=title,
        live=live,
        report=report,
        sections=sections,
        legend=_legend(report.groups),
        runs=[_run(group, run) for group in report.groups for run in group.runs],
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        figures=embedded({"figures": drawn, "palettes": [PALETTE, DARK_PALETTE], "bands": BANDS}),
        samples=embedded(_samples(report)),
        tokens=embedded(_tokens(report)),
        version=trustclip.__version__,
        height=charts.height,
        colours={"light": PALETTE, "dark": DARK_PALETTE},
    )
    return _writable(page)


def token_page(paths: Sequence[Path], title: str) -> str:
    """A page about files of tokens alone, as HTML.

    Args:
      paths: files of tokens, see `trustclip.runs.tokens`.
      title: of the page.

    Raises:
      ValueError: there are no tokens, or a row is not as it should be.
    """
    scripts = _scripts("common.js.j2", "tokens.js.j2")
    page = _environment().get_template("tokens.html.j2")
    return _writable(
        page.render(
            title=title,
            scripts=scripts,
            hashes=[_hash(script) for script in scripts],
            tokens=embedded(views([(path.name, path) for path in paths])),
            version=trustclip.__version__,
            colours={"light": PALETTE, "dark": DARK_PALETTE},
        )
    )


def _scripts(*names: str) -> list[Markup]:
    return [Markup(_environment().get_template(name).render()) for name in names]


def _writable(page: str) -> str:
    """Without half a surrogate pair: a text from a run may hold one, and no file can."""
    return page.encode("utf-8", "backslashreplace").decode()


@cache
def _environment() -> Environment:
    loader = PackageLoader("trustclip.report")
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def embedded(value: Any) -> Markup:
    """JSON that is safe inside a script element, whatever its texts contain.

    Example:
      >>> embedded(["</script>", "<!--", "\\u2028"])
      Markup('["\\\\u003c/script\\\\u003e","\\\\u003c!--","\\\\u2028"]')
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _hash(script: str) -> str:
    """Hash that allows this script in the page's content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _legend(groups: list[Group]) -> list[dict[str, Any]]:
    """Labels with their colours, each once."""
    return [
        {"label": label, "series": series}
        for label, series in {group.label: group.series for group in groups}.items()
    ]


def _run(group: Group, run: Run) -> dict[str, Any]:
    """The page's summary of a run."""
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
        "score": percent(score["value"], 2) if score else "-",
        "gated": percent(gated, 2),
        "time": duration(run.summary.get("seconds")),
        "remarks": run.remarks,
        "notices": run.notices,
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
    """The recorded tokens of all runs."""
    pairs = [(group, run) for group in report.groups for run in group.runs]
    return views(
        [
            (_name(group, run), run.path if run.log else run.path / TOKENS)
            for group, run in pairs
            if (run.log and run.log.tokens) or any((run.path / TOKENS).glob("*.parquet"))
        ]
    )


def _name(group: Group, run: Run) -> str:
    return f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label


def _samples(report: Report) -> dict[str, Any]:
    """The completions in the viewer, and the number of all."""
    problems = Problems()
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
        "problems": problems.texts,
        "runs": [run for run in runs if run["total"]],
    }
