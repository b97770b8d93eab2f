"""Answers to draw statistics from, and the two-way layout written out."""

import numpy as np


def rows(*counts: int, k: int = 8) -> np.ndarray:
    """One row of k samples for each count of right answers."""
    return np.array([[1] * c + [0] * (k - c) for c in counts])


def random_answers(seed: int, problems: int, samples: int = 8, mean: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    chances = rng.beta(mean, 1 - mean, (problems, 1))
    return (rng.random((problems, samples)) < chances).astype(int)


def crossed_seeds(seed: int, seeds: int, problems: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    chances = rng.beta(2, 2, problems) * rng.uniform(0.6, 1, (seeds, 1))
    return (rng.random((seeds, problems, 8)) < chances[..., None]).astype(int)


def variance_parts(arm: np.ndarray) -> tuple[float, float, float]:
    """V_problem, V_seed, V_cross of [seeds, problems] by a two-way layout's sums of squares."""
    seeds, problems = arm.shape
    grand = arm.mean()
    of_problems = sum((arm[:, i].mean() - grand) ** 2 for i in range(problems)) / (problems - 1)
    of_seeds = sum((arm[s].mean() - grand) ** 2 for s in range(seeds)) / (seeds - 1)
    rest = 0.0
    for s in range(seeds):
        for i in range(problems):
            rest += (arm[s, i] - arm[s].mean() - arm[:, i].mean() + grand) ** 2
    rest /= (seeds - 1) * (problems - 1)
    return of_problems / problems, of_seeds / seeds, rest / (seeds * problems)
