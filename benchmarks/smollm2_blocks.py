"""The finished blocks of the runs with SmolLM2, and the tests of docs/smollm2-plan.md on them.

A block is a seed whose eight runs are all there; others are left out. One ruler: every verdict
follows from p-values after Holm's correction. Intervals are 95 % and uncorrected, but for those
that are called corrected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trustclip.stats import Difference, Interval, holm
from trustclip.stats.confidence import RunSummary
from trustclip.stats.differences import paired_runs
from trustclip_lab.stats.equivalence import Contrast, contrasts, sign_flip_p

ARMS = ("atr", "clip", "mirror", "none")
OTHERS = ARMS[1:]
GENERATIONS, COMPLETIONS = 16, 64
#: Of the primary metric.
FIRST = 4
#: The smallest difference of areas that would matter.
MARGIN = 0.03
#: The score at which entropies are compared, and by how much a collapsed run is below its best.
EQUAL, COLLAPSED = 0.5, 0.1

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """The finished blocks. Arrays have the shape [arms, rates, seeds, ...].

    Args:
      seeds: of the blocks.
      rates: learning rates, the lower one first.
      right: share of right answers in each generation, 0 in those that a run did not reach.
      entropy: of the policy in each generation, nats; nan where there is none.
      gated: share of tokens cut, mean over generations.
      k3: to the policy of the generation, nats, mean over generations.
      start: share of right answers to held-out problems before the first update.
      end: the same after the last.
      alike_start: share of held-out problems with four equal answers, all right or all wrong,
        before the first update.
      alike: the same after the last.
      early: as `k3`, mean over generations 1 to 3.
    """

    seeds: list[int]
    rates: list[float]
    right: Numbers
    entropy: Numbers
    gated: Numbers
    k3: Numbers
    start: Numbers
    end: Numbers
    alike_start: Numbers
    alike: Numbers
    early: Numbers

    def first(self, count: int) -> "Blocks":
        """The first blocks alone."""
        cut = {one.name: getattr(self, one.name)[:, :, :count] for one in fields(self)[2:]}
        return replace(self, seeds=self.seeds[:count], **cut)

    @property
    def area(self) -> Numbers:
        """Share of right answers in the rollouts of generations 4 to 16."""
        return self.right[..., FIRST - 1 :].mean(axis=-1)

    @property
    def collapsed(self) -> NDArray[np.bool_]:
        """Whether the last three generations are far below the best three."""
        return np.asarray(self._best_three - self.right[..., -3:].mean(axis=-1) >= COLLAPSED)

    @property
    def collapsed_by_chance(self) -> Numbers:
        """How likely a run's own scores, in random order, would make it collapsed."""
        last = np.array(list(combinations(range(GENERATIONS), 3)))
        gap = self._best_three[..., None] - self.right[..., last].mean(axis=-1)
        return np.asarray((gap >= COLLAPSED).mean(axis=-1))

    @property
    def _best_three(self) -> Numbers:
        return np.asarray(np.sort(self.right, axis=-1)[..., -3:].mean(axis=-1))

    @property
    def entropy_at_equal_score(self) -> Numbers:
        """Entropy where the score first passes 50 %, interpolated; nan where it never does."""
        found = np.full(self.end.shape, np.nan)
        for place in np.ndindex(*found.shape):
            score, entropy = self.right[place], self.entropy[place]
            above = np.flatnonzero((score[1:] >= EQUAL) & (score[:-1] < EQUAL))
            if len(above):
                i = above[0]
                share = (EQUAL - score[i]) / (score[i + 1] - score[i])
                found[place] = entropy[i] + share * (entropy[i + 1] - entropy[i])
        return found

    def minus(self, values: Numbers, arm: str) -> Numbers:
        """`atr` - an arm in each block, by rate. Shape [rates, seeds]."""
        return np.asarray(values[0] - values[ARMS.index(arm)])


def read(folder: Path) -> Blocks:
    """The finished blocks of the tables in a folder.

    Raises:
      ValueError: there is none.
    """
    generations = pq.read_table(folder / "generations.parquet").to_pylist()
    answers = pq.read_table(folder / "answers.parquet").to_pylist()
    rates = sorted({row["rate"] for row in generations})
    there = {(row["arm"], row["rate"], row["seed"]) for row in answers if row["update"]}
    seeds = sorted({row["seed"] for row in answers})
    whole = [
        seed for seed in seeds if all((arm, rate, seed) in there for arm in ARMS for rate in rates)
    ]
    if not whole:
        raise ValueError(f"{folder}: no seed has a finished run of every arm at every rate.")
    shape = (len(ARMS), len(rates), len(whole))
    by_generation: dict[str, Numbers] = {
        name: np.full((*shape, GENERATIONS), np.nan) for name in ("right", "entropy", "gated", "k3")
    }
    by_generation["right"][:] = 0.0

    def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return ARMS.index(row["arm"]), rates.index(row["rate"]), whole.index(row["seed"])

    of_blocks = [row for row in generations if row["arm"] in ARMS and row["seed"] in whole]
    for row in of_blocks:
        at = (*place(row), row["generation"] - 1)
        by_generation["right"][at] = row["right"] / COMPLETIONS
        for name in ("entropy", "gated", "k3"):
            if row[name] is not None:
                by_generation[name][at] = row[name]
    # [before or after, right or samples or problems with equal answers or problems, arms, ...]
    counts = np.zeros((2, 4, *shape))
    for row in answers:
        if row["arm"] in ARMS and row["seed"] in whole:
            one = row["right"], row["samples"], row["right"] in (0, row["samples"]), 1
            counts[(int(row["update"] > 0), slice(None), *place(row))] += one
    start, end = counts[:, 0] / counts[:, 1]
    alike_start, alike = counts[:, 2] / counts[:, 3]
    return Blocks(
        seeds=whole,
        rates=rates,
        right=by_generation["right"],
        entropy=by_generation["entropy"],
        gated=mean(by_generation["gated"]),
        k3=mean(by_generation["k3"]),
        start=start,
        end=end,
        alike_start=alike_start,
        alike=alike,
        early=mean(by_generation["k3"][..., : FIRST - 1]),
    )


def there_are(folder: Path) -> Blocks | None:
    """The finished blocks of a folder; None where there are fewer than the two of an interval."""
    if not (folder / "answers.parquet").exists():
        return None
    try:
        blocks = read(folder)
    except ValueError:
        return None
    return blocks if len(blocks.seeds) > 1 else None


def mean(values: Numbers) -> Numbers:
    """Mean over the last axis of the values that are there; nan where none is."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.asarray(np.where(known.any(axis=-1), total, np.nan) / known.sum(axis=-1).clip(1))


@dataclass(frozen=True)
class Judged(Contrast):
    """A contrast of blocks, and what else its verdict needs.

    Args:
      corrected: its interval at the level that excludes 0 exactly where `p_holm` is below 5 %.
      flips: exact p of "no difference" by the signs of the blocks.
      flips_holm: the same, corrected over the contrasts.
      below: blocks in which the difference is below 0.
    """

    corrected: Interval
    flips: float
    flips_holm: float
    below: int

    @property
    def word(self) -> str:
        """The conclusion, as the plan calls it where there is none."""
        return "open" if self.conclusion == "inconclusive" else self.conclusion


def family(differences: Sequence[Numbers]) -> dict[str, Judged]:
    """`atr` - each other arm, with Holm's correction over the three.

    Args:
      differences: of each contrast, by block.
    """
    summaries = [RunSummary.of(d) for d in differences]
    exact = [sign_flip_p(d) for d in differences]
    found = {}
    for i, one in enumerate(contrasts(summaries, MARGIN)):
        level = 1 - 0.05 * one.difference.p / one.p_holm
        found[OTHERS[i]] = Judged(
            **vars(one),
            corrected=summaries[i].interval(level),
            flips=exact[i],
            flips_holm=float(holm(exact)[i]),
            below=int((differences[i] < 0).sum()),
        )
    return found


def tested(blocks: Blocks) -> dict[str, Judged]:
    """The three contrasts of the area over both rates."""
    return family([blocks.minus(blocks.area, arm).mean(axis=0) for arm in OTHERS])


def ends(blocks: Blocks) -> dict[str, Judged]:
    """The same of the end, a family of its own."""
    return family([blocks.minus(blocks.end, arm).mean(axis=0) for arm in OTHERS])


def interactions(blocks: Blocks) -> dict[str, Judged]:
    """By how much each contrast of the area is larger at the higher rate, a family of its own."""
    each = [blocks.minus(blocks.area, arm) for arm in OTHERS]
    return family([d[-1] - d[0] for d in each])


def learned(blocks: Blocks) -> NDArray[np.bool_]:
    """Whether the end is above the start, with Holm's correction over all arms and rates."""
    gain = blocks.end - blocks.start
    every = [paired_runs(RunSummary.of(d)) for d in gain.reshape(-1, len(blocks.seeds))]
    told = holm([one.p for one in every]).reshape(gain.shape[:2]) <= 0.05
    return np.asarray(told & (gain.mean(axis=-1) > 0))


def paired(differences: Numbers) -> Difference:
    """Student's interval of differences of blocks."""
    return contrasts([RunSummary.of(differences)], MARGIN)[0].difference


def said(blocks: Blocks) -> dict[str, str]:
    """What the plan has fixed to say of each contrast."""
    by_rate, end = interactions(blocks), ends(blocks)
    return {
        arm: _said(one, by_rate[arm], end[arm].difference.value)
        for arm, one in tested(blocks).items()
    }


def _said(one: Contrast, by_rate: Contrast, end: float) -> str:
    tuning = "; tuning: it depends on the rate" if by_rate.p_holm < 0.05 else ""
    if one.conclusion == "larger":
        same = "confirmed" if end > 0 else "open: the end has the other sign"
        return same + tuning
    if one.conclusion == "inconclusive":
        return "open" + tuning
    return f"refuted ({one.conclusion})" + tuning


def arena_said(blocks: Blocks) -> dict[str, str]:
    """Whether the arena's predictions hold, by arm; ``"rise"``: none, more at the higher rate."""
    found = tested(blocks) | {"rise": interactions(blocks)["none"]}
    bounds = {"clip": (0.0, 0.02), "none": (0.0, 1.0), "rise": (0.0, 2.0)}
    return {name: held(found[name].corrected, *between) for name, between in bounds.items()}


def held(found: Interval, low: float, high: float) -> str:
    """Whether a prediction holds: all of the interval is within what was predicted, or none."""
    if low <= found.low and found.high <= high:
        return "holds"
    return "does not hold" if found.high < low or found.low > high else "open"
