"""Methods x seeds x learning rates on enumerable problems, as one table: ``trustclip tabular``."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

from trustclip.constraints.base import Method, method_class, methods
from trustclip.constraints.checked import Count, Positive, checked
from trustclip.constraints.registry import method
from trustclip.stats import Interval, RunSummary
from trustclip.tabular.training import GROUP, Outcome, Schedule, train
from trustclip.tabular.trees import ENVIRONMENTS

#: Names in `TabularSettings.methods` for a gate that never closes, and for every method.
UNCONSTRAINED, ALL = "none", "all"
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
    """Methods, problems and schedule of ``trustclip tabular``."""

    methods: tuple[str, ...] = (
        UNCONSTRAINED, "clip", "clip_higher", "atr", "full_kl", "trpo", "soft_gate",
    )  # fmt: skip
    """Methods at their defaults; "none" is a gate that never closes, "all" is every method."""
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
            if name != UNCONSTRAINED:
                method_class(name)
        if self.reference not in self.names:
            raise ValueError(f"`reference` must be one of the methods, got {self.reference!r}.")
        if self.episodes % GROUP:
            raise ValueError(f"`episodes` must be a multiple of {GROUP}, got {self.episodes}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the methods, with "all" expanded."""
        return (UNCONSTRAINED, *methods()) if self.methods == (ALL,) else self.methods


#: Larger tables by name.
PRESETS = {
    "full": TabularSettings(methods=(ALL,), learning_rates=(2.0, 8.0, 32.0, 128.0), seeds=24)
}


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

    def minus(self, other: "Row", level: float) -> Interval:
        """Return minus that of another row, paired by problem."""
        pairs = zip(self.values("returns"), other.values("returns"), strict=True)
        return RunSummary.of([a - b for a, b in pairs]).interval(level)


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
        console.print(_table(settings, block))
        rows += block
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
            train(ENVIRONMENTS[environment](seed), _made(name), schedule, seed)
            for seed in range(settings.seeds)
        ]
        yield Row(environment, rate, name, tuple(outcomes))


def _made(name: str) -> Method:
    if name == UNCONSTRAINED:
        return method("clip_higher", low=1.0, high=1e9)
    return method(name)


def _table(settings: TabularSettings, rows: Sequence[Row]) -> Table:
    first = rows[0]
    table = Table(
        f"{first.environment}, lr {first.learning_rate:g}", f"minus {settings.reference}", *COLUMNS,
        box=None, pad_edge=False,
    )  # fmt: skip
    reference = next(row for row in rows if row.method == settings.reference)
    level = 1 - 0.05 / max(len(rows) - 1, 1)
    for row in rows:
        difference = "" if row is reference else _shown(row.minus(reference, level), 100, "+")
        cells: list[Any] = [_shown(row.interval(field), f) for field, f in COLUMNS.values()]
        table.add_row(row.method, difference, *cells)
    return table


def _shown(interval: Interval, factor: float, sign: str = "") -> str:
    digits = 1 if factor == 100 else 3
    half = interval.high - interval.value
    return f"{factor * interval.value:{sign}.{digits}f} ± {factor * half:.{digits}f}"


def _legend(settings: TabularSettings) -> str:
    return (
        f"{settings.seeds} problems, {settings.generations} generations of {settings.episodes} "
        f"episodes, {settings.updates} updates each, {settings.reward_noise:.0%} of rewards "
        "flipped; means ± 95 % over problems. return: exact expected reward, percent of the best; "
        f"minus {settings.reference}: difference in return, paired by problem, with simultaneous "
        "intervals for all rows of a table. entropy and KL(old || new): exact, nats per token. "
        "fell: share of generations after which the exact return was lower. gated: tokens without "
        f"gradient after the first update. missed: tokens with k3 <= {settings.delta:g} in states "
        "with larger exact KL; needless: the reverse."
    )
