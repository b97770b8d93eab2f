"""Metrics from recorded tokens: the same numbers that our own engines log, step by step.

Everything is a sum over batches of bounded size, so a file of any length takes the memory of a few
batches and of `OPEN` steps.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch

from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.diagnostics import Window
from trustclip.logs.tokens import TokenRow, padded, token_batch
from trustclip.support.jsonl import Row

#: Padded tokens of a batch, and steps that are open at once; a step is done when so many later
#: ones have begun.
TOKENS, OPEN = 1 << 16, 8


#: Columns that a log may lack.
_OPTIONAL = ("logp_old", "logp_rollout", "entropy", "kept", "step")
#: Metrics that need a column; without it, what the window computes has no meaning.
_NEED_KEPT = ("gated", "advantage_cut", "entropy_slope/cut", "entropy_slope/kept")
_NEED_OLD = ("off_policy", "ratio", "k1", "k2", "k3", "ess", "parts")


def digest(path: Path, rows: Iterable[TokenRow], *, two_policies: bool = False) -> "Digest":
    """Metrics of all steps in one pass over rows in order of their steps.

    ``two_policies``: the trainer measures its ratio against the sampler, so that ``logp_old`` is
    the sampler's, too.

    Raises:
      ValueError: there is no row, or steps that are done come again, as in two joined files.
    """
    found = Digest(path, two_policies)
    for chunk in _chunks(rows):
        found.add(chunk)
    if not found.completions:
        raise ValueError(f"{path} holds no completion.")
    found.close(0)
    found.rows.sort(key=lambda row: row["step"])
    return found


def _chunks(rows: Iterable[TokenRow]) -> Iterator[list[TokenRow]]:
    """Rows of one step, as many as a batch may hold."""
    chunk: list[TokenRow] = []
    longest = 0
    for row in rows:
        longer = max(longest, len(row.logp))
        if chunk and (row.step != chunk[0].step or longer * (len(chunk) + 1) > TOKENS):
            yield chunk
            chunk, longer = [], len(row.logp)
        chunk.append(row)
        longest = longer
    if chunk:
        yield chunk


class Digest:
    """What the tokens of a log say, as far as they were added, and the steps that are not done."""

    def __init__(self, path: Path, two_policies: bool) -> None:
        self.path, self.two_policies = path, two_policies
        self.rows: list[Row] = []  # a row a step, with our metrics (``trustclip/...``)
        self.completions = self.tokens = 0
        self.has = {*_OPTIONAL}  # columns that every row had
        self._open: dict[int, tuple[Window, Counter[str]]] = {}
        self._last = self._done = -inf

    def add(self, rows: list[TokenRow]) -> None:
        step = rows[0].step or 0
        if step <= self._done:  # as of a second run with many steps
            raise ValueError(
                f"{self.path}: completions of update {step} come after those of update "
                f"{self._last}; expected one run, in the order of its updates."
            )
        self._last = max(step, self._last)
        has = {n for n in _OPTIONAL if all(getattr(row, n) is not None for row in rows)}
        self.has &= has
        batch = token_batch(rows)
        kept = padded(rows, "kept") if "kept" in has else batch.mask
        window, sums = self._open.setdefault(step, (Window(), Counter()))
        window.add(batch, Surrogate(torch.zeros_like(batch.logp), kept & batch.mask))
        self.completions += len(rows)
        self.tokens += int(batch.mask.sum())
        sums.update(_of_completions(rows, batch))
        self.close(OPEN)

    def close(self, keep: int) -> None:
        """Turn all but the last ``keep`` steps into rows."""
        while len(self._open) > keep:
            step = min(self._open)
            window, sums = self._open.pop(step)
            self._done = max(self._done, step)
            self.rows.append({"step": step, **self._row(window), **_means(sums)})

    def _row(self, window: Window) -> Row:
        row = {}
        for name, value in window.read().items():
            measurable = ("kept" in self.has or not name.startswith(_NEED_KEPT)) and (
                "logp_old" in self.has or not name.startswith(_NEED_OLD)
            )
            if measurable and not (self.two_policies and name.startswith("sampler/")):
                row[f"trustclip/{name}"] = value
        if "trustclip/entropy" in row:
            row["entropy"] = row["trustclip/entropy"]
        return row


def _of_completions(rows: Sequence[TokenRow], batch: TokenBatch) -> dict[str, Any]:
    """Sums over completions: length, reward, groups without a difference."""
    lengths = batch.mask.sum(dim=1)
    idle = ((batch.advantages == 0) | ~batch.mask).all(dim=1)
    return {
        "completions": len(rows),
        "length": float(lengths.sum()),
        "idle": float(idle.sum()),
        "reward": sum(row.reward for row in rows if row.reward is not None),
        "rewarded": sum(row.reward is not None for row in rows),
    }


def _means(sums: Counter[str]) -> Row:
    count = sums["completions"]
    row = {
        "completions/mean_length": sums["length"] / count,
        "completions/zero_advantage": sums["idle"] / count,
    }
    if sums["rewarded"]:
        row["reward"] = sums["reward"] / sums["rewarded"]
    return row
