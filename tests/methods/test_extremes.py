"""Everyday tensors and the ends of the range, in one sequence: every method against its rule."""

import contextlib
import dataclasses
import math

import method_cases
import numpy as np
import torch
from test_every_method import assert_agrees_with_oracle, of_the_token

import trustclip as tc

ROWS, TOKENS = 40, 4
KNOWN = [
    of_the_token(method)
    for method in method_cases.ALL
    if method_cases.known(method) and method.statistics_over is None
]


class Dice:
    """Random numbers for every token of a batch."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def uniform(self, low: float, high: float) -> np.ndarray:
        return self._random.uniform(low, high, (ROWS, TOKENS))

    def sign(self) -> np.ndarray:
        return self._random.choice([-1.0, 1.0], (ROWS, TOKENS))

    def one_of(self, *columns: np.ndarray | float) -> torch.Tensor:
        """For every token one of the columns."""
        chosen = self._random.integers(len(columns), size=(ROWS, TOKENS))
        all_of = [np.broadcast_to(column, (ROWS, TOKENS)) for column in columns]
        return torch.from_numpy(np.choose(chosen, all_of))


def edges(method: tc.Method) -> list[float]:
    """How far the ends of its interval are from 0, where they are the same for every token."""
    with contextlib.suppress(ValueError):
        ends = [end for end in method.log_interval() if isinstance(end, float)]
        return [abs(end) for end in ends if math.isfinite(end)]
    return []


@method_cases.each(KNOWN)
def test_agrees_with_the_oracle_at_the_ends_of_the_range(method: tc.Method) -> None:
    """Log-ratios to 39, probabilities to e^-300, advantages from 1e-30 to 1e3, in float64."""
    for largest in (1.0, 1e3):
        dice = Dice(0)
        small, usual, far = 10 ** dice.uniform(-12, 0), dice.uniform(0, 1), dice.uniform(0, 8)
        near = [end * dice.uniform(0.98, 1.02) for end in edges(method)]
        sizes = dice.one_of(0.0, small, usual, far, dice.uniform(8, 39), *near)
        x = torch.from_numpy(dice.sign()) * sizes
        likely, rare = dice.uniform(1e-3, 30), dice.uniform(30, 300)
        old = -dice.one_of(10 ** dice.uniform(-6, 0), likely, rare)
        share = dice.one_of(0.0, 1.0, dice.uniform(0, 1), 10 ** dice.uniform(-30, 0))
        advantages = torch.from_numpy(dice.sign()) * largest * share
        mask = torch.ones_like(x, dtype=torch.bool)
        batch = method_cases.batch_for(method, old + x, old, advantages, mask)
        divergences = {
            name: dice.one_of(0.0, dice.uniform(0, 0.2), 10 ** dice.uniform(-12, 3))
            for name in ("kl_old_new", "kl_new_old")
            if name in method.requires
        }
        assert_agrees_with_oracle(
            method, dataclasses.replace(batch, **divergences), 1e-10 * largest
        )
