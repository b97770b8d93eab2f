"""What the runs with SmolLM2 say, from the committed tables alone, by docs/smollm2-plan.md.

    python benchmarks/smollm2_report.py                  # writes docs/smollm2.md and README.md
    python benchmarks/smollm2_report.py FOLDER --print   # prints the tables, of other tables

In the page it writes what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` alone.
A block is a seed whose eight runs are all there; others are left out.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from trustclip.report.draw.marks import Figure, Mark, Panel
from trustclip.stats import Difference
from trustclip.stats.confidence import RunSummary
from trustclip.stats.planning import Spread
from trustclip.support.text import markdown_table, percent
from trustclip_lab.pages import filled
from trustclip_lab.stats.equivalence import Contrast, contrasts
from trustclip_lab.stats.planning import gap_for

ROOT = Path(__file__).parents[1]
FOLDER, PAGE, README = ROOT / "benchmarks/smollm2", ROOT / "docs/smollm2.md", ROOT / "README.md"
ARMS = ("atr", "clip", "mirror", "none")
OTHERS = ARMS[1:]
GENERATIONS, COMPLETIONS = 16, 64
#: Of the primary metric.
FIRST = 4
#: The smallest difference of areas that would matter.
MARGIN = 0.03
#: The score at which entropies are compared, and by how much a collapsed run is below its best.
EQUAL, COLLAPSED = 0.5, 0.1
#: States of part B: three generations of eight seeds.
STATES = 24
#: Blocks that were planned, the fewest of which anything is concluded, and those of the power.
PLANNED, ENOUGH = 16, 6
SIZES = (6, 8, 12, 16)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """The finished blocks. Arrays have the shape [arms, rates, seeds, ...].

    Args:
      seeds: of the blocks.
      rates: learning rates, the lower one first.
      right: share of right answers in each generation, 0 in those that a run did not reach.
      entropy: of the policy in each generation, nats; nan where there is none.
      gated: share of tokens cut, mean over generations.
      k3: to the policy of the generation, nats, mean over generations.
      end: share of right answers to held-out problems after the last update.
    """

    seeds: list[int]
    rates: list[float]
    right: Numbers
    entropy: Numbers
    gated: Numbers
    k3: Numbers
    end: Numbers

    @property
    def area(self) -> Numbers:
        """Share of right answers in the rollouts of generations 4 to 16."""
        return self.right[..., FIRST - 1 :].mean(axis=-1)

    @property
    def collapsed(self) -> NDArray[np.bool_]:
        """Whether the last three generations are far below the best three."""
        best = np.sort(self.right, axis=-1)[..., -3:].mean(axis=-1)
        return np.asarray(best - self.right[..., -3:].mean(axis=-1) >= COLLAPSED)

    @property
    def entropy_at_equal_score(self) -> Numbers:
        """Entropy where the score first passes 50 %, interpolated; nan where it never does."""
        found = np.full(self.end.shape, np.nan)
        for place in np.ndindex(*found.shape):
            score, entropy = self.right[place], self.entropy[place]
            above = np.flatnonzero((score[1:] >= EQUAL) & (score[:-1] < EQUAL))
            if len(above):
                i = above[0]
                share = (EQUAL - score[i]) / (score[i + 1] - score[i])
                found[place] = entropy[i] + share * (entropy[i + 1] - entropy[i])
        return found

    def minus(self, values: Numbers, arm: str) -> Numbers:
        """`atr` - an arm in each block, by rate. Shape [rates, seeds]."""
        return np.asarray(values[0] - values[ARMS.index(arm)])


def read(folder: Path) -> Blocks:
    """The finished blocks of the tables in a folder.

    Raises:
      ValueError: there is none.
    """
    generations = pq.read_table(folder / "generations.parquet").to_pylist()
    answers = pq.read_table(folder / "answers.parquet").to_pylist()
    rates = sorted({row["rate"] for row in generations})
    there = {(row["arm"], row["rate"], row["seed"]) for row in answers if row["update"]}
    seeds = sorted({row["seed"] for row in answers})
    whole = [
        seed for seed in seeds if all((arm, rate, seed) in there for arm in ARMS for rate in rates)
    ]
    if not whole:
        raise ValueError(f"{folder}: no seed has a finished run of every arm at every rate.")
    shape = (len(ARMS), len(rates), len(whole))
    by_generation: dict[str, Numbers] = {
        name: np.full((*shape, GENERATIONS), np.nan) for name in ("right", "entropy", "gated", "k3")
    }
    by_generation["right"][:] = 0.0

    def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return ARMS.index(row["arm"]), rates.index(row["rate"]), whole.index(row["seed"])

    of_blocks = [row for row in generations if row["arm"] in ARMS and row["seed"] in whole]
    for row in of_blocks:
        at = (*place(row), row["generation"] - 1)
        by_generation["right"][at] = row["right"] / COMPLETIONS
        for name in ("entropy", "gated", "k3"):
            if row[name] is not None:
                by_generation[name][at] = row[name]
    counts = np.zeros((2, *shape))
    for row in answers:
        if row["update"] and row["arm"] in ARMS and row["seed"] in whole:
            counts[(slice(None), *place(row))] += row["right"], row["samples"]
    return Blocks(
        whole,
        rates,
        by_generation["right"],
        by_generation["entropy"],
        mean(by_generation["gated"]),
        mean(by_generation["k3"]),
        counts[0] / counts[1],
    )


def mean(values: Numbers) -> Numbers:
    """Mean over the last axis of the values that are there; nan where none is."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.asarray(np.where(known.any(axis=-1), total, np.nan) / known.sum(axis=-1).clip(1))


def tested(blocks: Blocks) -> dict[str, Contrast]:
    """The three contrasts of the area over both rates, with Holm's correction."""
    over = [blocks.minus(blocks.area, arm).mean(axis=0) for arm in OTHERS]
    return dict(zip(OTHERS, contrasts([RunSummary.of(d) for d in over], MARGIN), strict=True))


def interactions(blocks: Blocks) -> dict[str, Contrast]:
    """By how much each contrast is larger at the higher rate, a family of its own."""
    each = [blocks.minus(blocks.area, arm) for arm in OTHERS]
    return dict(
        zip(OTHERS, contrasts([RunSummary.of(d[-1] - d[0]) for d in each], MARGIN), strict=True)
    )


def said(blocks: Blocks) -> dict[str, str]:
    """What the plan has fixed to say of each contrast."""
    by_rate = interactions(blocks)
    return {
        arm: _said(one, by_rate[arm], float(blocks.minus(blocks.end, arm).mean()))
        for arm, one in tested(blocks).items()
    }


def _said(one: Contrast, by_rate: Contrast, end: float) -> str:
    tuning = "; tuning: it depends on the rate" if by_rate.p_holm < 0.05 else ""
    if one.conclusion == "larger":
        same = "confirmed" if end > 0 else "open: the end has the other sign"
        return same + tuning
    if one.conclusion == "inconclusive":
        return "open" + tuning
    return f"refuted ({one.conclusion})" + tuning


# -- tables ----------------------------------------------------------------------------------------


def scores(blocks: Blocks) -> str:
    """Every arm at every rate, means over blocks."""
    collapsed, entropy = blocks.collapsed, blocks.entropy_at_equal_score
    rows = [
        [
            f"`{arm}`",
            rate_text(rate),
            level(blocks.area[i, j]),
            level(blocks.end[i, j]),
            percent(float(blocks.gated[i, j].mean()), 2),
            f"{blocks.k3[i, j].mean():.2g}",
            number(mean(entropy[i, j])),
            f"{collapsed[i, j].sum()} of {len(blocks.seeds)}",
        ]
        for i, arm in enumerate(ARMS)
        for j, rate in enumerate(blocks.rates)
    ]
    head = ["arm", "rate", "area, %", "end, %", "tokens cut, %", "k3, nats",
            "entropy at 50 % right, nats", "collapsed"]  # fmt: skip
    return markdown_table(head, rows)


def compared(blocks: Blocks) -> str:
    """The contrasts of the primary metric, and by rate, of the end, and their interaction."""
    by_rate, words = interactions(blocks), said(blocks)
    rows = []
    for arm, one in tested(blocks).items():
        area = blocks.minus(blocks.area, arm)
        end = paired(blocks.minus(blocks.end, arm).mean(axis=0))
        rows.append([
            f"`atr` − `{arm}`",
            points(one.difference),
            f"{one.p_holm:.3f}",
            f"{one.p_equivalent:.3f}",
            *(points(paired(d)) for d in area),
            f"{points(by_rate[arm].difference)}, p {by_rate[arm].p_holm:.3f}",
            points(end),
            words[arm],
        ])  # fmt: skip
    rates = [f"at {rate_text(rate)}" for rate in blocks.rates]
    head = ["contrast", "area, points", "p (Holm)", "p of ±3 or more (Holm)", *rates,
            "difference of the two", "end", "said"]  # fmt: skip
    return markdown_table(head, rows)


def paired(differences: Numbers) -> Difference:
    """Student's interval of differences of blocks."""
    return contrasts([RunSummary.of(differences)], MARGIN)[0].difference


def level(values: Numbers) -> str:
    """A mean over blocks with its interval, percent."""
    interval = RunSummary.of(values).interval()
    return f"{percent(interval.value)} [{percent(interval.low)}, {percent(interval.high)}]"


def points(found: Difference) -> str:
    """A difference with its interval, points."""
    sign = "+" if found.value > 0 else ""
    return f"{sign}{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"


def rate_text(rate: float) -> str:
    """A learning rate with two digits, ``2.8e-4``."""
    return f"{rate:.1e}".replace("e-0", "e-")


def number(value: Numbers) -> str:
    """Two digits, or a stroke where it is unknown."""
    return "-" if np.isnan(value) else f"{float(value):.2f}"


def power(blocks: Blocks) -> str:
    """How much the pairs of blocks differ, and what differences so many blocks can find."""
    strictest = 1 - 0.05 / len(OTHERS)
    rows = []
    for arm in OTHERS:
        d = blocks.minus(blocks.area, arm).mean(axis=0)
        std = Spread(float(d.std(ddof=1)), len(d) - 1, True).interval()
        found = [gap_for(std.value, size, level=strictest) for size in SIZES]
        rows.append([
            f"`atr` − `{arm}`",
            f"{percent(std.value)} [{percent(std.low)}, {percent(std.high)}]",
            *map(percent, found),
        ])  # fmt: skip
    head = ["contrast", "standard deviation of a block's difference, points",
            *(f"{size} blocks" for size in SIZES)]  # fmt: skip
    return markdown_table(head, rows)


def tables(blocks: Blocks) -> dict[str, str]:
    """Parts of the page by name."""
    runs = len(ARMS) * len(blocks.rates) * len(blocks.seeds)
    return {
        "blocks": f"{len(blocks.seeds)} blocks, {runs} runs.",
        "scores": scores(blocks),
        "contrasts": compared(blocks),
        "power": power(blocks),
    }


# -- the page --------------------------------------------------------------------------------------


def there_are(folder: Path) -> Blocks | None:
    """The finished blocks of a folder; None where there are fewer than the two of an interval."""
    if not (folder / "answers.parquet").exists():
        return None
    try:
        blocks = read(folder)
    except ValueError:
        return None
    return blocks if len(blocks.seeds) > 1 else None


def page_parts(folder: Path) -> dict[str, str]:
    """All parts of the page, also where no block is finished."""
    blocks = there_are(folder)
    state = state_of(folder)
    both = {"controls": controls(folder), "branches": branches(folder)}
    if blocks is None:
        nothing = "Nothing yet: an interval needs two blocks."
        names = ("contrasts", "curves", "power", "predictions", "scores")
        return {"blocks": state, **both} | dict.fromkeys(names, nothing)
    picture = f"![{curves(blocks).title}](../benchmarks/smollm2/curves.svg)"
    return {
        **tables(blocks),
        **both,
        "blocks": state,
        "predictions": predictions(blocks),
        "curves": f"{picture}\n\n*{curves(blocks).caption}*",
    }


def state_of(folder: Path) -> str:
    """How much of the plan there is, and whether that is enough to conclude anything."""
    path = folder / "answers.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    runs = {(row["arm"], row["rate"], row["seed"]) for row in rows if row["arm"] in ARMS}
    of_seed = Counter(seed for _, _, seed in runs)
    whole = sum(count == 2 * len(ARMS) for count in of_seed.values())
    text = f"**{whole} of the {PLANNED} planned blocks are finished** ({len(runs)} runs)."
    if begun := len(of_seed) - whole:
        text += f" Some runs of {begun} more are there, and are left out."
    if whole >= ENOUGH:
        return text + f" The plan asks for {ENOUGH} or more."
    missing = "1 more block is" if whole == ENOUGH - 1 else f"{ENOUGH - whole} more blocks are"
    return (
        f"{text} The plan asks for {ENOUGH} or more, so **nothing is concluded yet**: "
        f"{missing} missing. What stands below is how far the runs have come."
    )


#: Of each control: its name, the arms that must be the same, and at how many rates.
CONTROLS = {
    "twin": ("The exact twin of `atr`", {"atr", "twin"}, 2),
    "inert": ("One update a generation, four arms", set(ARMS), 1),
}


def controls(folder: Path, asked: Mapping[str, tuple[str, set[str], int]] = CONTROLS) -> str:
    """Whether the exact twin, and the runs on which nothing can act, are the same to the last bit.

    A control counts as run where `atr` has a run beside all others that it is compared with.
    """
    path = folder / "controls.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    lines = []
    for control, (what, arms, rates) in asked.items():
        found: dict[float, dict[str, tuple[str, str]]] = defaultdict(dict)
        for row in rows:
            if row["control"] == control:
                found[row["rate"]][row["arm"]] = row["answers"], row["weights"]
        whole = [hashes for hashes in found.values() if hashes.keys() == arms]
        if any(len(set(hashes.values())) > 1 for hashes in whole):
            lines.append(f"{what}: **differs**. Nothing is reported until the error is found.")
        elif len(whole) < rates:
            lines.append(f"{what}: not run yet.")
        else:
            lines.append(f"{what}: every answer and every weight is the same.")
    return "\n".join(f"- {line}" for line in lines)


def branches(folder: Path) -> str:
    """Part B: what one generation under each arm does to one state, and Theorem 5.2 on it."""
    path = folder / "branches.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    states: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        states[row["seed"], row["generation"]][row["arm"]] = row
    whole = {at: arms for at, arms in sorted(states.items()) if {"state", *ARMS} <= arms.keys()}
    if len(seeds := {seed for seed, _ in whole}) < 2:
        return f"{len(whole)} of the {STATES} planned states are measured; two seeds are needed."

    def change(name: str, arm: str, other: str = "state") -> str:
        """An arm less another: mean over seeds of the means over a seed's states, mnat."""
        by_seed = defaultdict(list)
        for (seed, _), arms in whole.items():
            by_seed[seed].append(1e3 * (arms[arm][name] - arms[other][name]))
        each = RunSummary.of([float(np.mean(of)) for of in by_seed.values()]).interval()
        return f"{each.value:+.2f} [{each.low:.2f}, {each.high:.2f}]".replace("-", "−")

    names = ("entropy", "kl_old_new", "kl_new_old", "solutions")
    changes = {f"`{arm}`": [change(name, arm) for name in names] for arm in ARMS}
    changes |= {f"`atr` − `{arm}`": [change(name, "atr", arm) for name in names] for arm in OTHERS}
    table = markdown_table(
        ["arm", "change of entropy, mnat", "KL(old ‖ new), mnat", "KL(new ‖ old), mnat",
         "change of the log-probability of worked solutions, mnat"],
        [[arm, *cells] for arm, cells in changes.items()],
    )  # fmt: skip
    gap = np.array([a["atr"]["entropy"] - a["mirror"]["entropy"] for a in whole.values()])
    apart = [a["atr"]["only_atr"] + a["atr"]["only_mirror"] for a in whole.values()]
    blocks = there_are(folder)
    agreed = {
        seed: arms["state"]["alike"]
        for (seed, _), arms in whole.items()
        if blocks is None or seed in blocks.seeds
    }
    parted = [f"seed {seed} in {n}" for seed, n in agreed.items() if n < GENERATIONS]
    first = f"; {len(seeds) - len(agreed)} more are first made here"
    lines = [
        f"{len(whole)} of the {STATES} planned states, of {len(seeds)} seeds. Of the runs made "
        f"anew, {len(agreed) - len(parted)} of {len(agreed)} score as the committed ones in all "
        f"{GENERATIONS} generations{', '.join(['', *parted])}"
        f"{first if len(agreed) < len(seeds) else ''}.",
        table,
        f"The gates of `atr` and of `mirror` treat {np.mean(apart):.1f} tokens of a generation "
        f"differently ({min(apart)} to {max(apart)}); the two entropies then differ by "
        f"{1e3 * np.abs(gap).mean():.1f} mnat, mean of the sizes.",
    ]
    for name, words in (("stated", "as stated"), ("corrected", "with π(a), as derived")):
        predicted = np.array([arms["atr"][name] for arms in whole.values()])
        right, count = int((gap * predicted > 0).sum()), int((gap * predicted != 0).sum())
        if count < 3:
            lines.append(f"Theorem 5.2, {words}: too few states in which the two gates differ.")
            continue
        p = stats.binomtest(right, count).pvalue
        r: Any = stats.pearsonr(predicted, gap)
        low, high = r.confidence_interval()
        size = f"{r.statistic:+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
        lines.append(
            f"Theorem 5.2, {words}: the sign of `atr` − `mirror` in entropy is right in {right} of "
            f"{count} states (p = {p:.2g}); correlation {size}, states taken as independent. At "
            f"the tokens' own places, {sum(a['atr'][f'{name}_right'] for a in whole.values())} of "
            f"{sum(a['atr']['tokens'] for a in whole.values())} tokens have its sign."
        )
    return "\n\n".join(lines)


def predictions(blocks: Blocks) -> str:
    """A sentence on each prediction of the plan."""
    words, arena, by_contrast = said(blocks), arena_said(blocks), tested(blocks)
    clip, mirror, none = (by_contrast[arm] for arm in OTHERS)
    rise = interactions(blocks)["none"].difference
    e = blocks.entropy_at_equal_score
    more = mean((e[0] - e[ARMS.index("mirror")]).T)  # of a block, over the rates that passed 50 %
    known = more[~np.isnan(more)]
    entropy = "cannot be compared: it needs two blocks in which both pass it"
    if len(known) > 1:
        d = paired(known)
        entropy = f"differs by {d.value:+.3f} nats [{d.low:.3f}, {d.high:.3f}]".replace("-", "−")
    lines = [
        f"The paper, `atr` − `clip` above 0: {points(clip.difference)} points of area; "
        f"{words['clip']}.",
        f"The paper, `atr` − `mirror` above 0, with more entropy: {points(mirror.difference)}; "
        f"{words['mirror']}; entropy at 50 % right {entropy}.",
        f"Our arena, `mirror` within 1 point of `atr`: {points(mirror.difference)}; "
        f"{arena['mirror']}.",
        f"Our arena, `none` not above `atr`, and further below at the higher rate: "
        f"{points(none.difference)}; {arena['none']}; {points(rise)} more at the higher rate; "
        f"{arena['rise']}.",
        f"Our arena, `clip` 0 to 2 points behind: {points(clip.difference)}; {arena['clip']}.",
    ]
    if mirror.conclusion == "equivalent" and clip.conclusion == "larger":
        lines.append("So: width, not asymmetry.")
    early = len(blocks.seeds) < ENOUGH
    note = "\n\nToo few blocks to conclude anything: a look, not a result." if early else ""
    return "\n".join(f"- {line}" for line in lines) + note


def lead(blocks: Blocks) -> str:
    """The results as the README gives them: the figure, and a sentence on each prediction."""
    words, arena = said(blocks), arena_said(blocks)
    clip, mirror, none = (points(one.difference) for one in tested(blocks).values())
    runs = len(ARMS) * len(blocks.rates) * len(blocks.seeds)
    return (
        f"![{curves(blocks).title}](benchmarks/smollm2/curves.svg)\n\n"
        f"**A pretrained model, planned before its runs** ([SmolLM2-135M](docs/smollm2.md), {runs} "
        "runs). Right answers in training, points; `mirror` exchanges the bounds of `atr`:"
        "\n\n"
        f"- `atr` − `clip` {clip}. The paper, above 0: {words['clip']}. Our arena, 0 to 2: "
        f"{arena['clip']}.\n"
        f"- `atr` − `mirror` {mirror}. The paper, above 0: {words['mirror']}. Our arena, within 1: "
        f"{arena['mirror']}.\n"
        f"- `atr` − `none` {none}: {words['none']}. Our arena, not below: {arena['none']}; more at "
        f"the higher rate: {arena['rise']}."
    )


def arena_said(blocks: Blocks) -> dict[str, str]:
    """Whether the arena's predictions hold, by arm; ``"rise"``: none, more at the higher rate."""
    gaps = {arm: one.difference for arm, one in tested(blocks).items()}
    gaps["rise"] = interactions(blocks)["none"].difference
    bounds = {"clip": (0.0, 0.02), "mirror": (-0.01, 0.01), "none": (0.0, 1.0), "rise": (0.0, 2.0)}
    return {name: held(gap, *bounds[name]) for name, gap in gaps.items()}


def held(found: Difference, low: float, high: float) -> str:
    """Whether a prediction holds: all of the interval is within what was predicted, or none."""
    if low <= found.low and found.high <= high:
        return "holds"
    return "does not hold" if found.high < low or found.low > high else "open"


def curves(blocks: Blocks) -> Figure:
    """Learning curves of `atr` and of each other arm, by rate."""
    x = [float(n) for n in range(1, GENERATIONS + 1)]
    panels = []
    for j, rate in enumerate(blocks.rates):
        for arm in OTHERS:
            marks: list[Mark] = []
            for name in (arm, "atr"):
                i = ARMS.index(name)
                each = [RunSummary.of(100 * v).interval() for v in blocks.right[i, j].T]
                low, high = [one.low for one in each], [one.high for one in each]
                middle = [one.value for one in each]
                marks.append(Mark("band", x, middle, name, i, low, high))
                marks.append(Mark("line", x, middle, name, i))
            title = f"atr and {arm}, rate {rate_text(rate)}"
            panels.append(Panel(title, "generation", "right, %", marks, y_range=(0.0, 100.0)))
    caption = (
        "Right answers in the rollouts of each generation, to problems seen for the first time: "
        f"mean of {len(blocks.seeds)} blocks with Student's 95 % intervals, which leave out that "
        "blocks are paired."
    )
    return Figure("curves", "Learning curves of four trust regions at two rates", caption, panels)


def drawn(figure: Figure, folder: Path, command: str) -> None:
    """Write a figure, and name it with its command among those of the documentation."""
    from trustclip.report.draw.figures import save

    pdf, svg = save(figure, folder)
    pdf.unlink()
    made = ROOT / "docs/figures.toml"
    line = f'"benchmarks/{folder.name}/{svg.name}" = ["{command}"]\n'
    if line not in (text := made.read_text(encoding="utf-8")):
        made.write_text(text + line, encoding="utf-8")


def main() -> None:
    """Write the page and its figure, or print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--print", action="store_true", dest="prints")
    options = parser.parse_args()
    if options.prints:
        print("\n\n".join(tables(read(options.folder)).values()))
        return
    text = filled(PAGE.read_text(encoding="utf-8"), page_parts(options.folder))
    PAGE.write_text(text, encoding="utf-8")
    if blocks := there_are(options.folder):
        drawn(curves(blocks), FOLDER, "python benchmarks/smollm2_report.py")
        text = filled(README.read_text(encoding="utf-8"), {"smollm2": lead(blocks)})
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
