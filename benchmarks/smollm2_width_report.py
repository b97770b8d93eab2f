"""What the runs over width and rate say, from the committed tables, by docs/smollm2-width-plan.md.

    python benchmarks/smollm2_width_report.py           # writes docs/smollm2-width.md
    python benchmarks/smollm2_width_report.py --power   # prints what ten blocks can find

As long as one of the ten blocks is unfinished it says how many are finished and nothing else: no
area, end, contrast or verdict is computed. In the page it writes what stands between
``<!-- NAME -->`` and ``<!-- /NAME -->`` alone.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats
from smollm2_blocks import COMPLETIONS, FIRST, GENERATIONS
from smollm2_blocks import mean as known_mean
from smollm2_report import CHOOSE, README, ROOT, drawn, level, points, quoted
from smollm2_report import controls as controls_of
from smollm2_width import (
    FOLDER,
    GAINS,
    MIDDLE,
    RATES,
    SEEDS,
    TARGET,
    WIDTHS,
    arms,
    chosen,
    k3_held,
    there,
)

from trustclip.report.draw.marks import Figure, Mark, Panel
from trustclip.report.results import p_text
from trustclip.stats import Difference, holm
from trustclip.stats.confidence import RunSummary
from trustclip.stats.differences import paired_runs
from trustclip.support.text import join_words, markdown_table, percent, plural
from trustclip_lab.pages import filled
from trustclip_lab.stats.equivalence import equivalence_p

PAGE = ROOT / "docs/smollm2-width.md"
#: Every arm at every rate: the fixed constraints first, of these the clips first.
CELLS = tuple((arm, rate) for arm, (_, rates) in arms(GAINS[0]).items() for rate in rates)
#: The arms that are run at every rate.
SWEPT = tuple(arm for arm, rate in CELLS if rate == RATES[-1])
GRID = tuple((f"clip-{width}", rate) for width in WIDTHS for rate in RATES)
#: The smallest difference of areas, and the smallest exchange rate, that would matter.
MARGIN, MARGIN_A = 0.05, 0.5
RESAMPLES = 10_000
#: Exchange rates that the fit tries, those nearest to 0 first, and bends as shares of the range.
TRIED = np.array(sorted(np.round(np.arange(-1, 2.01, 0.02), 2), key=abs))
BENDS = np.arange(0, 0.81, 0.02)
CONTROLS = {
    "twin": ("The exact twin of `atr`", {"atr", "twin"}, 1),
    "inert": ("One update a generation, six fixed constraints", set(arms(None)), 1),
}

Numbers = NDArray[np.float64]


class UnfinishedError(ValueError):
    """Some of the ten blocks lack runs, so that nothing may be tabulated."""


@dataclass(frozen=True)
class Blocks:
    """The ten blocks. Arrays have the shape [cells, blocks], in the order of `CELLS` and `SEEDS`.

    Args:
      area: share of right answers in the rollouts of generations 4 to 16.
      start: share of right answers to held-out problems before the first update.
      end: the same after the last.
      alike: share of held-out problems whose four answers are all right or all wrong at the end.
      alike_start: the same before the first update.
      k3: nats, mean over all generations.
      early: the same over generations 1 to 3.
      gated: share of tokens cut.
    """

    area: Numbers
    start: Numbers
    end: Numbers
    alike: Numbers
    alike_start: Numbers
    k3: Numbers
    early: Numbers
    gated: Numbers

    def of(self, name: str, arm: str, rate: float = MIDDLE) -> Numbers:
        """One quantity of an arm at a rate, by block."""
        return np.asarray(getattr(self, name)[CELLS.index((arm, rate))])


def finished(folder: Path) -> dict[int, str]:
    """The blocks that have all of their runs, each with the kind of processor that made them."""
    found = {
        seed: min((kind for kind, runs in kinds.items() if set(CELLS) <= runs), default="")
        for seed, kinds in there(folder).items()
    }
    return {seed: kind for seed, kind in sorted(found.items()) if kind and seed in SEEDS}


def used(table: Path, kinds: Mapping[int, str]) -> list[Mapping[str, Any]]:
    """Rows of the finished blocks alone, each block of the kind of processor that finished it."""
    rows = pq.read_table(table).to_pylist()
    return [row for row in rows if row["processor"] == kinds.get(row["seed"])]


def read(folder: Path) -> Blocks:
    """The ten blocks of the tables in a folder.

    Raises:
      UnfinishedError: one of them lacks a run.
    """
    kinds = finished(folder)
    if len(kinds) < len(SEEDS):
        raise UnfinishedError(state_of(folder))
    shape = (len(CELLS), len(SEEDS))
    by = {name: np.full((*shape, GENERATIONS), np.nan) for name in ("right", "k3", "gated")}
    by["right"][:] = 0.0

    def rows_of(name: str) -> list[tuple[tuple[int, int], Mapping[str, Any]]]:
        return [
            ((CELLS.index((row["arm"], row["rate"])), SEEDS.index(row["seed"])), row)
            for row in used(folder / f"{name}.parquet", kinds)
        ]

    for place, row in rows_of("generations"):
        at = (*place, row["generation"] - 1)
        by["right"][at] = row["right"] / COMPLETIONS
        for name in ("k3", "gated"):
            if row[name] is not None:
                by[name][at] = row[name]
    # [before or after, right or samples or problems or judged alike, cells, blocks]
    counts = np.zeros((2, 4, *shape))
    for place, row in rows_of("answers"):
        alike = row["right"] in (0, row["samples"])
        one = row["right"], row["samples"], 1, alike
        counts[(int(row["update"] > 0), slice(None), *place)] += one
    (start, alike_start), (end, alike) = ((c[0] / c[1], c[3] / c[2]) for c in counts)
    return Blocks(
        by["right"][..., FIRST - 1 :].mean(axis=-1),
        start,
        end,
        alike,
        alike_start,
        known_mean(by["k3"]),
        known_mean(by["k3"][..., : FIRST - 1]),
        known_mean(by["gated"]),
    )


# -- the exchange rate -----------------------------------------------------------------------------


class Fit(NamedTuple):
    """Least squares of area = level - slope max(0, ln rate + a ln width - bend)."""

    a: Numbers
    slope: Numbers
    bend: Numbers


@cache
def _tried() -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Every a and bend that is tried, and with them the fall at each cell, centred, of length 1."""
    rate = np.log([rate for _ in WIDTHS for rate in RATES])
    width = np.log([width for width in WIDTHS for _ in RATES])
    u = rate + TRIED[:, None] * width  # [a, cells]
    low, high = u.min(axis=1, keepdims=True), u.max(axis=1, keepdims=True)
    bend = low + (high - low) * BENDS  # [a, bends]
    fall = np.maximum(0, u[:, None] - bend[..., None])
    fall -= fall.mean(axis=-1, keepdims=True)
    size = np.sqrt((fall**2).sum(axis=-1))
    a = np.broadcast_to(TRIED[:, None], bend.shape)
    unit = (fall / size[..., None]).reshape(-1, len(GRID))
    return a.ravel(), bend.ravel(), unit, size.ravel()


def fitted(means: Numbers) -> Fit:
    """The best fits to areas of the nine cells; nan where the area falls with neither dial.

    Args:
      means: over blocks, shape [..., 9], in the order of `GRID`.
    """
    a, bend, unit, size = _tried()
    flat = means.reshape(-1, len(GRID))
    best, gain = np.empty(len(flat), dtype=int), np.empty(len(flat))
    for part in range(0, len(flat), 500):
        falls = -(flat[part : part + 500] @ unit.T) - 1e-9 * np.abs(a)
        best[part : part + 500] = falls.argmax(axis=1)
        gain[part : part + 500] = falls.max(axis=1)
    lost = np.where(gain > 1e-9, 0.0, np.nan)
    found = (values.reshape(means.shape[:-1]) for values in
             (a[best] + lost, gain / size[best] + lost, bend[best] + lost))  # fmt: skip
    return Fit(*found)


class Tested(NamedTuple):
    """A quantity with its 95 % interval, and the uncorrected p of both tests."""

    value: float
    low: float
    high: float
    p: float
    p_equivalent: float


def exchange(area: Numbers, resamples: int = RESAMPLES) -> tuple[Tested, Fit]:
    """The exchange rate of width and rate, tested from 0, and the fit to all blocks.

    Args:
      area: of the nine cells in each block, shape [9, blocks].
      resamples: of the blocks.
    """
    blocks = area.shape[1]
    fit = fitted(area.mean(axis=1))
    drawn_blocks = np.random.default_rng(0).integers(blocks, size=(resamples, blocks))
    every = fitted(area[:, drawn_blocks].mean(axis=2).T).a
    known = every[~np.isnan(every)]
    if np.isnan(fit.a) or len(known) < 0.95 * resamples:
        return Tested(float(fit.a), np.nan, np.nan, 1.0, 1.0), fit
    out, freedom = sqrt(blocks / (blocks - 1)), blocks - 1
    share = stats.norm.cdf(out * stats.t.ppf(0.025, freedom))
    low, high = np.quantile(known, [share, 1 - share])

    def p(extreme: NDArray[np.bool_]) -> float:
        least = 1 / (len(known) + 1)
        z = stats.norm.ppf(min(max(float(extreme.mean()), least), 1 - least))
        return float(stats.t.cdf(z / out, freedom))

    either = min(1.0, 2 * min(p(known <= 0), p(known >= 0)))
    matters = max(p(known >= MARGIN_A), p(known <= -MARGIN_A))
    return Tested(float(fit.a), float(low), float(high), either, matters), fit


# -- hypotheses ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A hypothesis, its test, the corrected p, and the word that follows from them alone."""

    name: str
    tested: Tested
    p: float
    p_equivalent: float
    word: str


def verdicts(tests: Mapping[str, tuple[Tested, int]]) -> dict[str, Verdict]:
    """The verdicts of a family, by the one rule of the plan.

    Args:
      tests: by name, each with the sign of its hypothesis, 0 for either.
    """
    p = holm([one.p for one, _ in tests.values()])
    q = holm([one.p_equivalent for one, _ in tests.values()])
    return {
        name: Verdict(name, one, p[i], q[i], _word(one.value, sign, p[i], q[i]))
        for i, (name, (one, sign)) in enumerate(tests.items())
    }


def _word(value: float, sign: int, p: float, p_equivalent: float) -> str:
    if p_equivalent <= 0.05:
        return "equivalent"
    if p <= 0.05:
        return "confirmed" if sign == 0 or value * sign > 0 else "refuted"
    return "open"


def paired(differences: Numbers, margin: float | None = MARGIN) -> Tested:
    """Student's test of differences of blocks; without a margin nothing is equivalent."""
    summary = RunSummary.of(differences)
    found = paired_runs(summary)
    equal = np.nan if margin is None else equivalence_p(summary, margin)
    return Tested(found.value, found.low, found.high, found.p, equal)


def primary(area: Numbers, resamples: int = RESAMPLES) -> dict[str, Verdict]:
    """H1 to H4, from the areas of all cells in each block."""

    def gap(ours: tuple[str, float], theirs: tuple[str, float]) -> Tested:
        return paired(area[CELLS.index(ours)] - area[CELLS.index(theirs)])

    cells = [CELLS.index(cell) for cell in GRID]
    return verdicts({
        "H1": (exchange(area[cells], resamples)[0], 1),
        "H2": (gap(("atr", MIDDLE), ("mirrored", MIDDLE)), 0),
        "H3": (gap(("atr", MIDDLE), ("symmetric", MIDDLE)), 0),
        "H4": (gap(("held", RATES[-1]), ("clip-0.2", RATES[-1])), 1),
    })  # fmt: skip


def secondary(blocks: Blocks) -> dict[str, Verdict]:
    """S1 to S3, a family of their own."""
    pairs: list[Any] = [
        stats.spearmanr(early, area)
        for early, area in zip(blocks.early.T, blocks.area.T, strict=True)
    ]
    order = np.array([pair.statistic for pair in pairs])
    end = blocks.of("end", "clip-0.2") - blocks.of("end", "atr")
    spans = [
        np.ptp([blocks.of("area", arm, rate) for rate in RATES], axis=0)
        for arm in ("clip-0.2", "held")
    ]
    return verdicts({
        "S1": (paired(order, None), -1),
        "S2": (paired(end, None), 1),
        "S3": (paired(spans[0] - spans[1], None), 1),
    })  # fmt: skip


# -- the page --------------------------------------------------------------------------------------

STATEMENTS = {
    "H1": "the exchange rate a is above 0",
    "H2": "`atr` and `mirrored` differ in area at 2.77e-4",
    "H3": "`atr` and `symmetric` differ in area at 2.77e-4",
    "H4": "`held` has a larger area than `clip-0.2` at 4.8e-4",
    "S1": "early k3 orders the cells: its correlation with the area is negative",
    "S2": "the end of `clip-0.2` is above that of `atr` at 2.77e-4",
    "S3": "`held` is less sensitive to the rate than `clip-0.2`",
}
#: Of these the value is a plain number, of the others it is in points.
PLAIN = ("H1", "S1")


def judged(family: Mapping[str, Verdict]) -> str:
    """A table of hypotheses with their verdicts."""
    rows = []
    for name, one in family.items():
        t = one.tested
        value = plain(t) if name in PLAIN else points(Difference(t.value, t.low, t.high, t.p))
        word = f"**{one.word}**"
        if name in ("H2", "H3") and one.word == "confirmed":
            word += f": `atr` is {'above' if t.value > 0 else 'below'}"
        rows.append([name, STATEMENTS[name], value, p_text(one.p), p_text(one.p_equivalent), word])
    head = ["", "statement", "value, 95 % interval", "p of no difference (Holm)",
            "p of the margin or more (Holm)", "verdict"]  # fmt: skip
    return markdown_table(head, rows)


def plain(t: Tested) -> str:
    """A number with its interval."""
    return f"{t.value:.2f} [{t.low:.2f}, {t.high:.2f}]".replace("-", "−")


def cells(blocks: Blocks) -> str:
    """Every arm at every rate, means over the blocks."""
    rows = []
    for i, (arm, rate) in enumerate(CELLS):
        gain = RunSummary.of(blocks.end[i] - blocks.start[i]).interval()
        rows.append([
            f"`{arm}`",
            _rate(rate),
            level(blocks.area[i]),
            points(Difference(gain.value, gain.low, gain.high, np.nan)),
            percent(float(blocks.alike[i].mean())),
            f"{blocks.k3[i].mean():.2g}",
            percent(float(blocks.gated[i].mean()), 2),
        ])  # fmt: skip
    head = ["arm", "rate", "area, %", "end minus start, points", "judged alike at the end, %",
            "k3, nats", "tokens cut, %"]  # fmt: skip
    start = level(blocks.start[0])
    alike = percent(float(blocks.alike_start[0].mean()))
    late = (GENERATIONS * blocks.k3 - (FIRST - 1) * blocks.early) / (GENERATIONS - FIRST + 1)
    kept = ", ".join(f"{late[CELLS.index(('held', rate))].mean():.3f}" for rate in RATES)
    last = (
        f"`held` kept k3 over generations {FIRST} to {GENERATIONS} at {kept} nats, in the order of "
        f"the rates; its target was {TARGET}."
    )
    first = (
        f"The start has {start} % right answers, and {alike} % of its problems are judged alike."
    )
    return f"{first}\n\n{markdown_table(head, rows)}\n\n{last}"


def _rate(rate: float) -> str:
    return f"{rate:.2e}".replace("e-0", "e-").replace("0e-", "e-")


def exchanged(blocks: Blocks) -> str:
    """The exchange rate in words."""
    t, fit = exchange(blocks.area[: len(GRID)])
    if np.isnan(t.low):
        return "The area falls with neither dial in so many resamples that a has no interval."
    bend = np.exp(fit.bend - fit.a * log(0.2))
    changes = []
    for arm in SWEPT:
        change = paired(blocks.of("area", arm, RATES[-1]) - blocks.of("area", arm))
        changes.append(f"{points(Difference(*change[:4]))} points under `{arm}`")
    times, low, high = (f"{2**x:.2f}" for x in (t.value, t.low, t.high))
    return (
        f"The exchange rate a is {plain(t)}: halving ε allows a rate {times} [{low}, {high}] times "
        f"as high. At ε = 0.2 the area is level up to a rate of {_rate(float(bend))}, and beyond "
        f"it falls by {percent(float(fit.slope) * log(2))} points for each doubling of the rate. "
        "The plan expected an a between 0.6 and 1."
        "\n\n*Exploratory, not in the plan:* from the middle rate to the highest the area changes "
        f"by {join_words(changes)}. The intervals are not corrected."
    )


def advice(family: Mapping[str, Verdict]) -> str:
    """What a user should do: the sentences that the plan has fixed for these verdicts."""
    words = {name: one.word for name, one in family.items()}
    t = family["H1"].tested
    ratio = f"{2**t.value:.2f} [{2**t.low:.2f}, {2**t.high:.2f}]"
    if words["H1"] == "confirmed" and t.low > 0.5:
        first = (
            "Width and rate are nearly one dial: set them as one product, and watch k3. Halving ε "
            f"allows a learning rate {ratio} times as high."
        )
    elif words["H1"] == "confirmed":
        first = (
            "Width and rate both count, the rate more: halving ε allows a learning rate "
            f"{ratio} times as high."
        )
    elif words["H1"] == "open":
        first = (
            "How width and rate trade off is open: halving the ε of a clip allowed a rate "
            f"{ratio} times as high."
        )
    else:
        first = "The width is no safety at a wrong learning rate: tune the rate."
    shapes = {words["H2"], words["H3"]}
    if shapes == {"equivalent"}:
        second = "At one width the shape of the trust region does not matter by 5 points."
    elif "confirmed" in shapes:
        gaps = [
            f"`atr` − `{other}` {points(Difference(*family[name].tested[:4]))} points"
            for name, other in (("H2", "mirrored"), ("H3", "symmetric"))
            if words[name] == "confirmed"
        ]
        second = f"The shape of the trust region matters at equal width: {' and '.join(gaps)}."
    else:
        second = "Whether the shape of the trust region matters at equal width is open."
    third = (
        "A threshold that holds the policy's movement (k3) makes a high learning rate usable."
        if words["H4"] == "confirmed"
        else "A threshold that holds the policy's movement (k3) has not been shown to make a high "
        "rate usable."
    )
    return f"{first} {second} {third}"


def quotes(blocks: Blocks) -> dict[Path, str]:
    """What other pages say of the runs, by page."""
    one = secondary(blocks)["S2"]
    end = "ended above" if one.word == "confirmed" else "did not surely end above"
    text = (
        f"the narrower `clip` {end} `atr` at the learning rate {_rate(MIDDLE)}, by "
        f"{points(Difference(*one.tested[:4]))} points: {one.word}. "
    ) + advice(primary(blocks.area))
    runs, seeds = f"{len(CELLS) * len(SEEDS)} planned runs", plural(len(SEEDS), "seed")
    return {
        README: f"- **In [{runs}](docs/smollm2-width.md) of {seeds}** {text}",
        CHOOSE: f"In [{runs}](smollm2-width.md) of {seeds} {text}",
    }


def calibrated(folder: Path) -> str:
    """How well the controller held k3 in calibration, and which setting was taken."""
    found = k3_held(folder)
    if not found:
        return "The calibration has not been run yet."
    rows = [
        [f"{gain:g}", *(f"{by[rate]:.4f}" if rate in by else "-" for rate in RATES)]
        for gain, by in found.items()
    ]
    head = ["G", *(f"k3 at {_rate(rate)}, nats" for rate in RATES)]
    taken = chosen(folder)
    end = "The calibration goes on." if taken is None else f"G = {taken:g} is taken."
    return f"{markdown_table(head, rows)}\n\nThe target is {TARGET} nats. {end}"


def state_of(folder: Path) -> str:
    """How many blocks are finished, and what that allows to say."""
    kinds = finished(folder)
    runs = sum(len(made) for by_kind in there(folder).values() for made in by_kind.values())
    entering = len(CELLS) * len(kinds)
    text = f"**{len(kinds)} of the {len(SEEDS)} planned blocks are finished** ({entering} runs)."
    if runs > entering:
        text += (
            " The tables also hold runs of unfinished blocks and of other kinds of processor "
            f"({runs - entering}), which enter no number."
        )
    if len(kinds) < len(SEEDS):
        return f"{text} Nothing is tabulated or concluded before all {len(SEEDS)} are."
    commits = {row["commit"] for row in used(folder / "answers.parquet", kinds)}
    return (
        f"{text} The programs of {plural(len(commits), 'commit')} made them, on "
        f"{plural(len(set(kinds.values())), 'kind')} of processor; each row names its own."
    )


def page_parts(folder: Path) -> dict[str, str]:
    """All parts of the page; as long as a block is unfinished, only how far the runs are."""
    shared = {
        "blocks": state_of(folder),
        "controls": controls_of(folder, CONTROLS),
        "calibration": calibrated(folder),
    }
    try:
        blocks = read(folder)
    except UnfinishedError:
        names = ("advice", "verdicts", "surface", "exchange", "cells", "movement", "secondary")
        return shared | dict.fromkeys(names, "Nothing yet: not all blocks are finished.")
    family = primary(blocks.area)
    pictures = {
        figure.key: f"![{figure.title}](../benchmarks/smollm2-width/{figure.key}.svg)\n\n"
        f"*{figure.caption}*"
        for figure in figures(blocks)
    }
    return shared | pictures | {
        "advice": advice(family),
        "verdicts": judged(family),
        "exchange": exchanged(blocks),
        "cells": cells(blocks),
        "secondary": judged(secondary(blocks)),
    }  # fmt: skip


def figures(blocks: Blocks) -> list[Figure]:
    """The surface over width and rate, and area against k3, with a point for each run."""
    names = list(dict.fromkeys(arm for arm, _ in CELLS))
    area, k3 = 100 * blocks.area, blocks.k3
    seen = (10.0 * floor(area.min() / 10), 10.0 * ceil(area.max() / 10))
    moved = (0.8 * float(k3.min()), 1.25 * float(k3.max()))
    panels = []
    for arm in SWEPT:
        each = [100 * blocks.of("area", arm, rate) for rate in RATES]
        marks = [
            Mark("points", [1e4 * rate] * len(SEEDS), values.tolist(), arm, names.index(arm))
            for rate, values in zip(RATES, each, strict=True)
        ]
        marks.append(
            Mark("line", [1e4 * rate for rate in RATES], [float(v.mean()) for v in each], arm,
                 names.index(arm))
        )  # fmt: skip
        panels.append(
            Panel(arm, "learning rate, 1e-4", "area, %", marks, log_x=True, y_range=seen,
                  ticks=[1e4 * rate for rate in RATES])
        )  # fmt: skip
    surface = Figure(
        "surface",
        "Area over the width of the clip and the learning rate",
        "Right answers in generations 4 to 16: a point for each of ten blocks, and their mean.",
        panels,
    )
    runs, means = [], []
    for i, arm in enumerate(names):
        own = [n for n, cell in enumerate(CELLS) if cell[0] == arm]
        runs.append(Mark("points", k3[own].ravel().tolist(), area[own].ravel().tolist(), arm, i))
        at = k3[own].mean(axis=1), area[own].mean(axis=1)
        means.append(Mark("line", at[0].tolist(), at[1].tolist(), arm, i))
    movement = Figure(
        "movement",
        "Area against k3",
        f"Left, a point for each of {area.size} runs: mean k3 of its generations, and its area. "
        "Right, means over ten blocks; a line joins the learning rates of an arm, lowest first.",
        [
            Panel(title, "k3, nats", "area, %", marks, log_x=True, x_range=moved, y_range=seen)
            for title, marks in (("runs", runs), ("means over blocks", means))
        ],
    )
    return [surface, movement]


# -- power -----------------------------------------------------------------------------------------

#: Standard deviations in the committed blocks of the first experiment, as shares: of a block; of a
#: run beside its block, where runs keep what they learn and where they lose 6 points or more; of
#: the difference of two shapes.
BLOCK, HEALTHY, FALLING, SHAPES = 0.032, 0.027, 0.050, 0.047
#: At an ε of 0.2: the rate beyond which the area falls, and by how much a unit of ln rate.
BEND_AT, SLOPE = 2.29e-4, 0.078


def simulated(a: float, gap: float, rng: np.random.Generator) -> Numbers:
    """Areas of all cells in ten blocks, shape [cells, blocks].

    Args:
      a: the true exchange rate.
      gap: true difference of `atr` to both other shapes.
      rng: source of chance.
    """
    fall, spread = [], []
    for arm, rate in CELLS:
        width = float(arm[5:]) if arm.startswith("clip") else None
        lost = 0.0
        if width is not None:
            lost = SLOPE * max(0.0, log(rate / BEND_AT) + a * log(width / 0.2))
        fall.append(lost - gap * (arm == "atr"))
        same = SHAPES / sqrt(2) if arm in ("atr", "mirrored", "symmetric") else HEALTHY
        spread.append(same + (FALLING - HEALTHY) * min(1.0, lost / 0.06))
    chance = rng.normal(size=(len(CELLS), len(SEEDS))) * np.array(spread)[:, None]
    return 0.49 - np.array(fall)[:, None] + BLOCK * rng.normal(size=len(SEEDS)) + chance


def power(repeats: int = 200, resamples: int = 2000) -> str:
    """How often each verdict is reached in simulated experiments of ten blocks."""
    rows = []
    for a, gap in ((0.0, 0.0), (0.4, 0.0), (0.77, 0.0), (0.77, 0.03), (0.77, 0.05), (1.0, 0.0)):
        rng = np.random.default_rng(0)
        found = [primary(simulated(a, gap, rng), resamples) for _ in range(repeats)]
        a_found = [one["H1"].tested for one in found]
        low, high = np.nanquantile([t.value for t in a_found], [0.05, 0.95])
        covers = np.mean([t.low <= a <= t.high for t in a_found])

        def share(name: str, word: str, found: Sequence[Any] = found) -> str:
            return f"{np.mean([one[name].word == word for one in found]):.2f}"

        rows.append([
            f"{a:g}", percent(gap, 0), f"{low:.2f} to {high:.2f}".replace("-", "−"),
            f"{covers:.2f}", share("H1", "confirmed"), share("H1", "equivalent"),
            share("H2", "confirmed"), share("H2", "equivalent"), share("H4", "confirmed"),
        ])  # fmt: skip
    head = ["true a", "true difference of shapes, points", "estimates of a, 5 to 95 %",
            "intervals that cover a", "H1 confirmed", "H1 equivalent", "H2 confirmed",
            "H2 equivalent", "H4 confirmed"]  # fmt: skip
    return markdown_table(head, rows)


def main() -> None:
    """Write the page and its figures, or print the power of ten blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--power", action="store_true")
    options = parser.parse_args()
    if options.power:
        print(power())
        return
    PAGE.write_text(filled(PAGE.read_text("utf-8"), page_parts(options.folder)), encoding="utf-8")
    if len(finished(options.folder)) == len(SEEDS):
        blocks = read(options.folder)
        for figure in figures(blocks):
            drawn(figure, FOLDER, "python benchmarks/smollm2_width_report.py")
        for page, text in quotes(blocks).items():
            page.write_text(quoted(page, text, "width"), encoding="utf-8")


if __name__ == "__main__":
    main()
