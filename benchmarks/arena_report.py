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
from arena_again import Added, counted

from trustclip.arena.analysis import Answer, answers
from trustclip.arena.entry import Entry, read_entry
from trustclip.arena.page import contents, tables_text, write_figures, write_page
from trustclip.arena.tuning import at_equal, width_effects
from trustclip.report.collect import Contents
from trustclip.report.draw.figures import save
from trustclip.report.tables import Table, markdown
from trustclip.runs.text import bracket, percent
from trustclip.stats import Difference
from trustclip.stats.equivalence import paired_runs

ROOT = Path(__file__).parents[1]
FOLDER, PAGE, PAPER = ROOT / "benchmarks/arena", ROOT / "docs/arena.md", ROOT / "docs/paper.md"


def summary(entry: Entry) -> list[str]:
    """The answer in three sentences: width, asymmetry and shape, level and what is measured."""
    by = {a.question.theirs: a for a in answers(entry.main, entry.questions)}
    widths = width_effects(entry.trials)["all"]
    own = entry.trials.constraints
    equal = {
        name: points(paired_runs(found))
        for name in ("mirrored", "symmetric")
        if (found := at_equal(own["atr"], own[name], "gated")) is not None
    }

    one = Added(entry).same
    same, trl = (
        {a.question.theirs: a for a in found}
        for found in (answers(one.main, one.questions), arena_trl.answered())
    )

    def against(name: str, found: Mapping[str, Answer] = by) -> str:
        one = found[name].contrast
        return f"{points(one.difference)} ({one.conclusion})"

    return [
        f"**Width, and having a constraint at all.** `atr` minus none is {against('none')}; "
        f"of five thresholds, over all constraints and each at its best rate, the narrowest is "
        f"{points(widths[0])} and the widest {points(widths[-1])} from the middle one. In TRL, "
        f"each at its own learning rate, `atr` minus none is {against('none', trl)} and minus a "
        f"narrower clip {against('clip', trl)}.",
        f"**Asymmetry and shape.** At one threshold and one rate, those of `atr`, `atr` minus its "
        f"mirror image is {against('mirrored', same)} and minus the symmetric interval "
        f"{against('symmetric', same)}; each tuned by itself, {against('mirrored')} and "
        f"{against('symmetric')}; where both cut the same share of tokens, over all trials, "
        f"{equal.get('mirrored', 'not known')} and {equal.get('symmetric', 'not known')}. A hard "
        f"gate minus a soft one is {against('soft_gate')}, and in TRL {against('soft-gate', trl)}.",
        f"**Level and what is measured.** Token minus prefix is {against('prefix')}, token "
        f"minus sequence {against('gspo')}, the sampled gate minus the exact KL divergence "
        f"{against('full_kl')}, constant bounds minus bounds that know the probability "
        f"{against('dppo')}.",
    ]


def points(found: Difference) -> str:
    """A difference in points with its interval."""
    sign = "+" if found.value > 0 else ""
    return f"{sign}{percent(found.value)} points {bracket(found.low, found.high)}"


def blocks(entry: Entry, found: Contents) -> dict[str, str]:
    """Text of every block of the page, by name: a table's key, or one of its own."""
    said = [found.headline, *(finding.text for finding in found.findings)]
    more = Added(entry)
    tables: dict[str, Table] = {t.key: t for section in found.sections for t in section.tables}
    return (
        {key: body(table) for key, table in (tables | more.tables() | arena_trl.tables()).items()}
        | more.said()
        | {
            "settings": counted(entry),
            "trl-settings": arena_trl.said(),
            "tabular": arena_tabular.block(),
            "sentences": "\n".join(
                f"{i}. {text}" for i, text in enumerate(summary(entry), start=1)
            ),
            "findings": "\n".join(f"- {text}" for text in said),
        }
    )


def body(table: Table) -> str:
    """A table in Markdown without its title."""
    return markdown(table).partition("\n\n")[2].strip()


def filled(text: str, entry: Entry, found: Contents) -> str:
    """A page with its blocks written anew.

    Raises:
      KeyError: the page has a block that the arena has not.
    """
    made = blocks(entry, found)

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
    for folder, figure in Added(entry).figures().items():
        pdf, _ = save(figure, folder)
        pdf.unlink()
    text = f"# The arena: every table\n\n{tables_text(found)}"
    (FOLDER / "tables.md").write_text(text, encoding="utf-8")
    for page in (PAGE, PAPER):
        page.write_text(filled(page.read_text(encoding="utf-8"), entry, found), encoding="utf-8")


if __name__ == "__main__":
    main()
