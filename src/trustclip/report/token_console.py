"""Recorded tokens in the terminal."""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustclip.constraints.base import Method
from trustclip.constraints.loss import gradient
from trustclip.constraints.registry import method
from trustclip.logs.recognise import token_rows
from trustclip.logs.tokens import TokenRow, token_batch
from trustclip.report.microscope import strings
from trustclip.support.names import some, unknown
from trustclip.support.text import percent, show_controls

#: Name of what the run itself did.
OWN = "this run"
#: Methods whose gate is computed on the tokens of any run, at the defaults of their papers.
SHADOWS = ("clip", "clip_higher", "atr", "dppo", "gspo", "icepop")
#: Strings in the table of those that are cut most often.
_STRINGS = 20
#: Backgrounds of a token that is raised and of one that is lowered, weak and strong: blue, orange.
_UP, _DOWN = ("on #c9dff0", "on #7fb2d9"), ("on #f6d5bd", "on #eb9a62")


@dataclass(frozen=True)
class Judgement:
    """A completion, and what a constraint did to its tokens.

    Args:
      coefficient: gradient of the objective in each log-probability. [time].
      kept: true where the gate left a gradient as it was. [time].
    """

    row: TokenRow
    coefficient: NDArray[np.float64]
    kept: NDArray[np.bool_]

    @property
    def cut(self) -> NDArray[np.bool_]:
        """True for tokens that count and that the constraint has cut. Shape [time]."""
        return self.row.mask & ~self.kept

    @property
    def share(self) -> float:
        """Share of its tokens that the constraint has cut."""
        return float(self.cut.sum() / max(self.row.mask.sum(), 1))


def judge(row: TokenRow, shadow: Method | None = None) -> Judgement | None:
    """What the run's own constraint, or another, did to a completion; None where it is unknown."""
    if shadow is None:
        if row.coefficient is None:
            return None
        silent = (row.coefficient == 0) & (row.advantage != 0)
        return Judgement(row, row.coefficient, ~silent if row.kept is None else row.kept)
    batch = token_batch([row])
    if any(getattr(batch, name) is None for name in shadow.requires):
        return None
    c, surrogate = gradient(shadow, batch)
    return Judgement(row, c[0].double().numpy(), surrogate.kept[0].numpy())


@dataclass
class _Counts:
    """Updates and completions of a file, and how often each string stands there and is cut."""

    updates: set[int | None] = field(default_factory=set)
    completions: int = 0
    every: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)

    def judged(self, source: Path, constraint: str, update: int | None) -> Iterator[Judgement]:
        """The completions of an update, or of all, as they are counted."""
        shadow = None if constraint == OWN else method(constraint)
        for row in token_rows(source):
            self.updates.add(row.update)
            if update is not None and row.update != update:
                continue
            item = judge(row, shadow)
            if item is None:
                raise ValueError(f"{source} does not say what {constraint} cut; see --constraint.")
            self.completions += 1
            self.every.update(compress(strings(row), row.mask))
            self.cut.update(compress(strings(row), item.cut))
            yield item


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
    counts = _Counts()
    judged = counts.judged(path, constraint, update)
    # Of equal ones the first.
    chosen = heapq.nlargest(count, judged, key=lambda item: item.share if worst else 0)
    if not chosen:
        updates = sorted(number for number in counts.updates if number is not None)
        recorded = some(updates, most=20) or "none"
        raise ValueError(f"{path} has no tokens of update {update}; recorded: {recorded}.")
    for item in chosen:
        console.print(_facts(item, constraint), style="bold", markup=False, soft_wrap=True)
        console.print(paint(item), soft_wrap=True)
        console.print()
    console.print(_table(counts, constraint))


def _facts(item: Judgement, constraint: str) -> str:
    row = item.row
    parts = [
        f"update {row.update}" if row.update is not None else "",
        f"sampled after update {row.generated}" if row.generated is not None else "",
        f"completion {row.index}" if row.index is not None else "",
        f"reward {row.reward:.4g}" if row.reward is not None else "",
        f"A {np.mean(row.advantage[row.mask]) if row.mask.any() else 0:.3g}",
        f"{len(row.logp)} tokens",
        f"{percent(item.share)} % cut by {constraint}",
    ]
    return ", ".join(part for part in parts if part)


def paint(item: Judgement) -> Text:
    """The text of a completion: coloured by coefficient, cut tokens in double brackets."""
    c, cut = item.coefficient, item.cut
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


def _table(counts: _Counts, constraint: str) -> Table:
    """The strings that are cut most, and how many times the average share that is."""
    tokens = counts.every.total()
    share = counts.cut.total() / max(tokens, 1)
    title = f"{constraint} cuts {percent(share, 2)} % of {tokens:,} tokens in "
    title += f"{counts.completions:,} completions"
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for name in ("string", "tokens", "cut", "cut %", "× average"):
        table.add_column(name, justify="left" if name == "string" else "right")
    for text, hits in counts.cut.most_common(_STRINGS):
        size = counts.every[text]
        cells = [f"{size:,}", f"{hits:,}", percent(hits / size), f"{hits / size / share:.1f}"]
        table.add_row(Text(visible(text).replace("\n", "")), *cells)
    return table
