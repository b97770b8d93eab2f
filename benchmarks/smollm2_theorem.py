"""Part B of docs/smollm2-plan.md: what a generation under each arm does, and Theorem 5.2 on it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy import stats
from smollm2_blocks import ARMS, GENERATIONS, OTHERS, Numbers, there_are

from trustclip.stats import holm
from trustclip.stats.confidence import RunSummary
from trustclip.support.text import markdown_table

#: Three generations of eight seeds.
STATES = 24

State = dict[str, dict[str, Any]]
States = Mapping[tuple[int, int], State]


def whole_states(folder: Path) -> States:
    """Rows of part B by arm, of every state (seed, generation) that has all of its arms."""
    path = folder / "branches.parquet"
    states: dict[tuple[int, int], State] = defaultdict(dict)
    for row in pq.read_table(path).to_pylist() if path.exists() else []:
        states[row["seed"], row["generation"]][row["arm"]] = row
    return {at: arms for at, arms in sorted(states.items()) if {"state", *ARMS} <= arms.keys()}


def change(states: States, name: str, arm: str, other: str) -> str:
    """An arm less another: mean over seeds of the means over a seed's states, mnat."""
    by_seed = defaultdict(list)
    for (seed, _), arms in states.items():
        by_seed[seed].append(1e3 * (arms[arm][name] - arms[other][name]))
    each = RunSummary.of([float(np.mean(of)) for of in by_seed.values()]).interval()
    return f"{each.value:+.2f} [{each.low:.2f}, {each.high:.2f}]".replace("-", "−")


def branches(folder: Path) -> str:
    """Part B: what one generation under each arm does to one state, and Theorem 5.2 on it."""
    states = whole_states(folder)
    if len(seeds := {seed for seed, _ in states}) < 2:
        return f"{len(states)} of the {STATES} planned states are measured; two seeds are needed."
    names = ("entropy", "kl_old_new", "kl_new_old", "solutions")
    pairs = {f"`{arm}`": (arm, "state") for arm in ARMS}
    pairs |= {f"`atr` − `{arm}`": ("atr", arm) for arm in OTHERS}
    table = markdown_table(
        ["arm", "change of entropy, mnat", "KL(old ‖ new), mnat", "KL(new ‖ old), mnat",
         "change of the log-probability of worked solutions, mnat"],
        [[label, *(change(states, name, *pair) for name in names)]
         for label, pair in pairs.items()],
    )  # fmt: skip
    gap = [abs(a["atr"]["entropy"] - a["mirror"]["entropy"]) for a in states.values()]
    apart = [a["atr"]["only_atr"] + a["atr"]["only_mirror"] for a in states.values()]
    blocks = there_are(folder)
    agreed = {
        seed: arms["state"]["alike"]
        for (seed, _), arms in states.items()
        if blocks is None or seed in blocks.seeds
    }
    parted = [f"seed {seed} in {n}" for seed, n in agreed.items() if n < GENERATIONS]
    first = f"; {len(seeds) - len(agreed)} more are first made here"
    lines = [
        f"{len(states)} of the {STATES} planned states, of {len(seeds)} seeds. Of the runs made "
        f"anew, {len(agreed) - len(parted)} of {len(agreed)} score as the committed ones in all "
        f"{GENERATIONS} generations{', '.join(['', *parted])}"
        f"{first if len(agreed) < len(seeds) else ''}.",
        table,
        f"The gates of `atr` and of `mirror` treat {np.mean(apart):.1f} tokens of a generation "
        f"differently ({min(apart)} to {max(apart)}); the two entropies then differ by "
        f"{1e3 * np.mean(gap):.1f} mnat, mean of the sizes.",
        farther(states),
        *theorem(states),
    ]
    return "\n\n".join(lines)


def farther(states: States) -> str:
    """The difference in entropy of the two, beside that in how far they move."""
    entropy, moved = (change(states, name, "atr", "mirror") for name in ("entropy", "kl_old_new"))
    return (
        f"After a generation from one state `atr` − `mirror` is {entropy} mnat in entropy, and "
        f"{moved} mnat in KL(old ‖ new). So the two do not move equally far, and a part of the "
        "difference in entropy may be the size of the step."
    )


def theorem(states: States) -> list[str]:
    """A paragraph on each form of Theorem 5.2: its signs beside what chance gives, its size."""
    gap = np.array([arms["atr"]["entropy"] - arms["mirror"]["entropy"] for arms in states.values()])
    forms = {"stated": "as stated", "corrected": "with π(a), as derived"}
    predicted = {name: np.array([arms["atr"][name] for arms in states.values()]) for name in forms}
    known = [name for name, values in predicted.items() if (gap * values != 0).sum() >= 3]
    found = {name: Signs.of(predicted[name], gap) for name in known}
    coin, base = (
        dict(zip(known, holm([getattr(found[name], p) for name in known]).tolist(), strict=True))
        for p in ("p_coin", "p_base")
    )
    lines = []
    for name, words in forms.items():
        if name not in found:
            lines.append(f"Theorem 5.2, {words}: too few states in which the two gates differ.")
            continue
        signs, right = found[name], gap * predicted[name] > 0
        guessed = signs.right <= signs.total / 2 or coin[name] > 0.05
        verdict = ("above", "not told from")
        by_seed, by_generation = (
            ", ".join(str(sum(right[[at[place] == one for at in states]]))
                      for one in sorted({at[place] for at in states}))
            for place in (0, 1)
        )  # fmt: skip
        lines.append(
            f"**Theorem 5.2, {words}: {verdict[guessed]} a coin, "
            f"{verdict[base[name] > 0.05]} its base rate.** The sign of `atr` − `mirror` in "
            f"entropy is right in {signs.right} of {signs.total} states. A coin would be right in "
            f"{signs.total / 2:g} (p {coin[name]:.2g}). The same predictions, shuffled over the "
            f"states, would be right in {signs.expected:.1f} (p {base[name]:.2g}; both p are "
            f"Holm's, over the two forms). Right by seed: {by_seed}; by generation: "
            f"{by_generation}. The correlation is "
            f"{correlated(predicted[name], gap, [seed for seed, _ in states])}, seeds resampled. "
            f"At the tokens' own places "
            f"{sum(arms['atr'][f'{name}_right'] for arms in states.values())} of "
            f"{sum(arms['atr']['tokens'] for arms in states.values())} tokens have its sign."
        )
    return lines


class Signs(NamedTuple):
    """Right signs of so many, what guessing gives (p), and the same in random order (mean, p)."""

    right: int
    total: int
    p_coin: float
    expected: float
    p_base: float

    @classmethod
    def of(cls, predicted: Numbers, came: Numbers) -> "Signs":
        """The signs of predictions, and of what came, where neither is 0."""
        known = predicted * came != 0
        up, more = predicted[known] > 0, came[known] > 0
        total, both, right = len(up), int((up & more).sum()), int((up == more).sum())
        order: Any = stats.hypergeom(total, int(up.sum()), int(more.sum()))  # of `both`
        expected = right + 2 * (order.mean() - both)
        coin: Any = stats.binomtest(right, total)
        return cls(right, total, coin.pvalue, expected, order.sf(both - 1))


def correlated(x: Numbers, y: Numbers, seeds: Sequence[int]) -> str:
    """Pearson's correlation, with an interval from 10,000 resamples of the seeds.

    Percentiles of few seeds are too narrow, so they are taken further out (Hesterberg, 2015).
    """
    terms = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)
    sums = np.array([terms[np.array(seeds) == seed].sum(axis=0) for seed in sorted(set(seeds))])
    count = len(sums)

    def of(sums: Numbers) -> Numbers:
        n, a, b, aa, bb, ab = sums.T
        return np.asarray((n * ab - a * b) / np.sqrt((n * aa - a * a) * (n * bb - b * b)))

    chosen = np.random.default_rng(0).integers(count, size=(10_000, count))
    tail = stats.norm.cdf(sqrt(count / (count - 1)) * stats.t.ppf(0.025, count - 1))
    low, high = np.quantile(of(sums[chosen].sum(axis=1)), [tail, 1 - tail])
    return f"{of(sums.sum(axis=0)):+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
