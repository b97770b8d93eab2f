"""A session's results as one JSON file and one Markdown page with figures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trustclip.support.jsonl import write_json
from trustclip.support.text import markdown_table
from trustclip_lab.bench.gpu import record
from trustclip_lab.bench.gpu.cases import Row, stage

#: What the machine's table leaves to others.
_ELSEWHERE = ("packages", "card", "date")


def write_results(
    folder: Path,
    box: dict[str, Any],
    names: Sequence[str],
    rows: Sequence[Row],
    missing: Callable[[str], Sequence[str]],
) -> None:
    """Write ``results.json``, ``README.md``, the figures and the head's ``measured.json``.

    Args:
      folder: gets them.
      box: the machine.
      names: of the stages.
      rows: outcomes, the last of each case.
      missing: keys of a stage's cases without an outcome.
    """
    stages: dict[str, Any] = {}
    for name in names:
        own = [row for row in rows if row.stage == name]
        done = [row for row in own if row.state == "done"]
        figure = _figure(name, done) if "capability" in box else None
        if figure is not None:
            (folder / f"{name}.svg").write_text(figure, encoding="utf-8")
        stages[name] = {
            "title": stage(name).title,
            "tables": [asdict(table) for table in stage(name).tables(done)],
            "figure": None if figure is None else f"{name}.svg",
            "cases": [asdict(row) for row in own],
            "missing": list(missing(name)),
        }
    results = {"machine": box, "stages": stages, "head": record.write_entry(folder, box, rows)}
    write_json(folder / "results.json", json.loads(json.dumps(results).replace("NaN", "null")))
    (folder / "README.md").write_text(page(box, names, rows, missing), encoding="utf-8")


def page(
    box: dict[str, Any],
    names: Sequence[str],
    rows: Sequence[Row],
    missing: Callable[[str], Sequence[str]],
) -> str:
    """The page in Markdown."""
    parts = ["# trustclip on a GPU", _headline(box), *_machine(box), "## What ran"]
    parts.append(_summary(names, rows, missing))
    for name in names:
        parts += _section(name, [row for row in rows if row.stage == name], "capability" in box)
        if name == "head":
            parts.append(record.words(box, rows))
    return "\n\n".join(parts) + "\n"


def _figure(name: str, done: Sequence[Row]) -> str | None:
    """The stage's figure as SVG; None where there is nothing to draw, or nothing to draw with."""
    try:
        return stage(name).figure(done) if done else None
    except ImportError:
        return None


def _headline(box: dict[str, Any]) -> str:
    if "capability" in box:
        return f"Measured on one {box['device']} on {box['date']}: `make gpu`."
    return (
        f"**No GPU was at hand on {box['date']}: what follows ran at tiny shapes on a CPU, so it "
        "shows that the stages work, and no figure of it says anything about a GPU.** "
        "`make gpu` on a machine with one writes this page anew."
    )


def _machine(box: dict[str, Any]) -> list[str]:
    flat = {k: v for k, v in box.items() if k not in _ELSEWHERE and v is not None}
    flat |= box.get("card", {})
    packages = ", ".join(f"{k} {v}" for k, v in box["packages"].items() if v is not None)
    absent = ", ".join(k for k, v in box["packages"].items() if v is None)
    return [
        markdown_table(("machine", ""), [(k, str(v)) for k, v in flat.items()]),
        f"Packages: {packages}." + (f" Not there: {absent}." if absent else ""),
    ]


def _summary(
    names: Sequence[str], rows: Sequence[Row], missing: Callable[[str], Sequence[str]]
) -> str:
    lines = []
    for name in names:
        own = [row for row in rows if row.stage == name]
        counts = [
            str(sum(row.state == state for row in own)) for state in ("done", "failed", "cannot")
        ]
        took = f"{sum(row.seconds for row in own):.0f}"
        lines.append((stage(name).title, *counts, str(len(missing(name))), took))
    head = ("stage", "done", "failed", "cannot run here", "not yet run", "seconds")
    return markdown_table(head, lines, numbers=True)


def _section(name: str, rows: Sequence[Row], measured: bool) -> list[str]:
    """A stage in Markdown; on a CPU the times of tiny shapes are left to ``results.json``."""
    done = [row for row in rows if row.state == "done"]
    parts = [f"## {stage(name).title}"]
    if stage(name).timed and not measured:
        parts += ["\n".join(["Ran, at tiny shapes:", "", *(f"- {row.key}" for row in done)])]
    else:
        parts += [table.markdown() for table in stage(name).tables(done)]
    if measured and _figure(name, done) is not None:
        parts.append(f"![{stage(name).title}]({name}.svg)")
    for state, words in (("failed", "Failed"), ("cannot", "Cannot run here")):
        reasons = [f"- {row.key}: {row.why}" for row in rows if row.state == state]
        if reasons:
            parts.append("\n".join([f"{words}:", "", *reasons]))
    if clocks := sorted({row.clocks for row in done if row.clocks}):
        parts.append(f"Clocks after its cases, first and last: {clocks[0]}; {clocks[-1]}.")
    return parts if len(parts) > 1 else [*parts, "Not yet run."]
