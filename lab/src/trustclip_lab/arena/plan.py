"""What the arena runs: trials of each constraint, and cells, each with its own file.

A trial is a constraint at one threshold and one learning rate. Every constraint has as many.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isnan, nan
from pathlib import Path
from typing import Any, Literal

from trustclip.constraints.base import Method
from trustclip.constraints.registry import as_method
from trustclip.support.jsonl import plain
from trustclip.support.names import unknown
from trustclip.support.settings import Source, build
from trustclip.train.suite.plan import digest
from trustclip_lab.arena.settings import MAIN, ArenaSettings, finer
from trustclip_lab.stack.run import RULES
from trustclip_lab.stack.settings import LabSettings

Stage = Literal["tuning", "test"]

#: How the log-ratio bounds of another constraint are taken over.
SHAPES = {
    "same": lambda low, high: (low, high),
    "mirrored": lambda low, high: (-high, -low),
    "symmetric": lambda low, high: ((low - high) / 2, (high - low) / 2),
}


@dataclass(frozen=True)
class Variant:
    """A constraint at one threshold, with the learning rates that it is tried at.

    Args:
      constraint: label of the constraint.
      label: its own, ``atr-3`` say.
      width: the threshold; nan where there is none.
      method: the method.
      rates: learning rates.
    """

    constraint: str
    label: str
    width: float
    method: Method
    rates: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """Where constraints meet: one task at one depth, in one design.

    Args:
      design: ``"main"``, or the label of an axis.
      task: of the lab.
      depth: updates per generation.
    """

    design: str
    task: str
    depth: int


@dataclass(frozen=True)
class Cell:
    """Runs of one variant in one setting that are trained in one stack.

    Args:
      stage: what its seeds are for.
      setting: task, depth and design.
      variant: constraint and learning rates.
      seeds: each trained at each of the rates.
      reaches: score whose first generation is reported.
      lab: settings of the training.
      path: file of its rows.
    """

    stage: Stage
    setting: Setting
    variant: Variant
    seeds: range
    reaches: float
    lab: LabSettings
    path: Path

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.seeds) * len(self.variant.rates)

    @property
    def stack(self) -> tuple[list[int], list[float]]:
        """Seed and learning rate of each run: every seed at the first rate, then at the next."""
        pairs = [(seed, rate) for rate in self.variant.rates for seed in self.seeds]
        return [seed for seed, _ in pairs], [rate for _, rate in pairs]


def variants(settings: ArenaSettings) -> dict[str, list[Variant]]:
    """Variants of every constraint, the same number of each.

    Raises:
      ValueError: a wrong method, or lists of different lengths.

    Example:
      >>> from trustclip_lab.arena.settings import Seeds, TaskSettings
      >>> arena = ArenaSettings(
      ...     tasks={"many": TaskSettings(reaches=0.4)}, depths={4: {}},
      ...     learning_rates=(0.01, 0.04),
      ...     tuning=Seeds(first=100, count=2), test=Seeds(first=0, count=2),
      ...     constraints={"none": {"name": "reinforce"}, "clip": {"name": "clip",
      ...                  "epsilon": [0.1, 0.2]}, "twin": {"bounds_of": "clip"}},
      ... )
      >>> for one in (one for own in variants(arena).values() for one in own):
      ...     print(one.label, one.width, [round(rate, 4) for rate in one.rates])
      none-1 nan [0.01, 0.0252]
      none-2 nan [0.0159, 0.04]
      clip-1 0.1 [0.01, 0.04]
      clip-2 0.2 [0.01, 0.04]
      twin-1 0.1 [0.01, 0.04]
      twin-2 0.2 [0.01, 0.04]
    """
    methods = {label: _methods(settings, label) for label in settings.constraints}
    counts = {label: len(own) for label, own in methods.items() if not isnan(own[0][0])}
    most = max(counts.values(), default=1)
    for label, count in counts.items():
        if count != most:
            other = next(name for name in counts if counts[name] == most)
            raise ValueError(
                f"every constraint has the same number of thresholds: {label!r} has {count}, "
                f"{other!r} has {most}."
            )
    return {label: _variants(settings.grid, label, own, most) for label, own in methods.items()}


def _variants(
    rates: tuple[float, ...], label: str, methods: Sequence[tuple[float, Method]], most: int
) -> list[Variant]:
    if not isnan(methods[0][0]):
        return [
            Variant(label, f"{label}-{i}", width, method, rates)
            for i, (width, method) in enumerate(methods, start=1)
        ]
    # Without a threshold: as many trials, each at its own rate.
    every, method = finer(rates, most), methods[0][1]
    return [
        Variant(label, f"{label}-{i + 1}", nan, method, tuple(every[i::most])) for i in range(most)
    ]


def _methods(settings: ArenaSettings, label: str) -> list[tuple[float, Method]]:
    """(threshold, method) of a constraint; one with nan where it has no threshold."""
    spec = {k: v for k, v in settings.constraints[label].items() if k != "trials_of"}
    try:
        return _with_bounds(settings, spec) if "bounds_of" in spec else _from_lists(spec)
    except (ValueError, TypeError) as error:
        raise ValueError(f"constraint {label!r}: {error}") from None


def _from_lists(spec: Mapping[str, Any]) -> list[tuple[float, Method]]:
    """Lists among the hyper-parameters go in step; the first one is the threshold."""
    lists = {key: value for key, value in spec.items() if isinstance(value, list | tuple)}
    if not lists:
        return [(nan, as_method(dict(spec)))]
    lengths = {len(values) for values in lists.values()}
    if lengths & {0} or len(lengths) > 1:
        sizes = ", ".join(f"{key} {len(values)}" for key, values in lists.items())
        raise ValueError(f"lists of hyper-parameters go in step, got lengths {sizes}.")
    rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    first = next(iter(lists))
    return [(_number(first, row[first]), as_method({**spec, **row})) for row in rows]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"`{name}`: the first list holds the thresholds, numbers, got {value!r}.")
    return float(value)


def _with_bounds(settings: ArenaSettings, spec: Mapping[str, Any]) -> list[tuple[float, Method]]:
    """A clip with the bounds of another constraint, in one of `SHAPES`."""
    for key in spec:
        if key not in ("bounds_of", "shape"):
            raise ValueError(unknown("key beside `bounds_of`", key, ("shape",)))
    other, shape = spec["bounds_of"], spec.get("shape", "same")
    if shape not in SHAPES:
        raise ValueError(unknown("shape", shape, SHAPES))
    if other not in settings.constraints or "bounds_of" in settings.constraints[other]:
        own = [k for k, v in settings.constraints.items() if "bounds_of" not in v]
        raise ValueError(unknown("constraint with bounds of its own", other, own))
    clips = []
    for width, method in _methods(settings, other):
        low, high = (exp(bound) for bound in SHAPES[shape](*method.log_interval()))
        clips.append((width, as_method({"name": "clip_higher", "low": 1 - low, "high": high - 1})))
    return clips


def places(settings: ArenaSettings) -> list[Setting]:
    """All settings in the order in which they are run: task by task, then the axes."""
    main = [Setting(MAIN, task, depth) for task in settings.tasks for depth in settings.depths]
    axes = [Setting(label, axis.task, axis.depth) for label, axis in settings.axes.items()]
    return main + axes


def tuning(settings: ArenaSettings, place: Setting) -> list[Cell]:
    """Every trial in a setting, on the tuning seeds. Those of an axis are the main design's.

    A constraint with `trials_of` has none of its own: it is tested at those of another.

    Raises:
      ValueError: a wrong method or setting of the lab.
    """
    where = replace(place, design=MAIN)
    by_label = variants(settings).items()
    every = (one for label, own in by_label if _trials_of(settings, label) == label for one in own)
    return [_cell(settings, "tuning", where, one) for one in every]


def tests(
    settings: ArenaSettings, place: Setting, chosen: Mapping[str, tuple[str, float]]
) -> list[Cell]:
    """What was chosen for a setting, on fresh seeds.

    Args:
      settings: of the arena.
      place: the setting.
      chosen: by constraint with trials of its own, the label of a variant and a learning rate.
    """
    by_label = variants(settings)
    cells = []
    for label, own in by_label.items():
        source = _trials_of(settings, label)
        if source in chosen:
            name, rate = chosen[source]
            number = [one.label for one in by_label[source]].index(name)
            cells.append(_cell(settings, "test", place, replace(own[number], rates=(rate,))))
    return cells


def _trials_of(settings: ArenaSettings, label: str) -> str:
    """The constraint whose trials decide where this one is tested: itself, or its `trials_of`."""
    return settings.constraints[label].get("trials_of", label)


def _cell(settings: ArenaSettings, stage: Stage, place: Setting, variant: Variant) -> Cell:
    seeds = settings.tuning.numbers if stage == "tuning" else settings.test.numbers
    axis = {} if place.design == MAIN else settings.axes[place.design].changes
    content = {
        **settings.lab,
        **settings.tasks[place.task].changes,
        **settings.depths[place.depth],
        **axis,
        "task": place.task,
        "depth": place.depth,
        "method": variant.method.to_dict(),
    }
    where = f"{place.design}, {place.task}, depth {place.depth}, {variant.label}"
    try:
        lab = build(LabSettings, content, Source(), RULES)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    reaches = settings.tasks[place.task].reaches
    runs = {"rates": list(variant.rates), "seeds": [seeds.start, seeds.stop], "reaches": reaches}
    name = f"{stage}-{place.design}-{place.task}-depth{place.depth}-{variant.label}"
    path = settings.output_dir / "cells" / f"{name}-{digest(plain(lab) | runs)}.csv"
    return Cell(stage, place, variant, seeds, reaches, lab, path)


def first(settings: ArenaSettings) -> dict[str, tuple[str, float]]:
    """A choice for `tests` before anything is tuned: each constraint's first trial."""
    return {label: (own[0].label, own[0].rates[0]) for label, own in variants(settings).items()}


def all_cells(settings: ArenaSettings) -> Iterator[Cell]:
    """All cells of the tuning and, with any choice, of the test: everything that may be wrong."""
    choice = first(settings)
    for place in places(settings):
        if place.design == MAIN:
            yield from tuning(settings, place)
        yield from tests(settings, place, choice)
