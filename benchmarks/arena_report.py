"""The arena's tables, figures and page in the documentation, from the committed table alone.

    python benchmarks/arena_report.py            # benchmarks/arena/*.svg, tables.md; both pages
    python benchmarks/arena_report.py --page arena.html

In docs/arena.md and docs/paper.md it writes what stands between ``<!-- NAME -->`` and
``<!-- /NAME -->``, and nothing else.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import arena_tabular
import arena_trl
from arena_parts import Parts, counted, seeds, sided, verdict

from trustclip.arena.analysis import Answer, answers
from trustclip.arena.choice import Choice
from trustclip.arena.entry import read_entry
from trustclip.arena.page import contents, tables_text, write_figures, write_page
from trustclip.arena.tables import signed
from trustclip.arena.tuning import at_equal, width_effects
from trustclip.report.collect import Contents
from trustclip.report.draw.figures import save
from trustclip.report.tables import Table, markdown
from trustclip.runs.text import percent
from trustclip.stats import Difference
from trustclip.stats.equivalence import paired_runs

ROOT = Path(__file__).parents[1]
FOLDER, PAGE, PAPER = ROOT / "benchmarks/arena", ROOT / "docs/arena.md", ROOT / "docs/paper.md"


def summary(parts: Parts) -> list[str]:
    """The answer in sentences: width, asymmetry, level and what is measured, tuning, size."""
    entry = parts.arena
    by, same, larger, trl, small, first = (
        {a.question.theirs: a for a in found}
        for found in (
            answers(entry.main, entry.questions),
            answers(parts.same.main, parts.same.questions),
            answers(parts.larger.main, parts.larger.questions),
            arena_trl.TINY.answered(),
            arena_trl.SMALL.answered(),
            answers(parts.first.main, parts.first.questions),
        )
    )
    widths = width_effects(entry.trials)["all"]
    own = entry.trials.constraints
    equal = {
        name: points(paired_runs(found))
        for name in ("mirrored", "symmetric")
        if (found := at_equal(own["atr"], own[name], "gated")) is not None
    }
    ends = {depth: {a.question.theirs: a for a in found} for depth, found in parts.at_ends.items()}
    counted_in = {one.question.theirs: one for one in entry.choices}
    apart = [name for name, one in counted_in.items() if sided(one.both) != "not told apart"]
    count = entry.settings.tuning.count
    told = [name for name, a in first.items() if a.contrast.conclusion == "larger"]
    sizes = sorted(first[name].contrast.difference.value for name in told)
    kept = [name for name in told if verdict(first[name], by[name]) != "does not hold"]

    def against(name: str, found: Mapping[str, Answer] = by) -> str:
        one = found[name].contrast
        return f"{points(one.difference)} ({one.conclusion})"

    return [
        f"**Width, and having a constraint at all.** `atr` minus none is {against('none')} at 16 "
        f"and 64 updates a generation, {against('none', ends[4])} at 4 and "
        f"{against('none', ends[256])} at 256. Of five thresholds, "
        f"over all constraints and each at its best rate, the narrowest is {points(widths[0])} and "
        f"the widest {points(widths[-1])} from the middle one. In TRL, each at its own learning "
        f"rate, `atr` minus none is {against('none', trl)} and minus a narrower clip "
        f"{against('clip', trl)}.",
        f"**Asymmetry and shape.** `atr` minus its mirror image is {against('mirrored')} and minus "
        f"the symmetric interval of equal width {against('symmetric')}; at one threshold and one "
        f"rate {against('mirrored', same)} and {against('symmetric', same)}; where both cut the "
        f"same share of tokens, over all trials, {equal.get('mirrored', 'not known')} and "
        f"{equal.get('symmetric', 'not known')}. A hard gate minus a soft one is "
        f"{against('soft_gate')}, and in TRL {against('soft-gate', trl)}.",
        f"**Level and what is measured.** Token minus prefix is {against('prefix')}, and at 256 "
        f"updates a generation {against('prefix', ends[256])}; token minus sequence "
        f"{against('gspo')}, and there {against('gspo', ends[256])}. The sampled gate minus the "
        f"exact KL divergence is {against('full_kl')}, constant bounds minus bounds that know the "
        f"probability {against('dppo')}.",
        f"**How many seeds to tune on.** The same plan with {seeds(parts.first)} had told "
        f"{len(told)} of the {len(first)} contrasts from 0, by {percent(sizes[0])} to "
        f"{percent(sizes[-1])} points; with {seeds(entry)}, none of them the same, "
        f"{len(told) - len(kept)} of these do not hold"
        + "".join(f", and `atr` minus {name} is {against(name)}" for name in kept)
        + f". Intervals that also count what {count} other tuning seeds would have chosen exclude "
        "0 for "
        + " and ".join(f"{name} ({points(counted_in[name].both)})" for name in apart)
        + f" alone; with three, the choice would spread a contrast by {spread(counted_in, 3)} "
        f"points, with {count} by {spread(counted_in, None)}.",
        "**Larger policies.** With a transformer of 0.4 million parameters in the lab `atr` minus "
        f"none is {against('none', larger)}, minus its mirror image {against('mirrored', larger)} "
        f"and minus sequence {against('gspo', larger)}, at 16 updates a generation; with one of "
        f"3.2 million in TRL, minus none {against('none', small)} and minus a narrower clip "
        f"{against('clip', small)}.",
    ]


def spread(found: Mapping[str, Choice], seeds: int | None) -> str:
    """Least and largest standard deviation of a contrast over tunings on so many seeds."""
    every = sorted(one.spread if seeds is None else one.fewer[seeds] for one in found.values())
    return f"{percent(every[0])} to {percent(every[-1])}"


def points(found: Difference) -> str:
    """A difference in points with its interval."""
    shown = signed(found)
    return f"{shown.text} points {shown.note}"


def blocks(parts: Parts, found: Contents) -> dict[str, str]:
    """Text of every block of the pages, by name: a table's key, or one of its own."""
    said = [found.headline, *(finding.text for finding in found.findings)]
    tables: dict[str, Table] = {t.key: t for section in found.sections for t in section.tables}
    tables |= parts.tables()
    texts = parts.said()
    for experiment in (arena_trl.TINY, arena_trl.SMALL):
        tables |= experiment.tables()
        texts |= experiment.said()
    return (
        {key: body(table) for key, table in tables.items()}
        | texts
        | {
            "settings": counted(parts.arena),
            "tabular": arena_tabular.block(),
            "sentences": "\n".join(
                f"{i}. {text}" for i, text in enumerate(summary(parts), start=1)
            ),
            "findings": "\n".join(f"- {text}" for text in said),
        }
    )


def body(table: Table) -> str:
    """A table in Markdown without its title."""
    return markdown(table).partition("\n\n")[2].strip()


def filled(text: str, made: Mapping[str, str]) -> str:
    """A page with its blocks written anew.

    Raises:
      KeyError: the page has a block that is not among those made.
    """

    def block(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{made[match[1]]}\n\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", block, text, flags=re.DOTALL)


def main() -> None:
    """Write everything, or the page alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the interactive page to this file")
    to = parser.parse_args().page
    entry = read_entry(FOLDER)
    found = contents(entry, entry.links("methods/{}.md"))
    if to is not None:
        write_page(found, to)
        return
    write_figures(found, FOLDER)
    parts = Parts(entry)
    for folder, figure in parts.figures().items():
        pdf, _ = save(figure, folder)
        pdf.unlink()
    text = f"# The arena: every table\n\n{tables_text(found)}"
    (FOLDER / "tables.md").write_text(text, encoding="utf-8")
    made = blocks(parts, found)
    for page in (PAGE, PAPER):
        page.write_text(filled(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
