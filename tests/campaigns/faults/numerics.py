"""Random tensors against the reference answers, for every method that has one.

A seed is one batch for each variant: `ROWS` tensors of four tokens, whose log-ratios, old
log-probabilities, advantages and divergences come from everyday values and from the ends of the
range together, in float64. Gradient and kept flags of every token have to be those of
`oracle`; where one is not, `assert_agrees_with_oracle` decides, which knows how far a rounding may
tip a token over an edge.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import method_cases
import numpy as np
import oracle
import test_every_method
import torch
from numpy.typing import NDArray

import trustclip as tc

from .runs import LostError, played

Floats = NDArray[np.float64]

#: Tensors of one batch, and tokens of each.
ROWS, TOKENS = 10_000, 4
#: What a number may differ by, relative to the size of its row.
TOLERANCE = 1e-10
KNOWN = [
    test_every_method.of_the_token(method)
    for method in method_cases.ALL
    if method_cases.known(method) and method.statistics_over is None
]


class Dice:
    """Random numbers for every token of a batch.

    Args:
      seed: of the batch.
      rows: its tensors.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self._random, self._shape = np.random.default_rng(seed), (rows, TOKENS)

    def _uniform(self, low: float, high: float) -> Floats:
        return self._random.uniform(low, high, self._shape)

    def _exponential(self, scale: float) -> Floats:
        return self._random.exponential(scale, self._shape)

    def _sign(self) -> Floats:
        return self._random.choice([-1.0, 1.0], self._shape)

    def _one_of(self, *columns: Floats | float) -> Floats:
        """For every token one of the columns."""
        chosen = self._random.integers(len(columns), size=self._shape)
        return np.choose(chosen, [np.broadcast_to(c, self._shape) for c in columns])

    def log_ratio(self) -> Floats:
        """Near 0, about the usual bounds, and far outside: ratios are squared up to e^80."""
        return self._sign() * self._one_of(
            0.0, self._exponential(0.2), self._uniform(0, 1), self._uniform(0, 8),
            10 ** self._uniform(-12, 0), self._uniform(8, 39),
        )  # fmt: skip

    def logp_old(self) -> Floats:
        """From a probability of nearly one to one that no sampler draws."""
        return -self._one_of(
            self._exponential(1), self._uniform(1e-3, 30), 10 ** self._uniform(-6, 0),
            self._uniform(30, 300),
        )  # fmt: skip

    def advantage(self) -> Floats:
        """None, usual ones, and those of a broken reward."""
        sizes = (0.0, 1.0, self._uniform(0, 5), 10 ** self._uniform(-30, 3))
        return self._sign() * self._one_of(*sizes)

    def divergence(self) -> Floats:
        """About the usual thresholds, and far from them."""
        return self._one_of(0.0, self._uniform(0, 0.2), 10 ** self._uniform(-12, 3))


def drawn(seed: int, rows: int = ROWS) -> Callable[[tc.Method], tc.TokenBatch]:
    """The batch of a seed, with what a method asks for."""
    dice = Dice(seed, rows)
    x, old, a = map(torch.from_numpy, (dice.log_ratio(), dice.logp_old(), dice.advantage()))
    kls = {name: torch.from_numpy(dice.divergence()) for name in ("kl_old_new", "kl_new_old")}

    def batch(method: tc.Method) -> tc.TokenBatch:
        found = method_cases.batch_for(method, old + x, old, a, torch.ones_like(x).bool())
        own = {name: kl.clone() for name, kl in kls.items() if name in method.requires}
        return dataclasses.replace(found, **own)

    return batch


def doubtful(method: tc.Method, batch: tc.TokenBatch) -> list[int]:
    """Rows in which the library and the reference differ."""
    name, params = method.name, method.to_dict()
    ((tokens, _),) = test_every_method.tokens_of(method, batch)
    with np.errstate(all="ignore"):
        kept = oracle.kept(name, params, tokens)
        want = oracle.gradient(name, params, tokens)
    got = tc.coefficient(method, batch).numpy()
    size = np.maximum(np.exp(tokens.x), 1.0).max(axis=1, keepdims=True)
    size = size * np.maximum(np.abs(tokens.advantage), 1.0).max(axis=1, keepdims=True)
    near = np.abs(got - want) <= TOLERANCE * (size + np.abs(want))
    same = method.surrogate(batch).kept.numpy() == kept
    return np.flatnonzero(~(near & same).all(axis=1)).tolist()


class Numerics:
    """Batches of random tensors for every variant."""

    operations = 0

    def __init__(self, rows: int = ROWS) -> None:
        self._rows = rows
        self.counts: Counter[str] = Counter()

    def play(self, seed: int) -> list[str]:
        """One batch for each variant."""
        make = drawn(seed, self._rows)
        for method in KNOWN:
            batch = make(method)
            for row in doubtful(method, batch):
                self._decide(method, method_cases.changed(batch, lambda v, r=row: v[r : r + 1]))
            self.counts["tensors"] += self._rows
            self.counts["tokens"] += self._rows * TOKENS
        self.counts["tensors of each variant"] += self._rows
        return []

    def _decide(self, method: tc.Method, row: tc.TokenBatch) -> None:
        """Whether a rounding explains the difference in one tensor."""
        self.counts["on an edge"] += 1
        tolerance = TOLERANCE * max(1.0, row.advantages.abs().max().item())
        try:
            test_every_method.assert_agrees_with_oracle(method, row, tolerance)
        except (AssertionError, ArithmeticError, ValueError) as error:
            raise LostError(f"{method_cases.label(method)}: {str(error)[:1500]}") from error


def campaign(seeds: Iterable[int], rows: int = ROWS) -> dict[str, Any]:
    """Play every seed; see `faults.runs.campaign`."""
    return {"operations of variants": len(KNOWN), **played(seeds, Numerics(rows))}
