"""What the runs with SmolLM2 say, from the committed tables alone, by docs/smollm2-plan.md.

    python benchmarks/smollm2_report.py                  # writes its page, and what others quote
    python benchmarks/smollm2_report.py FOLDER --print   # prints the tables, of other tables

In a page it writes what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` alone.
The blocks and their tests are in smollm2_blocks.py, part B in smollm2_theorem.py.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy import stats
from smallest_gap import gap_for
from smollm2_blocks import (
    ARMS,
    GENERATIONS,
    OTHERS,
    Blocks,
    Numbers,
    arena_said,
    ends,
    interactions,
    learned,
    mean,
    paired,
    read,
    said,
    tested,
    there_are,
)
from smollm2_theorem import branches, farther, theorem, whole_states

import trustclip as tc
from trustclip.report.draw.marks import Figure, Mark, Panel
from trustclip.stats import Difference
from trustclip.stats.confidence import RunSummary
from trustclip.stats.power import Spread
from trustclip.support.text import bracket, join_words, markdown_table, percent, signed
from trustclip_lab.pages import filled

ROOT = Path(__file__).parents[1]
FOLDER, PAGE, README = ROOT / "benchmarks/smollm2", ROOT / "docs/smollm2.md", ROOT / "README.md"
CHOOSE, PAPER = ROOT / "docs/choose.md", ROOT / "docs/lab/paper.md"
#: Blocks that were planned, the fewest of which anything is concluded, and those of the power.
PLANNED, ENOUGH = 16, 6
SIZES = (6, 8, 12, 16)
#: Numbers of finished blocks at which the page was made and committed.
LOOKS = (3, 4, 5, 6)

# -- tables ----------------------------------------------------------------------------------------


def scores(blocks: Blocks) -> str:
    """Every arm at every rate, means over blocks."""
    entropy, chance = blocks.entropy_at_equal_score, blocks.collapsed_by_chance.sum(axis=-1)
    rows = [
        [
            f"`{arm}`",
            rate_text(rate),
            level(blocks.area[i, j]),
            level(blocks.end[i, j]),
            points(paired(blocks.end[i, j] - blocks.start[i, j])),
            percent(float(blocks.alike[i, j].mean()), 0),
            percent(float(blocks.gated[i, j].mean()), 2),
            f"{blocks.k3[i, j].mean():.2g}",
            number(mean(entropy[i, j])),
            f"{blocks.collapsed[i, j].sum()} of {len(blocks.seeds)}",
            f"{chance[i, j]:.1f}",
        ]
        for i, arm in enumerate(ARMS)
        for j, rate in enumerate(blocks.rates)
    ]
    head = ["arm", "rate", "area, %", "end, %", "end minus start, points", "four equal answers, %",
            "tokens cut, %", "k3, nats", "entropy at 50 % right, nats", "collapsed",
            "collapsed in random order"]  # fmt: skip
    start, alike = blocks.start[0, 0], float(blocks.alike_start[0, 0].mean())
    return (
        f"The start has {level(start)} % right answers, and {percent(alike, 0)} % of its held-out "
        f"problems have four equal answers.\n\n{markdown_table(head, rows)}\n\n"
        f"*Collapsed* is mostly noise: {blocks.collapsed.sum()} of {blocks.collapsed.size} runs "
        f"are, and {chance.sum():.1f} would be if the scores of each run came in random order."
    )


def compared(blocks: Blocks) -> str:
    """The contrasts of the primary metric; then by rate, their interaction, and of the end."""
    by_rate, end, words = interactions(blocks), ends(blocks), said(blocks)
    first, second = [], []
    for arm, one in tested(blocks).items():
        first.append([
            f"`atr` − `{arm}`",
            points(one.difference),
            f"{one.p_holm:.3f}",
            f"{one.flips_holm:.3f}",
            f"{one.p_equivalent:.3f}",
            words[arm],
        ])  # fmt: skip
        second.append([
            f"`atr` − `{arm}`",
            *(points(paired(d)) for d in blocks.minus(blocks.area, arm)),
            f"{points(by_rate[arm].difference)}, p {by_rate[arm].p_holm:.3f}",
            *(points(paired(d)) for d in blocks.minus(blocks.end, arm)),
            f"{points(end[arm].difference)}, p {end[arm].p_holm:.3f}",
            f"{end[arm].below} of {len(blocks.seeds)}",
        ])  # fmt: skip
    low, high = map(rate_text, blocks.rates)
    tables = (
        markdown_table(["contrast", "area, points", "p, t test (Holm)", "p, sign flips (Holm)",
                        "p of ±3 or more (Holm)", "said"], first),
        markdown_table(["contrast", f"area at {low}", f"at {high}", "difference of the two (Holm)",
                        f"end at {low}", f"at {high}", "mean of the two (Holm)",
                        "blocks with the end of `atr` behind"], second),
    )  # fmt: skip
    return "\n\n".join(tables)


def looks(blocks: Blocks) -> str:
    """What each committed look at the blocks showed: areas, and p after Holm's correction."""
    rows = [
        [str(count), *(f"{signed(one.difference.value)}, p {one.p_holm:.3f}"
                       for one in tested(blocks.first(count)).values())]
        for count in LOOKS if count <= len(blocks.seeds)
    ]  # fmt: skip
    return markdown_table(["blocks", *(f"`atr` − `{arm}`, points" for arm in OTHERS)], rows)


def movement(blocks: Blocks) -> str:
    """How k3 orders the cells by area: of all blocks together, and within blocks beforehand."""

    def within(arms: int) -> str:
        each: list[Any] = [
            stats.spearmanr(blocks.early[:arms, :, n].ravel(), blocks.area[:arms, :, n].ravel())
            for n in range(len(blocks.seeds))
        ]
        found = RunSummary.of([one.statistic for one in each]).interval()
        return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]".replace("-", "−")

    k3, area = blocks.k3.mean(axis=-1), blocks.area.mean(axis=-1)
    cells = sorted(np.ndindex(*k3.shape), key=lambda cell: k3[cell])
    rows = [
        [f"`{ARMS[i]}`", rate_text(blocks.rates[j]), f"{k3[i, j]:.2g}",
         f"{blocks.early[i, j].mean():.2g}", percent(float(area[i, j]))]
        for i, j in cells
    ]  # fmt: skip
    every: Any = stats.spearmanr(k3.ravel(), area.ravel())
    head = ["arm", "rate", "k3, nats", "k3 of generations 1 to 3, nats", "area, %"]
    return (
        "**The further a cell moves, the smaller its area.** Over the means of the "
        f"{len(cells)} cells Spearman's correlation of k3 and area is "
        f"{f'{every.statistic:.2f}'.replace('-', '−')}. Within a block, with the k3 of generations "
        f"1 to 3 alone, before the area begins, it is {within(len(ARMS))} on average, and "
        f"{within(len(ARMS) - 1)} without `none`.\n\n{markdown_table(head, rows)}"
    )


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
        "looks": looks(blocks),
        "movement": movement(blocks),
        "power": power(blocks),
    }


# -- the page --------------------------------------------------------------------------------------


def page_parts(folder: Path) -> dict[str, str]:
    """All parts of the page, also where no block is finished."""
    blocks = there_are(folder)
    state = state_of(folder)
    both = {"controls": controls(folder), "branches": branches(folder)}
    if blocks is None:
        nothing = "Nothing yet: an interval needs two blocks."
        names = ("contrasts", "curves", "looks", "movement", "power", "predictions", "result")
        return {"blocks": state, **both} | dict.fromkeys((*names, "scores"), nothing)
    picture = f"![{curves(blocks).title}](../benchmarks/smollm2/curves.svg)"
    return {
        **tables(blocks),
        **both,
        "blocks": state,
        "result": "\n".join(f"- {sentence}" for sentence in told(blocks).values()),
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


# -- what is said ----------------------------------------------------------------------------------


def predictions(blocks: Blocks) -> str:
    """What became of each prediction of the plan."""
    words, arena, area = said(blocks), arena_said(blocks), tested(blocks)
    area["rise"] = interactions(blocks)["none"]
    e = blocks.entropy_at_equal_score
    more = mean((e[0] - e[ARMS.index("mirror")]).T)  # of a block, over the rates that passed 50 %
    known = more[~np.isnan(more)]
    entropy = "cannot be compared: it needs two blocks in which both pass it"
    if len(known) > 1:
        d = paired(known)
        entropy = f"differs by {d.value:+.3f} nats [{d.low:.3f}, {d.high:.3f}]".replace("-", "−")
    rows = [
        [whose, what, points(area[name].difference),
         bracket(area[name].corrected.low, area[name].corrected.high), word]
        for whose, what, name, word in (
            ("the paper", "`atr` − `clip` is above 0", "clip", words["clip"]),
            ("the paper", "`atr` − `mirror` is above 0", "mirror", words["mirror"]),
            ("our arena", "`atr` − `clip` is from 0 to 2", "clip", arena["clip"]),
            ("our arena", "`atr` − `none` is not below 0", "none", arena["none"]),
            ("our arena", "and larger at the higher rate, by", "rise", arena["rise"]),
        )
    ]  # fmt: skip
    rows.append(
        ["our arena", "`atr` − `mirror` is within 1", "-", "-", "withdrawn: no such prediction"]
    )
    head = ["whose", "prediction, points of area", "found", "corrected interval", "said"]
    lines = [markdown_table(head, rows)]
    lines.append(
        "The paper also predicts more entropy under `atr` than under `mirror`: at 50 % right it "
        f"{entropy}."
    )
    if area["mirror"].conclusion == "equivalent" and area["clip"].conclusion == "larger":
        lines.append("So: width, not asymmetry.")
    if len(blocks.seeds) < ENOUGH:
        lines.append("Too few blocks to conclude anything: a look, not a result.")
    return "\n\n".join(lines)


def told(blocks: Blocks) -> dict[str, str]:
    """The sentences that pages quote, so that none has a contrast without the others."""
    words, area, end = said(blocks), tested(blocks), ends(blocks)
    tops = {ARMS[int(each.mean(axis=(1, 2)).argmax())] for each in (blocks.area, blocks.end)}
    best = (
        "the ordinary clip" if tops == {"clip"} else " or ".join(f"`{arm}`" for arm in sorted(tops))
    )
    clip, none, count = (end["clip"], area["clip"]), area["none"], len(blocks.seeds)
    at_end, in_area = (points(one.difference) for one in clip)
    unlimited = ARMS.index("none")
    grown = " and ".join(points(paired(d)) for d in (blocks.end - blocks.start)[unlimited])
    p_clip = " and ".join(f"{one.p_holm:.3f}" for one in clip)
    both = " and ".join(dict.fromkeys(one.word for one in clip))
    return {
        "clip": f"**On the pretrained model {best} scored highest, and the question is {both}:** "
        f"`atr` − `clip` is {at_end} points at the end, below 0 in {clip[0].below} of {count} "
        f"blocks, and {in_area} in the area. The intervals lack Holm's correction; with it p is "
        f"{p_clip}.",
        "none": "**Without a constraint "
        f"{'something' if learned(blocks)[unlimited].any() else 'nothing'} was learned:** the end "
        f"minus the start is {grown} points at the two learning rates. `atr` − `none` is "
        f"{points(none.difference)} in the area, and this gain is {words['none']} (Holm's p "
        f"{none.p_holm:.3f}; by exact sign flips {none.flips * 2**count:.0f}/{2**count}, after "
        f"Holm {none.flips_holm:.3f}).",
        "rates": learners(blocks),
        "mirror": f"`atr` − `mirror` is {points(area['mirror'].difference)} in the area: "
        f"{words['mirror']}. {linear()}",
    }


def learners(blocks: Blocks) -> str:
    """Which arms learned at each rate."""
    each = []
    for rate, by_arm in zip(blocks.rates, learned(blocks).T, strict=True):
        arms = [f"`{ARMS[i]}`" for i in np.flatnonzero(by_arm)]
        alone = " alone" if len(arms) == 1 else ""
        each.append(f"{rate_text(rate)} {join_words(arms or ['no arm'])}{alone}")
    low, high = each
    return (
        f"**At the learning rate {low} learned, at {high}:** their end is above the start "
        "(Holm's p < 0.05)."
    )


def linear() -> str:
    """What `mirror` is, and is not."""
    low, high = tc.interval("atr", delta=0.07)
    wider = log((2 - float(low)) / (2 - float(high))) / log(float(high) / float(low)) - 1
    return (
        "`mirror` exchanges the bounds of `atr` in the linear ratio, so it is "
        f"{percent(wider, 0)} % wider in the log ratio. Our arena's mirror image is another "
        "constraint, exchanged in the log ratio; what the arena found of it is no prediction here."
    )


def quotes(blocks: Blocks, folder: Path) -> dict[Path, str]:
    """What other pages say of the runs, by page."""
    sentences, runs = told(blocks), len(ARMS) * len(blocks.rates) * len(blocks.seeds)
    short = [sentences[name] for name in ("clip", "none", "rates")]
    states = whole_states(folder)
    lead = (
        f"![{curves(blocks).title}](benchmarks/smollm2/curves.svg)\n\n"
        f"[SmolLM2-135M](docs/smollm2.md) learned to count letters, in {runs} planned runs "
        f"({len(blocks.seeds)} of {PLANNED} blocks, a seed each). The *area* is the share of right "
        "answers in generations 4 to 16, the *end* the share on new problems after training. "
        "`mirror` is `atr` with its bounds exchanged."
    )
    return {
        README: "\n".join([f"{lead}\n", *(f"- {one}" for one in short[:2])]),
        CHOOSE: " ".join([*short, "([SmolLM2](smollm2.md))"]),
        PAPER: "\n".join(
            f"- {one}" for one in (*sentences.values(), farther(states), *theorem(states))
        ),
    }


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


def quoted(page: Path, text: str, block: str = "smollm2") -> str:
    """A page with what it quotes; blocks of other programs stay as they are."""
    others = {"smollm2", "width", "sentences"} - {block}
    return filled(page.read_text(encoding="utf-8"), {block: text}, others)


def main() -> None:
    """Write the pages and the figure, or print the tables."""
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
        for page, text in quotes(blocks, options.folder).items():
            page.write_text(quoted(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
