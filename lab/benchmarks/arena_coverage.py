"""Do the arena's intervals cover, and its conclusions err as rarely as they say? A simulation.

Runs of several tasks whose seeds have a problem each, shared by all constraints; a constraint may
collapse on some of them. For the choice of trials, tunings on new seeds of the committed arena:
its trials' means, and seeds that vary together as its tuning seeds do. Prints a Markdown table.

Run: python lab/benchmarks/arena_coverage.py --repetitions 1000
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from arena_analysis import answers
from arena_choice import cell_scores, choose_trials, tuned_scores
from arena_entry import read_entry
from arena_scores import improvement
from coverage import Row, inside, print_row, print_summary, rates
from paired_rates import paired_rates

from trustclip.stats import RunSummary, holm
from trustclip.stats.scores import Floats
from trustclip_lab.stats.aggregates import interquartile_interval, interquartile_mean
from trustclip_lab.stats.equivalence import contrasts, equivalence_p, paired_runs

Rng = np.random.Generator
SEEDS = (24, 128)
MARGIN = 0.01
RESAMPLES = 500
ARENA = Path(__file__).parent / "arena"
TUNING_SEEDS = (3, 8, 16, 32)


@dataclass(frozen=True)
class World:
    """How runs vary.

    Args:
      name: for the table.
      shared: standard deviation of what a seed's problem adds to every constraint.
      own: standard deviation of a run beside that.
      collapse: share of runs that lose 30 points.
      heavy: whether runs vary as Student's t with 3 degrees of freedom.
    """

    name: str
    shared: float = 0.08
    own: float = 0.015
    collapse: float = 0.0
    heavy: bool = False

    def runs(self, rng: Rng, problems: Floats, effect: float = 0.0) -> Floats:
        """Scores at the end, of the shape of the problems' own scores."""
        size = problems.shape
        noise = rng.standard_t(3, size) / np.sqrt(3) if self.heavy else rng.standard_normal(size)
        fallen = rng.random(size) < self.collapse
        return problems + effect + self.own * noise - 0.3 * fallen

    def problems(self, rng: Rng, seeds: int, cells: int) -> Floats:
        """What the seeds' problems are like in each cell. [seeds, cells]"""
        return 0.5 + self.shared * rng.standard_normal((seeds, cells))


WORLDS = (
    World("steady"),
    World("heavy-tailed", heavy=True),
    World("one run in ten collapses", collapse=0.1),
    World("one run in fifty collapses", collapse=0.02),
)


def differences_of_pairs(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Coverage of the paired interval, and how often a difference of the margin seems none."""
    for world in WORLDS:
        for seeds in SEEDS:
            for cells in (1, 9):

                def trial(world=world, seeds=seeds, cells=cells) -> tuple[bool, ...]:
                    problems = world.problems(rng, seeds, cells)
                    ours, theirs = world.runs(rng, problems, MARGIN), world.runs(rng, problems)
                    summary = RunSummary.of((ours - theirs).mean(axis=1))
                    interval = paired_runs(summary)
                    equal = equivalence_p(summary, MARGIN) <= 0.05
                    naive = RunSummary.of(ours.ravel()), RunSummary.of(theirs.ravel())
                    half = 1.96 * np.sqrt(sum(n.std**2 / n.runs for n in naive))
                    return (
                        inside(interval.low, MARGIN, interval.high),
                        abs(summary.mean - MARGIN) <= half,
                        equal,
                    )

                covered, naive, equal = rates(repetitions, trial)
                setting = f"{world.name}, {seeds} seeds, {cells} cells"
                yield Row("coverage of paired_runs", setting, covered, (0.93, 0.985), naive)
                yield Row('"equivalent" at the margin', setting, equal, (0.0, 0.065))


def families(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Any false "larger" or "smaller" in eight contrasts with a common reference."""
    for world in WORLDS:
        for seeds in SEEDS:

            def trial(world=world, seeds=seeds) -> tuple[bool, ...]:
                problems = world.problems(rng, seeds, 9)
                reference = world.runs(rng, problems)
                every = [
                    RunSummary.of((world.runs(rng, problems) - reference).mean(axis=1))
                    for _ in range(8)
                ]
                words = {one.conclusion for one in contrasts(every, MARGIN)}
                alone = [paired_runs(one).p for one in every]
                assert len(holm(alone)) == 8
                return bool(words & {"larger", "smaller"}), min(alone) <= 0.05

            false, naive = rates(repetitions, trial)
            setting = f"{world.name}, {seeds} seeds, 8 contrasts"
            yield Row("any false difference", setting, false, (0.0, 0.065), naive)


def aggregates(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Coverage of the interquartile mean, and of the probability of improvement."""
    for world in WORLDS:
        many = World.problems(world, rng, 400_000, 3)
        truth = interquartile_mean(world.runs(rng, many))
        for seeds in SEEDS:

            def trial(world=world, seeds=seeds, truth=truth) -> tuple[bool, ...]:
                problems = world.problems(rng, seeds, 3)
                ours, theirs = world.runs(rng, problems), world.runs(rng, problems)
                tasks = [[x[:, [i]] for i in range(3)] for x in (ours, theirs)]
                middle = interquartile_interval(tasks[0], resamples=RESAMPLES)
                better = improvement(tasks[0], tasks[1], resamples=RESAMPLES)
                return (
                    inside(middle.low, truth, middle.high),
                    inside(better.low, 0.5, better.high),
                )

            of_middle, of_better = rates(repetitions, trial)
            setting = f"{world.name}, {seeds} seeds, 3 tasks"
            yield Row("coverage of interquartile_interval", setting, of_middle, (0.92, 0.97))
            yield Row("coverage of improvement", setting, of_better, (0.92, 0.97))


def collapse_differences(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Coverage of the difference of two collapse rates, and size of McNemar's test."""
    for ours, theirs in ((0.02, 0.02), (0.1, 0.1), (0.3, 0.1), (0.5, 0.5)):
        for seeds in SEEDS:

            def trial(ours=ours, theirs=theirs, seeds=seeds) -> tuple[bool, ...]:
                hard = rng.standard_normal(seeds)  # a problem that makes both collapse
                chances = [rng.standard_normal(seeds) + hard for _ in range(2)]
                edges = np.quantile(rng.standard_normal(20_000) * np.sqrt(2), [ours, theirs])
                x, y = (c < e for c, e in zip(chances, edges, strict=True))
                interval = paired_rates(x, y)
                return inside(interval.low, ours - theirs, interval.high), interval.p <= 0.05

            covered, rejected = rates(repetitions, trial)
            setting = f"rates {ours} and {theirs}, {seeds} seeds"
            yield Row("coverage of paired_rates", setting, covered, (0.92, 1.0))
            if ours == theirs:
                yield Row("size of mcnemar", setting, rejected, (0.0, 0.06))


def tunings(rng: Rng, repetitions: int) -> Iterator[Row]:
    """Coverage of an interval that counts the choice of trials, of what tunings lead to on average.

    naive: of the interval over test seeds alone.
    """
    arena = read_entry(ARENA)
    pool = arena.trials.values("seed")
    scores = {name: [*cell_scores(own, pool)] for name, own in arena.trials.constraints.items()}
    contrasts = answers(arena.main, arena.questions)
    bounds = [(a.contrast.difference.low, a.contrast.difference.high) for a in contrasts]
    errors = np.diff(bounds)[:, 0] / 2 / 1.98
    for seeds in TUNING_SEEDS:
        shape = (repetitions, len(contrasts))
        estimates, spread = np.zeros(shape), np.zeros(shape)
        for i in range(repetitions):
            # The same draws for all constraints: their runs of a seed vary together.
            draws = [rng.standard_normal((len(pool), seeds)) for _ in scores["atr"]]
            again = rng.multinomial(seeds, [1 / seeds] * seeds, size=200).astype(float)
            new = {name: [*map(_on_new_seeds, own, draws)] for name, own in scores.items()}
            ends = {
                name: np.mean([truth.mean(axis=1)[choose_trials(one, np.ones((1, seeds)))[0]]
                               for truth, one in zip(scores[name], own, strict=True)])
                for name, own in new.items()
            }  # fmt: skip
            retuned = {name: tuned_scores(own, again) for name, own in new.items()}
            for j, q in enumerate(a.question for a in contrasts):
                estimates[i, j] = ends[q.ours] - ends[q.theirs]
                spread[i, j] = np.std(retuned[q.ours] - retuned[q.theirs])
        measured = abs(estimates - estimates.mean(axis=0) + errors * rng.standard_normal(shape))
        both, alone = ((measured <= 1.98 * half).mean(axis=0)
                       for half in (np.hypot(errors, spread), errors))  # fmt: skip
        target = (0.86, 1.0) if seeds >= 8 else None
        setting = f"{seeds} tuning seeds, worst of {len(contrasts)} contrasts"
        yield Row("coverage with the choice", setting, float(both.min()), target, alone.min())
        setting = f"{seeds} tuning seeds, mean of {len(contrasts)} contrasts"
        yield Row("coverage with the choice", setting, float(both.mean()), target, alone.mean())


def _on_new_seeds(scores: Floats, draws: Floats) -> Floats:
    """Scores of trials on new seeds, with the same means and covariances. [trials, new]"""
    mean = scores.mean(axis=1, keepdims=True)
    return mean + (scores - mean) @ draws / np.sqrt(scores.shape[1] - 1)


def main() -> None:
    """Simulate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    repetitions = parser.parse_args().repetitions
    rng, start = np.random.default_rng(0), time.process_time()
    print("| what | setting | measured | target | naive | met |\n|---|---|---|---|---|---|")
    rows = []
    for part in (differences_of_pairs, families, aggregates, collapse_differences, tunings):
        for row in part(rng, repetitions):
            print_row(row)
            rows.append(row)
    print_summary(rows)
    print(f"{time.process_time() - start:.0f} CPU seconds")


if __name__ == "__main__":
    main()
