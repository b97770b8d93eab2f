"""Methods x seeds x learning rates on enumerable problems, as one table: `trustclip tabular`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from trustclip.constraints.base import methods
from trustclip.engines.limits import refusal
from trustclip.stats import Interval, RunSummary
from trustclip.support.checked import Count, Positive, checked
from trustclip.support.terminal import print_table
from trustclip.support.text import bracket, markdown_table, percent
from trustclip_lab.stats.aggregates import interquartile_interval
from trustclip_lab.stats.equivalence import UNCONSTRAINED, Contrast, contrasts, parse_method
from trustclip_lab.tabular.training import GROUP, SUPPLY, Outcome, Schedule, train
from trustclip_lab.tabular.trees import ENVIRONMENTS

#: Smallest difference in return that would matter: a point of the best return.
MARGIN = 0.01
#: Share of the problems that choose each method's learning rate, where there are several.
TUNING = 0.25
#: Column -> (field of `Outcome`, factor).
COLUMNS = {
    "return": ("returns", 100),
    "entropy": ("entropy", 1),
    "KL": ("kl", 1),
    "fell %": ("fell", 100),
    "gated %": ("gated", 100),
    "missed %": ("missed", 100),
    "needless %": ("needless", 100),
}


@checked
class TabularSettings:
    """Methods, problems and schedule of `trustclip tabular`."""

    methods: tuple[str, ...] = (
        UNCONSTRAINED, "clip", "clip_higher", "atr", "full_kl", "trpo", "soft_gate",
    )  # fmt: skip
    """Methods: a name, or "{name: atr, delta: 0.05}"; "none" is a gate that never closes, "all"
    every method at its defaults."""
    reference: str = "clip"
    """Method that the others are compared with."""
    environments: tuple[Literal["bandit", "tree"], ...] = ("bandit", "tree")
    """bandit: one choice of ten arms; tree: four choices of three."""
    learning_rates: tuple[Positive, ...] = (8.0, 32.0)
    """Step sizes along the gradient in the logits."""
    seeds: Annotated[int, Field(ge=2)] = 8
    """Number of problems; the number of a problem is also its sampling seed."""
    generations: Count = 20
    """Number of sampled batches."""
    updates: Annotated[int, Field(ge=2)] = 4
    """Gradient steps per batch; no constraint acts on the first."""
    episodes: Count = 64
    """Episodes per batch, a multiple of the group size 8."""
    reward_noise: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of the sampled rewards that are flipped."""
    delta: Positive = 0.07
    """Threshold at which the sampled gate is compared with the exact one, nats."""

    def __post_init__(self) -> None:
        for name in self.names:
            if problem := refusal(parse_method(name), SUPPLY):
                raise ValueError(problem)
        if self.reference not in self.names:
            raise ValueError(f"`reference` must be one of the methods, got {self.reference!r}.")
        if self.episodes % GROUP:
            raise ValueError(f"`episodes` must be a multiple of {GROUP}, got {self.episodes}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the methods, with "all" expanded."""
        return (UNCONSTRAINED, *methods()) if self.methods == ("all",) else self.methods


#: Larger tables by name: every method; and the questions of the arena, at sixteen updates a
#: generation and before the best return is near. The last three have the bounds of atr, the same
#: width with up and down exchanged, and the same width the same up and down.
PRESETS = {
    "full": TabularSettings(methods=("all",), learning_rates=(2.0, 8.0, 32.0, 128.0), seeds=24),
    "arena": TabularSettings(
        methods=(
            "atr", UNCONSTRAINED, "clip", "full_kl", "soft_gate", "dppo",
            "{name: clip_higher, low: 0.329028261750, high: 0.422216736280}",
            "{name: clip_higher, low: 0.296872287823, high: 0.490375738639}",
            "{name: clip_higher, low: 0.313138424971, high: 0.455897427306}",
        ),
        reference="atr", environments=("tree",), learning_rates=(8.0, 32.0, 128.0), seeds=128,
        generations=6, updates=16,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method at one learning rate on one kind of problem, over seeds.

    Args:
      environment: kind of problem.
      learning_rate: step along the gradient in the logits.
      method: its name.
      outcomes: of the seeds, in order.
    """

    environment: str
    learning_rate: float
    method: str
    outcomes: tuple[Outcome, ...]

    def values(self, field: str) -> list[float]:
        """One field of `Outcome` over the seeds."""
        return [getattr(outcome, field) for outcome in self.outcomes]

    def interval(self, field: str) -> Interval:
        """Mean over seeds with Student's 95 % interval."""
        return RunSummary.of(self.values(field)).interval()

    def minus(self, other: "Row") -> RunSummary:
        """Return minus that of another row, paired by problem."""
        pairs = zip(self.values("returns"), other.values("returns"), strict=True)
        return RunSummary.of([a - b for a, b in pairs])

    @property
    def middle(self) -> Interval:
        """Interquartile mean of the return."""
        return interquartile_interval([np.array(self.values("returns"))[:, None]])


def run_tabular(settings: TabularSettings, console: Console, out: Path | None = None) -> list[Row]:
    """Train every method on every problem and print the results.

    Args:
      settings: what to train and how.
      console: where the tables go.
      out: JSON-lines file for the outcomes of every seed; must not exist.

    Returns:
      A row for every environment, learning rate and method.

    Raises:
      ValueError: ``out`` exists, or a method needs a field that tabular problems cannot supply.
    """
    if out is not None and out.exists():
        raise ValueError(f"{out} exists; choose another file.")
    rows = []
    for environment, rate in product(settings.environments, settings.learning_rates):
        with console.status(f"{environment}, learning rate {rate:g}"):
            block = list(_block(settings, environment, rate))
        print_table(console, _table(settings, block, f"{environment}, lr {rate:g}"))
        rows += block
    for environment in settings.environments:
        if best := at_best_rates(rows, environment):
            print_table(console, _table(settings, best, f"{environment}, best lr"))
    console.print(_legend(settings), highlight=False)
    if out is not None:
        out.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    return rows


def _block(settings: TabularSettings, environment: str, rate: float) -> Iterator[Row]:
    schedule = Schedule(
        rate, settings.generations, settings.updates, settings.episodes, settings.reward_noise,
        settings.delta,
    )  # fmt: skip
    for name in settings.names:
        outcomes = [
            train(ENVIRONMENTS[environment](seed), parse_method(name), schedule, seed)
            for seed in range(settings.seeds)
        ]
        yield Row(environment, rate, name, tuple(outcomes))


def at_best_rates(rows: Sequence[Row], environment: str) -> list[Row]:
    """Each method at the rate that was best on the first quarter of the problems, on the others.

    Returns:
      A row for each method; none where there is one rate, or there are fewer than 8 problems.
    """
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        if row.environment == environment:
            by_method.setdefault(row.method, []).append(row)
    best_rows = []
    for own in by_method.values():
        first = int(TUNING * len(own[0].outcomes))
        if len(own) > 1 and first > 1:
            best = max(own, key=lambda row: sum(row.values("returns")[:first]))
            best_rows.append(replace(best, outcomes=best.outcomes[first:]))
    return best_rows


def against(rows: Sequence[Row], reference: str) -> dict[str, Contrast]:
    """Method -> its return minus the reference's, tested both ways, Holm's correction over all."""
    base = next(row for row in rows if row.method == reference)
    others = [row for row in rows if row is not base]
    results = contrasts([row.minus(base) for row in others], MARGIN)
    return {row.method: contrast for row, contrast in zip(others, results, strict=True)}


def lines(rows: Sequence[Row], reference: str) -> Iterator[list[str]]:
    """The rows of one table as text."""
    by_method = against(rows, reference)
    for row in rows:
        cells = [f"{row.method} ({row.learning_rate:g})", "", "", _middle(row.middle)]
        if row.method in by_method:
            gap = by_method[row.method].difference
            cells[1] = f"{percent(gap.value)} {bracket(gap.low, gap.high)}"
            cells[2] = by_method[row.method].conclusion
        yield [*cells, *(_mean_text(row.interval(field), f) for field, f in COLUMNS.values())]


def head(title: str, reference: str) -> list[str]:
    """Headings of a table."""
    return [title, f"minus {reference}", "so", "middle half", *COLUMNS]


def markdown(rows: Sequence[Row], reference: str, title: str) -> str:
    """The rows as a Markdown table."""
    return markdown_table(head(title, reference), lines(rows, reference))


def _table(settings: TabularSettings, rows: Sequence[Row], title: str) -> Table:
    table = Table(*head(title, settings.reference), box=None, pad_edge=False)
    for line in lines(rows, settings.reference):
        table.add_row(*line)
    return table


def _middle(interval: Interval) -> str:
    return f"{percent(interval.value)} {bracket(interval.low, interval.high)}"


def _mean_text(interval: Interval, factor: float) -> str:
    digits = 1 if factor == 100 else 3
    half = interval.high - interval.value
    return f"{factor * interval.value:.{digits}f} ± {factor * half:.{digits}f}"


def _legend(settings: TabularSettings) -> str:
    return (
        f"{settings.seeds} problems, {settings.generations} generations of {settings.episodes} "
        f"episodes, {settings.updates} updates each, {settings.reward_noise:.0%} of rewards "
        "flipped; means ± 95 % over problems. return: exact expected reward, percent of the best; "
        f"minus {settings.reference}: difference in return, points, paired by problem, each with "
        "its own 95 % interval; so: larger or smaller if different from 0, equivalent if surely "
        f"within {100 * MARGIN:g} point, each at 5 % after Holm's correction over a table's rows. "
        "middle half: interquartile mean. best lr: the rate that was best on the first quarter of "
        "the problems, shown on the others. entropy and KL(old || new): exact, nats per token. "
        "fell: share of generations after which the exact return was lower. gated: tokens without "
        f"gradient after the first update. missed: tokens with k3 <= {settings.delta:g} in states "
        "with larger exact KL; needless: the reverse."
    )
