"""False alarms of the trend guards on noise, and the generations they take to see a trend.

    python benchmarks/sampler_guards.py [--runs 1000]

Each run has 200 generations whose logarithm is noise of one kind, and is looked at after every one,
as a training is. A trend is a rise by a factor over 60 generations in normal noise.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator
from statistics import median

from trustclip.findings.facts import WINDOW
from trustclip.findings.live import trends

GENERATIONS = 200
KINDS = {
    "normal, sd 0.4": lambda rng: _independent(lambda: 0.4 * rng.gauss(0, 1)),
    "normal, sd 1": lambda rng: _independent(lambda: rng.gauss(0, 1)),
    "heavy-tailed (t, 3 degrees)": lambda rng: _independent(
        lambda: 0.3 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 1) / 1.5)
    ),
    "autocorrelated, 0.5": lambda rng: _autoregressive(0.5, rng),
    "autocorrelated, 0.8": lambda rng: _autoregressive(0.8, rng),
}
Look = Callable[[list[float]], bool]
LOOKS: dict[str, Look] = {"rise": trends.rises, "fall": trends.falls}


def _independent(draw: Callable[[], float]) -> Iterator[float]:
    while True:
        yield draw()


def _autoregressive(rho: float, rng: random.Random) -> Iterator[float]:
    x = rng.gauss(0, 1)
    while True:
        yield 0.4 * x
        x = rho * x + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)


def first_alarm(values: list[float], look: Look) -> int | None:
    """Generation after which a guard that looks after every one first speaks."""
    for end in range(1, len(values) + 1):
        if look(values[max(0, end - WINDOW) : end]):
            return end
    return None


def false_alarms(kind: str, runs: int, seed: int = 0) -> dict[str, float]:
    """Share of runs of noise with an alarm, by guard."""
    rng = random.Random(f"{seed}/{kind}")
    hits = dict.fromkeys(LOOKS, 0)
    for _ in range(runs):
        noise = KINDS[kind](rng)
        values = [math.exp(next(noise)) for _ in range(GENERATIONS)]
        for name, look in LOOKS.items():
            hits[name] += first_alarm(values, look) is not None
    return {name: count / runs for name, count in hits.items()}


def detections(factor: float, sd: float, runs: int, seed: int = 0) -> tuple[float, float]:
    """Share of runs with a trend that is seen within 120 generations, and the median of when."""
    rng = random.Random(f"{seed}/{factor}/{sd}")
    alarms = []
    for _ in range(runs):
        values = [math.exp(math.log(factor) * i / 60 + sd * rng.gauss(0, 1)) for i in range(120)]
        if (at := first_alarm(values, trends.rises)) is not None:
            alarms.append(at)
    return len(alarms) / runs, median(alarms) if alarms else math.nan


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="False alarms and detections.")
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print(f"| noise | {' | '.join(LOOKS)} |\n|---|" + "---:|" * len(LOOKS))
    for kind in KINDS:
        rates = false_alarms(kind, runs)
        print(f"| {kind} | {' | '.join(f'{rates[name]:.1%}' for name in LOOKS)} |")
    print(
        "\n| rise over 60 generations | noise (sd) | seen | after (median) |\n|---:|---:|---:|---:|"
    )
    for factor in (2, 4, 10):
        for sd in (0.2, 0.4, 1.0):
            share, when = detections(factor, sd, runs // 5)
            print(f"| {factor}x | {sd} | {share:.0%} | {when:.0f} |")


if __name__ == "__main__":
    main()
