"""A table of the arena whose truth is known: effects planted in synthetic runs."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from arena_analysis import Runs

#: Constraint -> points above `plain` at the end, by planting.
EFFECTS = {"plain": 0.0, "twin": 0.0, "close": 0.002, "better": 0.03, "none": -0.05}
TASKS = {"chain": 0.45, "needle": 0.55, "many": 0.7}
DEPTHS = (4, 16, 64)
WIDTHS = (0.02, 0.05, 0.1, 0.2, 0.4)
RATES = (0.001, 0.002, 0.004)
GENERATIONS = 20


def table(seeds: int = 64, effects: Mapping[str, float] = EFFECTS, tuning_seeds: int = 4) -> Runs:
    """Runs of a main design: `twin` is `plain` to the bit, `none` collapses one time in five.

    Every seed of a task has a problem of its own, some 8 points harder or easier, that all
    constraints share; what is left differs by 2 points from run to run.
    """
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    shared = rng.normal(0, 0.08, (len(TASKS), seeds + tuning_seeds))
    for name, effect in effects.items():
        noise = np.random.default_rng(1 if name in ("plain", "twin") else rng.integers(2**31))
        for (t, task), depth in itertools.product(enumerate(TASKS), DEPTHS):
            for seed in range(seeds):
                end = TASKS[task] + shared[t, seed] + effect + noise.normal(0, 0.02)
                fell = name == "none" and noise.random() < 0.2
                rows.append(row(name, task, depth, 100 + seed, end - 0.3 * fell, fell))
            for width, rate, seed in itertools.product(WIDTHS, RATES, range(tuning_seeds)):
                lost = 0.1 * (np.log2(width / 0.1) / 2) ** 2 + 0.02 * abs(np.log2(rate / 0.002))
                end = TASKS[task] + shared[t, seeds + seed] + effect - lost
                trial = row(name, task, depth, seed, end, False)
                rows.append({**trial, "stage": "tuning", "width": width, "learning_rate": rate,
                             "label": f"{name}-{width}",
                             "gated": 0.5 / (1 + 20 * width), "k3": 0.3 * width})  # fmt: skip
    return Runs({column: [one[column] for one in rows] for column in rows[0]})


def row(
    constraint: str, task: str, depth: int, seed: int, end: float, fell: bool
) -> dict[str, Any]:
    """One test run."""
    return {
        "stage": "test", "design": "main", "task": task, "depth": depth, "constraint": constraint,
        "width": 0.1, "label": f"{constraint}-0.1", "learning_rate": 0.002, "seed": seed,
        "start": 0.2, "end": end, "best": end + 0.3 * fell, "area": 0.2 + 0.7 * (end - 0.2),
        "collapsed": int(fell), "fell": 12.0 if fell else np.nan,
        "time": 8.0 if end > 0.4 else np.nan, "passk": min(end + 0.1, 1.0), "entropy": 0.8,
        "k3": 0.03, "gated": 0.1, "seconds": 0.3, "generations": GENERATIONS,
    }  # fmt: skip
