"""The page of a method: from its class, ``methods.toml``, and committed tables of experiments."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

import trustclip as tc
from trustclip.constraints.base import ALIASES
from trustclip.constraints.batch import SUPPLIERS
from trustclip.constraints.diagnostics import kl_threshold
from trustclip.constraints.notation import spelled
from trustclip.constraints.rosetta import ENGINES, Engine
from trustclip.engines.limits import trains_in
from trustclip.support.text import markdown_table

#: Rows of a suite that a method is shown next to.
BESIDE = ("clip", "clip-0.2", "clip-epsilon0.2", "none")
#: Leaderboards of the arena -> what was changed.
ARENA = {"": "as it is", "noise": "a fifth of the rewards inverted", "sampler": "an old sampler"}


def first_line(name: str) -> str:
    """What a method does, in one line of Markdown."""
    text = (tc.methods()[name].__doc__ or "").strip().splitlines()[0].partition(": ")[2]
    return (text[0].upper() + text[1:]).replace("``", "`")


def method_page(name: str, root: Path, notes: dict[str, Any]) -> str:
    """The page of one method in Markdown."""
    chosen, cls = tc.method(name), tc.methods()[name]
    other = "atr" if name == "clip" else "clip"
    return (
        "\n\n".join(
            [
                f"# `{name}`",
                first_line(name),
                f'<iframe class="atlas" loading="lazy" src="../_static/atlas.html?alone#{name}" '
                f'title="the gate of {name}"></iframe>\n'
                f'<noscript><img class="gate" src="../_static/gates/{name}.svg" '
                'alt="gradient weight over the ratio"></noscript>',
                "*Weight c of a token's gradient c·A·∇log π over the ratio new/old; "
                f'<a href="atlas.html#{name}+{other}">next to {other}</a> in the atlas.*',
                _facts(name, chosen),
                "## Definition",
                f"```{{eval-rst}}\n.. autoclass:: {cls.__module__}.{cls.__qualname__}\n```",
                "## Defaults",
                _defaults(chosen, notes.get("defaults", "")),
                "## The same elsewhere",
                _elsewhere(name, chosen),
                "## Measured",
                _results(name, root),
                "## What it costs",
                _cost(name, root),
                "## What it logs",
                _logs(chosen),
                "## Traps",
                _bullets(notes.get("traps", ()), "None known."),
                "## What people report",
                _bullets(notes.get("reports", ()), "Nothing collected."),
            ]
        )
        + "\n"
    )


def _facts(name: str, chosen: Any) -> str:
    rows = [("trains in", ", ".join(trains_in(chosen)))]
    if chosen.requires:
        rows.append(("needs", "; ".join(f"`{n}`, from {SUPPLIERS[n]}" for n in chosen.requires)))
    if chosen.statistics_over:
        rows.append(("measures", f"statistics over the {chosen.statistics_over.replace('_', '-')}"))
    try:
        low, high = tc.interval(chosen)
        rows.append(("ratio interval", f"[{low:.6g}, {high:.6g}]"))
    except ValueError as error:
        rows.append(("ratio interval", str(error).rstrip(".")))
    others = [alias for alias, (of, _) in ALIASES.items() if of == name]
    if others:
        rows.append(("other names", ", ".join(f"`{a}`" for a in others)))
    return markdown_table(("", ""), rows)


def _defaults(chosen: Any, source: str) -> str:
    fields = dataclasses.fields(chosen)
    if not fields:
        return "It has no hyper-parameters."
    said = _arguments(type(chosen))
    rows = [
        (f"`{f.name}`", f"`{value(getattr(chosen, f.name))}`", said.get(f.name, "")) for f in fields
    ]
    said_of = f"**Source:** {source}\n\n" if source else ""
    return said_of + markdown_table(("hyper-parameter", "default", "what it is"), rows)


def _arguments(cls: type) -> dict[str, str]:
    """Hyper-parameter -> its description in the docstring, in Markdown."""
    text = (inspect.getdoc(cls) or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", text, re.M)
    return {
        name: " ".join(said.split()).replace("``", "`").replace("|", r"\|") for name, said in found
    }


def value(one: Any) -> str:
    """A default as a recipe has it."""
    return spelled(one.to_dict()) if hasattr(one, "to_dict") else str(one)


def _elsewhere(name: str, chosen: Any) -> str:
    lines = [
        f"- stock {who}: `{_settings(these)}`"
        if who != "trustclip"
        else f"- another method: `{spelled(these)}`"
        for who, these in chosen.twins.items()
    ]
    lines += [
        f"- {engine.title}'s loss `{row.name}`"
        + (f" (`{row.setting}`)" if row.setting else "")
        + f": `{spelled(row.method)}`"
        for engine, row in _rows_with(name)
    ]
    if not lines:
        return "No stock setting of a trainer is known to have its gradient."
    return "\n".join(lines) + (
        "\n\nEach of these is tested: [what every engine computes](../rosetta.md)."
    )


def _settings(these: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in these.items())


def _rows_with(name: str) -> Iterator[tuple[Engine, Any]]:
    for engine in ENGINES.values():
        for row in engine.rows:
            spec = row.method
            if spec is not None and (spec if isinstance(spec, str) else spec["name"]) == name:
                yield engine, row


def _logs(chosen: Any) -> str:
    lines = ["the shares of tokens it cut, by sign of the advantage and side of the ratio: `gated`"]
    if kl_threshold(chosen) is not None:
        lines.append(
            "`agreement/precision` and `/recall`, where the exact KL is computed: how often "
            "`full_kl` at its threshold would have cut the same tokens"
        )
    if "logp_rollout" in chosen.requires:
        lines.append("[`sampler/*`](../sampler.md), which is measured before its correction")
    if chosen.name == "penalty":
        lines.append("`penalty`: its price, a mean over tokens")
    return (
        "\n".join(f"- {line}" for line in lines)
        + "\n\nAnd what [every method logs](../reference/metrics.md)."
    )


def _bullets(items: Iterable[str], otherwise: str) -> str:
    return "\n".join(f"- {item}" for item in items) or otherwise


# -- what was measured -----------------------------------------------------------------------------


def _results(name: str, root: Path) -> str:
    found = {
        "Table 3 in miniature": _in_miniature(name, root),
        "Inverted rewards": _under_noise(name, root),
        "The arena": _in_the_arena(name, root),
        "Samplers that differ": _in_the_lab(name, root),
        "Control": _in_control(name, root),
    }
    parts = [f"### {title}\n\n{text}" for title, text in found.items() if text]
    missing = [title for title, text in found.items() if not text]
    if missing:
        parts.append(f"Not measured in: {', '.join(missing)}.")
    if len(missing) < len(found):
        parts.append(
            "Intervals that overlap rank nothing: "
            "[what these experiments resolve](../results.md), and what they do not."
        )
    return "\n\n".join(parts)


def scores(root: Path, experiment: str) -> Iterator[tuple[str, str, str, str]]:
    """Rows of a suite's committed table of scores: group, label, runs, Mean@K with interval."""
    group = ""
    text = (root / "lab/benchmarks" / experiment / "table.md").read_text(encoding="utf-8")
    for line in text.partition("**Scores")[2].partition("\n**")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("**"):
            group = cells[0].strip("*").partition(", ")[2]
        elif "(" in cells[0]:
            label, _, runs = cells[0].partition(" (")
            yield group, label, runs.rstrip(")"), cells[1]


def labels(root: Path, experiment: str) -> dict[str, str]:
    """Label of a suite's row -> method; a swept one has a label for each value."""
    path = root / "recipes" / "suites" / f"{experiment}.yaml"
    made = {}
    for label, part in yaml.safe_load(path.read_text(encoding="utf-8"))["methods"].items():
        made[label] = part["name"]
        for key, values in part.get("sweep", {}).items():
            made |= {f"{label}-{key}{value}": part["name"] for value in values}
    return made


def _shown(name: str, root: Path, experiment: str) -> list[tuple[str, str, str, str]]:
    """Rows of a method and of those beside it; none where it was not in the experiment."""
    of, rows = labels(root, experiment), list(scores(root, experiment))
    ours = {row[1] for row in rows if of.get(row[1]) == name}
    return [row for row in rows if row[1] in ours or (ours and row[1] in BESIDE)]


def _in_miniature(name: str, root: Path) -> str:
    rows = [(row[1], row[2].split()[0], row[3]) for row in _shown(name, root, "table3-tiny")]
    head = ("setting", "seeds", "Mean@8 at the end (best), % [95 % of the end]")
    about = "Chain arithmetic, 0.4 M parameters ([what it says](../project/measurements.md)).\n\n"
    return about + markdown_table(head, rows) if rows else ""


def _under_noise(name: str, root: Path) -> str:
    rows = _shown(name, root, "noise-tiny")
    groups = list(dict.fromkeys(row[0] for row in rows))
    by = {(row[1], row[0]): row[3] for row in rows}
    table = [
        (label, *(by.get((label, group), "not measured") for group in groups))
        for label in dict.fromkeys(row[1] for row in rows)
    ]
    head = ("setting", *(f"{100 * float(g.split()[-1]):g} % inverted" for g in groups))
    about = (
        "The same task, Mean@8 at the end in percent, five seeds ([noise](../lab/noise.md)).\n\n"
    )
    return about + markdown_table(head, table) if rows else ""


def _in_the_arena(name: str, root: Path) -> str:
    """Scores of a method's entries in the arena, next to `clip` and none."""
    text = (root / "lab/benchmarks/arena/tables.md").read_text(encoding="utf-8")
    boards = re.findall(r"^\*\*Leaderboard(?:: (\w+))?\*\*\n\n((?:\|.*\n)+)", text, re.M)
    found: dict[str, dict[str, str]] = {}
    ours = set()
    for changed, table in boards:
        head, *rows = rows_of(table)
        for row in rows:
            link = re.fullmatch(r"\[(.+?)\]\(\.\./methods/(\w+)\.md\)", row[0])
            if link:
                found.setdefault(link[1], {})[changed] = row[head.index("end")]
                ours |= {link[1]} if link[2] == name else set()
    if not ours:
        return ""
    columns = [changed for changed, _ in boards]
    rows = [
        (f"**{label}**" if label in ours else label, *(by.get(c, "not measured") for c in columns))
        for label, by in found.items()
        if label in ours or label in BESIDE
    ]
    return (
        "Every entry was tuned with the same budget. Percent right at the end, 128 fresh seeds "
        "([the arena](../lab/arena.md)).\n\n"
        + markdown_table(("entry", *(ARENA.get(c, c) for c in columns)), rows)
    )


def _in_the_lab(name: str, root: Path) -> str:
    """Scores under every sampler of the mismatch experiment, next to `clip` and none."""
    text = (root / "lab/benchmarks/mismatch-tiny/tables-needle.md").read_text(encoding="utf-8")
    head, *rows = rows_of(text.partition(", carried")[2].partition("\n## ")[0])
    if name not in {row[0] for row in rows}:
        return ""
    shown = [row for row in rows if row[0] in (name, "clip", "none")]
    return (
        "In [the lab](../lab/stack.md): 16 seeds, score at the end in percent, threshold and rate "
        "tuned alike ([what follows](../sampler.md#which-constraint-survives-which-sampler)).\n\n"
        + markdown_table(head, shown)
    )


def _in_control(name: str, root: Path) -> str:
    """Returns in PPO on control tasks, next to `clip` and none."""
    text = (root / "docs/lab/control.md").read_text(encoding="utf-8")
    head, *rows = rows_of(text[text.index("| environment | method |") :].partition("\n\n")[0])
    if name not in {row[1].split()[0] for row in rows}:
        return ""
    shown = [row[:3] for row in rows if row[1].split()[0] in (name, "clip", "none")]
    about = "PPO, twenty seeds ([control](../lab/control.md)).\n\n"
    return about + markdown_table(head[:3], shown)


def rows_of(table: str) -> list[list[str]]:
    """Cells of a table in Markdown, its header first, without the line of dashes."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if not set("".join(row)) <= {"-", ":", " "}]


def _cost(name: str, root: Path) -> str:
    """CPU time of a method, from the committed table of ``method_cost.py``."""
    found = json.loads((root / "lab/benchmarks/methods.json").read_text(encoding="utf-8"))
    (table,) = found["tables"]
    row = next((row for row in table["rows"] if row[0] == name), None)
    if row is None:
        return "Not measured."
    _, micro, ratio, share = row
    of_update = f", {share:.2g} % of an update of the smallest model here" if share else ""
    return (
        f"{micro:.2g} µs of CPU time a token, {ratio:.2g} × `clip`{of_update}.\n\n"
        f"`python lab/benchmarks/method_cost.py`, {found['machine']['date']}, one thread of a "
        "server CPU that was doing other work: two runs differ by up to a quarter. The update is "
        "forward and backward of 0.4 M parameters without sampling; the share falls as the model "
        "grows."
        + (
            " What the exact KL needs of the model comes on top: [fast paths](../fast-paths.md)."
            if {"kl_old_new", "kl_new_old"} & set(tc.method(name).requires)
            else ""
        )
    )
