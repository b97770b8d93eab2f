"""Recorded tokens in the terminal."""

import heapq
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustclip.logs.watched import sources
from trustclip.report.tokens import (
    MAX_STRINGS,
    OWN,
    SHADOWS,
    CutStrings,
    Judgement,
    judgements,
    strings,
)
from trustclip.support.names import some, unknown
from trustclip.support.text import percent, show_controls

#: Backgrounds of a token that is raised and of one that is lowered, weak and strong: blue, orange.
_UP, _DOWN = ("on #c9dff0", "on #7fb2d9"), ("on #f6d5bd", "on #eb9a62")


def print_tokens(
    path: Path,
    console: Console,
    *,
    update: int | None = None,
    worst: bool = False,
    count: int = 3,
    constraint: str = OWN,
) -> None:
    """Print completions token by token, and the strings that are cut most often.

    They are the first of a run, or of one update (the first being 1), or with ``worst`` those of
    which the largest share is cut by the constraint, `OWN` for the run's or one of `SHADOWS`.
    Without colours, cut tokens stand in double brackets alone.

    Raises:
      ValueError: no such constraint, no recorded tokens, or none of this update.
    """
    if constraint not in (OWN, *SHADOWS):
        raise ValueError(unknown("constraint", constraint, (OWN, *SHADOWS)))
    (source,) = sources([path])
    shadows = [constraint] if constraint != OWN else []
    words, chosen, number = CutStrings(), [], 0
    updates = set()
    for item in judgements(source, shadows):
        updates.add(item.row.update)
        if update is not None and item.row.update != update:
            continue
        if constraint not in item.kept:
            raise ValueError(f"{source} does not say what {constraint} cut; see --constraint.")
        words.add(item)
        # The smallest of these stays out: a low share, or a late place.
        key = (item.share(constraint), -number) if worst else (0.0, -number)
        heapq.heappush(chosen, (*key, item))
        if len(chosen) > count:
            heapq.heappop(chosen)
        number += 1
    if not number:
        recorded = some(sorted(updates - {None}), most=20) or "none"
        raise ValueError(f"{source} has no tokens of update {update}; recorded: {recorded}.")
    for *_, item in sorted(chosen, key=lambda entry: entry[:2], reverse=True):
        console.print(_facts(item, constraint), style="bold", markup=False, soft_wrap=True)
        console.print(paint(item, constraint), soft_wrap=True)
        console.print()
    console.print(_table(words, constraint, number))


def _facts(item: Judgement, constraint: str) -> str:
    row = item.row
    parts = [
        f"update {row.update}" if row.update is not None else "",
        f"sampled after update {row.generated}" if row.generated is not None else "",
        f"number {row.index}" if row.index is not None else "",
        f"reward {row.reward:.4g}" if row.reward is not None else "",
        f"A {np.mean(row.advantage[row.mask]) if row.mask.any() else 0:.3g}",
        f"{len(row.logp)} tokens",
        f"{percent(item.share(constraint))} % cut by {constraint}",
    ]
    return ", ".join(part for part in parts if part)


def paint(item: Judgement, constraint: str) -> Text:
    """The text of a completion: coloured by coefficient, cut tokens in double brackets."""
    c, cut = item.coefficients[constraint], item.cut(constraint)
    strong = float(np.nanmax(np.abs(c), initial=0.0)) / 2
    text = Text()
    for i, string in enumerate(strings(item.row)):
        label = visible(string)
        if cut[i]:
            text.append(f"⟦{label}⟧", "bold reverse")
        elif not item.row.mask[i]:
            text.append(label, "dim italic")
        elif c[i] != 0:
            weak, full = _UP if c[i] > 0 else _DOWN
            text.append(label, f"black {full if abs(c[i]) > strong else weak}")
        else:
            text.append(label)
    return text


def visible(string: str) -> str:
    r"""A token's text with whitespace visible and every control character by its number.

    Example:
      >>> visible("a\n"), visible("  "), visible("\x1b[2J"), visible("")
      ('a⏎\n', '··', '<U+001B>[2J', '∅')
    """
    if not string:
        return "∅"
    if not string.strip(" "):
        return "·" * len(string)
    return "⏎\n".join(map(show_controls, string.replace("\t", "⇥").split("\n")))


def _table(words: CutStrings, constraint: str, completions: int) -> Table:
    rows = words.most_cut(constraint, MAX_STRINGS)
    share, tokens = percent(words.share(constraint), 2), words.every.total()
    title = f"{constraint} cuts {share} % of {tokens:,} tokens in {completions:,} completions"
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for name in ("string", "tokens", "cut", "of it, %", "lift"):
        table.add_column(name, justify="left" if name == "string" else "right")
    for text, size, hits, lift in rows:
        cells = [f"{size:,}", f"{hits:,}", percent(hits / size), f"{lift:.1f}"]
        table.add_row(Text(visible(text).replace("\n", "")), *cells)
    return table
