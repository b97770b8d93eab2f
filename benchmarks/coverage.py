"""Do the intervals cover and the tests keep their size? A simulation; prints a Markdown table.

Problems have a difficulty drawn from a Beta distribution and are answered K = 8 times unless
stated otherwise, so the truth is known exactly. "concentration" is alpha + beta: the smaller, the
more problems are always or never solved. Fits to published Mean@8 / Pass@8 pairs of 1.7B and 8B
models give 0.3 to 0.85.

Rows without a target show what no interval from few runs can promise: runs that collapse.

Run: python benchmarks/coverage.py --repetitions 1000
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from scipy.special import betaln

from trustclip.stats import (
    RunSummary,
    Tally,
    holm,
    mean_interval,
    paired_difference,
    pass_interval,
    rate_interval,
    required,
    welch,
)
from trustclip.stats.scores import Floats

SAMPLES = 8
MEANS = (0.09, 0.13, 0.5)
SIZES = (30, 83, 143, 500)
CONCENTRATIONS = (0.7, 1.9)
BENCHMARKS = {"amc23": (83, 0.42), "aime24": (30, 0.13), "aime25": (30, 0.14)}
STRATA = [name for name, (problems, _) in BENCHMARKS.items() for _ in range(problems)]
RESAMPLES = 1000

Rng = np.random.Generator


@dataclass(frozen=True)
class Row:
    """One line of the table; `target` bounds `measured`, `naive` is the usual shortcut's figure.

    Without a target, the row is a caution.
    """

    what: str
    setting: str
    measured: float
    target: tuple[float, float] | None
    naive: float | None = None

    @property
    def met(self) -> bool:
        low, high = self.target or (0.0, 1.0)
        return low <= round(self.measured, 3) <= high


def coverage_target(problems: int) -> tuple[float, float]:
    return (0.93, 0.97) if problems >= 143 else (0.91, 1.0)


def difficulty(rng: Rng, mean: float, problems: int, concentration: float) -> Floats:
    return rng.beta(mean * concentration, (1 - mean) * concentration, problems)


def answers(rng: Rng, chances: Floats, samples: int = SAMPLES) -> Tally:
    chances = np.atleast_2d(chances)
    return Tally(rng.binomial(samples, chances), np.full(chances.shape, samples))


def pass_truth(mean: float, concentration: float, k: int) -> float:
    a, b = mean * concentration, (1 - mean) * concentration
    return 1 - exp(betaln(a, b + k) - betaln(a, b))


def inside(low: float, truth: float, high: float) -> bool:
    return low <= truth <= high


def naive_covers(counts: Tally, truth: float, strata: list[str] | None = None) -> bool:
    """The shortcut: every answer an independent coin."""
    names = np.array(strata or [""] * counts.right.shape[1])
    shares, variances = [], []
    for name in dict.fromkeys(names):
        right, total = (c[:, names == name].sum() for c in (counts.right, counts.total))
        shares.append(right / total)
        variances.append(shares[-1] * (1 - shares[-1]) / total)
    half = 1.96 * sqrt(sum(variances)) / len(shares)
    return bool(abs(np.mean(shares) - truth) <= half)


def rates(repetitions: int, trial: Callable[[], tuple[bool, ...]]) -> list[float]:
    return [float(x) for x in np.mean([trial() for _ in range(repetitions)], axis=0)]


def single_runs(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Mean@8, Pass@4 and Pass@8 of one run on one benchmark."""
    for concentration in CONCENTRATIONS:
        for n in SIZES:
            for mean in MEANS:
                truths = {k: pass_truth(mean, concentration, k) for k in (4, SAMPLES)}

                def trial(n=n, mean=mean, truths=truths, c=concentration) -> tuple[bool, ...]:
                    counts = answers(rng, difficulty(rng, mean, n, c))
                    of_mean = mean_interval(counts)
                    passes = {k: pass_interval(counts, k) for k in truths}
                    return (
                        naive_covers(counts, mean),
                        inside(of_mean.low, mean, of_mean.high),
                        *(inside(i.low, truths[k], i.high) for k, i in passes.items()),
                    )

                naive, of_mean, of_pass4, of_pass8 = rates(repetitions, trial)
                setting = f"n = {n}, mean {mean}, concentration {concentration}"
                target = coverage_target(n)
                yield Row("coverage of mean_interval", setting, of_mean, target, naive)
                yield Row("coverage of pass_interval, k = 4", setting, of_pass4, target)
                yield Row("coverage of pass_interval, k = 8", setting, of_pass8, target)


def macro_averages(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Three benchmarks, macro-averaged."""
    truth = float(np.mean([mean for _, mean in BENCHMARKS.values()]))
    for c in CONCENTRATIONS:

        def trial(c=c) -> tuple[bool, ...]:
            chances = [difficulty(rng, mean, n, c) for n, mean in BENCHMARKS.values()]
            counts = answers(rng, np.concatenate(chances))
            interval = mean_interval(counts, STRATA)
            covered = inside(interval.low, truth, interval.high)
            return naive_covers(counts, truth, STRATA), covered

        naive, covered = rates(repetitions, trial)
        yield Row(
            "coverage of mean_interval",
            f"macro-average of 83 + 30 + 30, concentration {c}",
            covered,
            coverage_target(143),
            naive,
        )


def pair(rng: Rng, chances: Floats, fresh: Floats, shared: float, gain: float) -> Floats:
    """Second model: the first one's chance with probability `shared`, else fresh; then a gain."""
    second = np.where(rng.random(chances.size) < shared, chances, fresh)
    return second + gain * (1 - second)


def paired_runs(rng: Rng, repetitions: int) -> Iterator[Row]:
    """The paired difference: coverage, and type I error where the truth is no gain."""
    for n in SIZES:
        for mean, shared, gain in [
            (0.09, 0.8, 0.0),
            (0.13, 1.0, 0.0),
            (0.13, 0.8, 0.0),
            (0.13, 0.8, 0.05),
            (0.5, 0.8, 0.0),
        ]:
            truth = gain * (1 - mean)

            def trial(n=n, m=mean, s=shared, g=gain, truth=truth) -> tuple[bool, ...]:
                a, fresh = difficulty(rng, m, n, 0.7), difficulty(rng, m, n, 0.7)
                first, second = answers(rng, a), answers(rng, pair(rng, a, fresh, s, g))
                gap = paired_difference(second, first, resamples=RESAMPLES)
                return inside(gap.low, truth, gap.high), gap.p <= 0.05

            covered, rejected = rates(repetitions, trial)
            setting = f"n = {n}, mean {mean}, {shared:.0%} of difficulties shared, gain {gain}"
            yield Row("coverage of paired_difference", setting, covered, coverage_target(n))
            if not gain:
                yield Row("type I of paired_difference", setting, rejected, (0, 0.06))


def paired_macro(rng: Rng, repetitions: int) -> Iterator[Row]:
    """The paired difference of macro-averages."""

    def trial() -> tuple[bool, ...]:
        parts = [
            (difficulty(rng, mean, n, 0.7), difficulty(rng, mean, n, 0.7))
            for n, mean in BENCHMARKS.values()
        ]
        a, fresh = (np.concatenate(side) for side in zip(*parts, strict=True))
        gap = paired_difference(
            answers(rng, pair(rng, a, fresh, 0.8, 0.0)),
            answers(rng, a),
            STRATA,
        )
        return inside(gap.low, 0.0, gap.high), gap.p <= 0.05

    covered, rejected = rates(repetitions, trial)
    setting = "macro-average of 83 + 30 + 30, 80% of difficulties shared"
    yield Row("coverage of paired_difference", setting, covered, coverage_target(143))
    yield Row("type I of paired_difference", setting, rejected, (0, 0.06))


def training_runs(rng: Rng, chances: Floats, seeds: int, effect: str) -> Tally:
    """Runs that differ as a whole (std 9 % of the mean) and by problem (std 9 %)."""
    shape = (seeds, 1)
    common = (
        np.clip(rng.normal(0, 0.087, shape), -0.26, 0.26)
        if effect == "normal"
        else rng.uniform(-0.15, 0.15, shape)
    )
    own = rng.uniform(-0.15, 0.15, (seeds, chances.size))
    return answers(rng, chances * (1 + common + own))


def several_seeds(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Crossed problems and training seeds; the naive figure leaves the seeds out.

    Differences get few degrees of freedom from few seeds, so they may cover more than 97 %. With
    effects of uniform shape, Student's interval of three bare effects covers 92.3 %, so there the
    target is 91 %.
    """
    settings = [(n, seeds, "normal") for n in (30, 143, 500) for seeds in (3, 5)]
    for n, seeds, effect in [*settings, (500, 3, "uniform")]:
        covered_target = coverage_target(n) if effect == "normal" else (0.91, 1.0)

        def trial(n=n, seeds=seeds, effect=effect) -> tuple[bool, ...]:
            a, fresh = (0.7 * difficulty(rng, 0.5, n, 0.7) for _ in range(2))
            first = training_runs(rng, a, seeds, effect)
            second = training_runs(rng, pair(rng, a, fresh, 0.9, 0.0), seeds, effect)
            interval = mean_interval(first)
            gap = paired_difference(second, first, resamples=RESAMPLES)
            naive = paired_difference(pooled(second), pooled(first), resamples=RESAMPLES)
            return (
                naive_covers(first, 0.35),
                inside(interval.low, 0.35, interval.high),
                inside(naive.low, 0.0, naive.high),
                inside(gap.low, 0.0, gap.high),
                naive.p <= 0.05,
                gap.p <= 0.05,
            )

        rate = rates(repetitions, trial)
        setting = f"n = {n}, {seeds} seeds a model, {effect} seed effects"
        yield Row("coverage of mean_interval", setting, rate[1], covered_target, rate[0])
        paired_target = (covered_target[0], 1.0)
        yield Row("coverage of paired_difference", setting, rate[3], paired_target, rate[2])
        yield Row("type I of paired_difference", setting, rate[5], (0, 0.06), rate[4])


def pooled(runs: Tally) -> Tally:
    """All seeds' answers as if from one run."""
    return Tally(runs.right.sum(axis=0, keepdims=True), runs.total.sum(axis=0, keepdims=True))


def run_tests(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Welch's test of 3 against 3 runs, and a family of 11 against one method under Holm."""
    for ratio in (1, 3):

        def trial(ratio=ratio) -> tuple[bool, ...]:
            a, b = rng.normal(size=3), ratio * rng.normal(size=3)
            gap = welch(RunSummary.of(a), RunSummary.of(b))
            wrong = welch(
                RunSummary(float(a.mean()), float(a.std()), 3),
                RunSummary(float(b.mean()), float(b.std()), 3),
            )
            return wrong.p <= 0.05, gap.p <= 0.05, inside(gap.low, 0.0, gap.high)

        naive, size, covered = rates(10 * repetitions, trial)
        setting = f"3 against 3 runs, std ratio {ratio}"
        yield Row("type I of welch (naive: population std)", setting, size, (0, 0.06), naive)
        yield Row("coverage of welch", setting, covered, (0.93, 1.0))

    def family() -> tuple[bool, ...]:
        ours, *others = (RunSummary.of(rng.normal(size=3)) for _ in range(12))
        p = np.array([welch(ours, other).p for other in others])
        return bool((p <= 0.05).any()), bool((holm(p) <= 0.05).any())

    naive, wrong = rates(repetitions, family)
    yield Row("family-wise error of holm", "11 baselines, 3 runs each", wrong, (0, 0.06), naive)


def edges(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Scores near 0 and 100 %, few answers a problem, and Pass@K near 1."""
    for n in (30, 83, 240):
        for mean in (0.005, 0.02, 0.98, 0.995):
            for k in (1, SAMPLES):

                def trial(n=n, mean=mean, k=k) -> tuple[bool, ...]:
                    interval = mean_interval(answers(rng, difficulty(rng, mean, n, 1.9), k))
                    return (inside(interval.low, mean, interval.high),)

                (covered,) = rates(repetitions, trial)
                setting = f"n = {n}, mean {mean}, K = {k}, concentration 1.9"
                yield Row("coverage of mean_interval, edge", setting, covered, (0.93, 1.0))
        for mean, c, k in ((0.5, 4, 32), (0.5, 1.9, SAMPLES), (0.9, 1.9, SAMPLES)):
            truth = pass_truth(mean, c, k)

            def passes(n=n, mean=mean, c=c, k=k, truth=truth) -> tuple[bool, ...]:
                interval = pass_interval(answers(rng, difficulty(rng, mean, n, c), k), k)
                return (inside(interval.low, truth, interval.high),)

            (covered,) = rates(repetitions, passes)
            setting = f"n = {n}, mean {mean}, Pass@{k} = {truth:.3f}, concentration {c}"
            yield Row("coverage of pass_interval, edge", setting, covered, (0.93, 1.0))


def collapses(rng: Rng, repetitions: int) -> Iterator[Row]:
    """One run in four ends at 30 % of its score: few runs may show no collapse at all."""
    for mean in (0.5, 0.9):
        truth = mean * (0.75 + 0.25 * 0.3)
        for seeds in (3, 5, 10):
            for n in (30, 83, 240):

                def trial(n=n, mean=mean, seeds=seeds, truth=truth) -> tuple[bool, ...]:
                    chances = difficulty(rng, mean, n, 1.9)
                    first, second = (
                        answers(rng, chances * np.where(rng.random((seeds, 1)) < 0.25, 0.3, 1.0))
                        for _ in range(2)
                    )
                    interval = mean_interval(first)
                    gap = paired_difference(second, first, same_seeds=True, resamples=RESAMPLES)
                    return inside(interval.low, truth, interval.high), gap.p <= 0.05

                covered, rejected = rates(repetitions, trial)
                setting = f"n = {n}, mean {mean}, {seeds} seeds"
                yield Row("coverage of mean_interval, collapse", setting, covered, None)
                yield Row("type I of paired_difference, collapse", setting, rejected, (0, 0.06))


def collapse_rates(rng: Rng, repetitions: int) -> Iterator[Row]:
    """The rate of collapse itself: its exact interval covers at least as often as it says."""
    for truth in (0.05, 0.25, 0.5):
        for runs in (3, 5, 10, 20):

            def trial(truth=truth, runs=runs) -> tuple[bool, ...]:
                interval = rate_interval(int(rng.binomial(runs, truth)), runs)
                return (inside(interval.low, truth, interval.high),)

            (covered,) = rates(repetitions, trial)
            setting = f"{runs} runs, {truth:.0%} collapse"
            yield Row("coverage of rate_interval", setting, covered, (0.94, 1.0))


def paired_by_seed(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Seeds that both models share: coverage of the difference, and its length against unpaired."""
    for seeds in (3, 5, 10):

        def trial(seeds=seeds) -> tuple[float, ...]:
            common = difficulty(rng, 0.5, 128, 1.9) + rng.normal(0, 0.08, (seeds, 1))
            first, second = (
                answers(rng, np.clip(common + rng.normal(0, 0.02, (seeds, 1)), 0, 1))
                for _ in range(2)
            )
            apart, together = (
                paired_difference(first, second, same_seeds=paired, resamples=RESAMPLES)
                for paired in (False, True)
            )
            shorter = (together.high - together.low) / (apart.high - apart.low)
            return inside(apart.low, 0, apart.high), inside(together.low, 0, together.high), shorter

        apart, together, shorter = np.mean([trial() for _ in range(repetitions)], axis=0).tolist()
        setting = f"n = 128, {seeds} seeds, shared seed std 8, own 2 points"
        yield Row(
            "coverage of paired_difference, same_seeds", setting, together, (0.94, 1.0), apart
        )
        yield Row("its length, share of the unpaired one", setting, shorter, None)


def unequal_seeds(rng: Rng, repetitions: int) -> Iterator[Row]:
    """One model noisy and one steady; and two that share what the seed decides."""
    noise = {
        "seed std 4 and 0.25 points": (0.0, 0.04, 0.0025),
        "shared seed std 8, own 2 points": (0.08, 0.02, 0.02),
    }
    for kind, (shared, *own) in noise.items():
        for seeds in (3, 5):
            for n in (30, 128):

                def trial(n=n, seeds=seeds, shared=shared, own=own) -> tuple[bool, ...]:
                    common = difficulty(rng, 0.5, n, 1.9) + rng.normal(0, shared, (seeds, 1))
                    first, second = (
                        answers(rng, np.clip(common + rng.normal(0, std, (seeds, 1)), 0, 1))
                        for std in own
                    )
                    return tuple(
                        paired_difference(
                            first, second, same_seeds=paired, resamples=RESAMPLES
                        ).p <= 0.05
                        for paired in (False, True)
                    )  # fmt: skip

                apart, together = rates(repetitions, trial)
                setting = f"n = {n}, {seeds} seeds, {kind}"
                target = (0, 0.06)
                yield Row("type I of paired_difference, seeds apart", setting, apart, target)
                yield Row("type I of paired_difference, same_seeds", setting, together, target)


def runs_of(rng: Rng, chances: Floats, seeds: int, spread: float, falls: float) -> Tally:
    """Runs that differ as a whole, and of which a share ends at 30 % of its score."""
    runs = np.clip(chances + rng.normal(0, spread, (seeds, 1)), 0, 1)
    return answers(rng, runs * np.where(rng.random((seeds, 1)) < falls, 0.3, 1.0))


def honest_runs(rng: Rng, repetitions: int) -> Iterator[Row]:
    """False differences of equal methods: collapses, unequal numbers of runs, noisy and steady."""
    cases = [
        (f"{n} pairs, {'half' if falls else 'none'} collapse", True, n, n, (0.05, 0.05), falls)
        for falls in (0.0, 0.5)
        for n in (2, 3, 5, 10)
    ]
    for few, many in ((2, 2), (3, 3), (5, 5), (2, 8), (3, 10), (3, 5)):
        apart = f"{few} against {many}"
        cases += [
            (f"{apart}, 20 % collapse", False, few, many, (0.05, 0.05), 0.2),
            (f"{apart}, noisy against steady", False, few, many, (0.08, 0.005), 0.0),
        ]
        if few < many:
            setting = f"{apart}, steady against noisy"
            cases.append((setting, False, few, many, (0.005, 0.08), 0.0))
    for setting, paired, n, m, (noisy, steady), falls in cases:

        def trial(
            n=n, m=m, noisy=noisy, steady=steady, falls=falls, paired=paired
        ) -> tuple[bool, ...]:
            chances = difficulty(rng, 0.5, 128, 1.9)
            first = runs_of(rng, chances, n, noisy, falls)
            second = runs_of(rng, chances, m, steady, falls)
            gap = paired_difference(first, second, same_seeds=paired, resamples=RESAMPLES)
            return gap.p <= 0.05, gap.low > 0 or gap.high < 0

        rejected, missed = rates(repetitions, trial)
        yield Row("type I of paired_difference, unlike runs", setting, rejected, (0, 0.06))
        yield Row("interval without 0, unlike runs", setting, missed, (0, 0.06))


def corners(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Equal methods where scores hardly vary, or the numbers of answers differ."""
    cases = {
        "99 % of problems always right, one run each": (0.99, 1, (8, 8)),
        "99 % of problems always wrong, one run each": (0.01, 1, (8, 8)),
        "K = 1, one run each": (0.5, 1, (1, 1)),
        "K = 16 against 2, one run each": (0.5, 1, (16, 2)),
        "K = 16 against 2, 3 runs each": (0.5, 3, (16, 2)),
    }
    for setting, (mean, seeds, samples) in cases.items():

        def trial(mean=mean, seeds=seeds, samples=samples) -> tuple[bool, ...]:
            chances = difficulty(rng, mean, 200, 0.01 if mean != 0.5 else 1.9)
            a, b = (
                answers(rng, np.clip(chances + rng.normal(0, 0.02, (seeds, 1)), 0, 1), k)
                if seeds > 1
                else answers(rng, chances, k)
                for k in samples
            )
            found = [
                paired_difference(a, b, k=k, same_seeds=seeds > 1, resamples=RESAMPLES).p <= 0.05
                for k in (None, min(samples))
            ]
            return *found, any(found)

        # Of one run each `compare` gives no verdict at all, so that there are no two of it.
        scores = ("Mean", f"Pass@{min(samples)}", *(["either"] if seeds > 1 else []))
        for score, rate in zip(scores, rates(repetitions, trial), strict=False):
            yield Row(
                "type I of paired_difference, corners", f"{setting}, {score}", rate, (0, 0.06)
            )


def many_arms(rng: Rng, repetitions: int) -> Iterator[Row]:
    """20 equal arms of 5 seeds: any verdict after Holm's correction; naive: without it."""

    def trial() -> tuple[bool, ...]:
        chances = difficulty(rng, 0.5, 100, 1.9)
        arms = [runs_of(rng, chances, 5, 0.03, 0.0) for _ in range(20)]
        p = [
            [paired_difference(a, arms[0], k=k, same_seeds=True, resamples=RESAMPLES).p
             for a in arms[1:]]
            for k in (None, SAMPLES)
        ]  # fmt: skip
        return bool((np.array(p) <= 0.05).any()), any((holm(one) <= 0.05).any() for one in p)

    naive, wrong = rates(max(repetitions // 4, 1), trial)
    setting = f"20 arms, 5 seeds, {max(repetitions // 4, 1)} repetitions, Mean or Pass"
    yield Row("any false verdict", setting, wrong, (0, 0.06), naive)


def families_by_run(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Runs, not methods, find families differently hard; naive: problems as the units."""
    strata = [("t", str(problem // 10)) for problem in range(200)]
    for spread in (0.5, 1.0):

        def trial(spread=spread) -> tuple[bool, ...]:
            base = np.repeat(rng.normal(0, 1, 20), 10) + rng.normal(0, 1, 200)
            a, b = (
                answers(rng, 1 / (1 + np.exp(-(base + np.repeat(own, 10, axis=1)))))
                for own in rng.normal(0, spread, (2, 3, 20))
            )
            aware, naive = (
                paired_difference(a, b, names, same_seeds=True, resamples=RESAMPLES).p <= 0.05
                for names in (strata, None)
            )
            return naive, aware

        naive, aware = rates(repetitions, trial)
        setting = f"run x family SD {spread} logit, 3 seeds"
        yield Row("type I of paired_difference, families", setting, aware, (0, 0.06), naive)


def families(rng: Rng, repetitions: int) -> Iterator[Row]:
    """20 families of 10 alike problems, which the methods find differently hard; naive: unaware."""
    strata = [("t", str(problem // 10)) for problem in range(200)]
    for spread in (0.5, 1.0):
        for seeds in (1, 5):

            def trial(spread=spread, seeds=seeds) -> tuple[bool, ...]:
                base = np.repeat(rng.normal(0, 1, 20), 10) + rng.normal(0, 1, 200)
                noise = 0.15 * (seeds > 1)
                a, b = (
                    answers(rng, 1 / (1 + np.exp(-(base + own + rng.normal(0, noise, (seeds, 1))))))
                    for own in np.repeat(rng.normal(0, spread, (2, 20)) / sqrt(2), 10, axis=1)
                )
                same = seeds > 1
                aware, naive = (
                    paired_difference(a, b, names, same_seeds=same, resamples=RESAMPLES)
                    for names in (strata, None)
                )
                return naive.p <= 0.05, aware.p <= 0.05, aware.low > 0 or aware.high < 0

            naive, rejected, missed = rates(repetitions, trial)
            setting = f"method x family SD {spread} logit, {seeds} seed{'s' * (seeds > 1)}"
            yield Row("type I of paired_difference, families", setting, rejected, (0, 0.06), naive)
            yield Row("interval without 0, families", setting, missed, (0, 0.06))


def lost_answers(rng: Rng, repetitions: int) -> Iterator[Row]:
    """A share of one model's wrong answers is lost: verdict by both counts; naive: without them."""
    for share in (0.05, 0.1, 0.25):

        def trial(share=share) -> tuple[bool, ...]:
            chances = difficulty(rng, 0.5, 240, 1.9)
            a, b = answers(rng, chances), answers(rng, chances)
            lost = np.minimum(rng.binomial((a.total - a.right).astype(int), share), a.total - 1)
            left = paired_difference(Tally(a.right, a.total - lost), b, resamples=RESAMPLES)
            counted = paired_difference(a, b, resamples=RESAMPLES)
            return left.p <= 0.05, left.p <= 0.05 and counted.p <= 0.05

        naive, verdict = rates(repetitions, trial)
        setting = f"{share:.0%} of one model's wrong answers lost"
        yield Row("false verdict, lost answers", setting, verdict, (0, 0.06), naive)


def power_of_detectable(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Power at the gap that is called detectable (median of 200 pilots); 80 % is the promise."""
    for seeds, n in ((3, 83), (5, 83), (10, 30)):

        def draw(gap: float, n: int = n, seeds: int = seeds) -> tuple[Tally, Tally]:
            chances = rng.uniform(0.2, 0.6, n) + rng.normal(0, 0.05, (seeds, 1))
            own = rng.normal(0, 0.03, (2, seeds, 1))
            first, second = (
                answers(rng, np.clip(chances + shift, 0, 1)) for shift in (own[0] + gap, own[1])
            )
            return first, second

        pilots = [required(*draw(0.0), same_seeds=True).detectable for _ in range(200)]
        gap = float(np.median(pilots))

        def trial(gap: float = gap, draw: Callable = draw) -> tuple[bool, ...]:
            return (paired_difference(*draw(gap), same_seeds=True, resamples=RESAMPLES).p <= 0.05,)

        (power,) = rates(repetitions, trial)
        low, high = np.quantile(pilots, [0.05, 0.95])
        setting = f"{seeds} seeds, n = {n}, gap {gap:.3f} (90 % of pilots: {low:.3f} to {high:.3f})"
        yield Row("power at `detectable` (0.80)", setting, power, (0.7, 0.9))


PARTS = (
    single_runs,
    macro_averages,
    paired_runs,
    paired_macro,
    several_seeds,
    run_tests,
    edges,
    collapses,
    collapse_rates,
    unequal_seeds,
    paired_by_seed,
    honest_runs,
    corners,
    many_arms,
    families,
    families_by_run,
    lost_answers,
    power_of_detectable,
)


def print_row(row: Row) -> None:
    naive = "" if row.naive is None else f"{row.naive:.1%}"
    target, met = "none", "-"
    if row.target is not None:
        target, met = "{:.1%} to {:.1%}".format(*row.target), "yes" if row.met else "NO"
    cells = [row.what, row.setting, f"{row.measured:.1%}", target, naive, met]
    print("|", " | ".join(cells), "|", flush=True)


def print_summary(rows: list[Row]) -> None:
    print("\n| what | settings | lowest | highest | missed |\n|---|---|---|---|---|")
    for what in dict.fromkeys(row.what for row in rows):
        of_it = [row for row in rows if row.what == what]
        measured = [row.measured for row in of_it]
        missed = sum(not row.met for row in of_it)
        print(f"| {what} | {len(of_it)} | {min(measured):.1%} | {max(measured):.1%} | {missed} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=1000, help="simulated data sets a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part")
    options = parser.parse_args()
    start = time.process_time()
    print("| what | setting | measured | target | naive | met |\n|---|---|---|---|---|---|")
    rows = []
    for index, part in enumerate(PARTS):
        if options.only not in (None, part.__name__):
            continue
        for row in part(np.random.default_rng([options.seed, index]), options.repetitions):
            print_row(row)
            rows.append(row)
    print_summary(rows)
    print(
        f"\n{options.repetitions} repetitions a row (ten times that for welch), "
        f"seed {options.seed}, {time.process_time() - start:.0f} CPU seconds."
    )


if __name__ == "__main__":
    main()
