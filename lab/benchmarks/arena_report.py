"""The arena's tables, figures and page in the documentation, from the committed table alone.

    python lab/benchmarks/arena_report.py            # arena/*.svg, arena/tables.md; both pages
    python lab/benchmarks/arena_report.py --page arena.html

In docs/lab/arena-results.md and docs/lab/paper.md it writes what is between ``<!-- NAME -->`` and
``<!-- /NAME -->``, and nothing else.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import arena_tabular
import arena_trl
from arena_analysis import Answer, Question, Runs, answers, differences
from arena_crossed import Crossed, student
from arena_entry import combine, plan_differences, read_entry
from arena_page import contents, tables_text, write_figures, write_page
from arena_parts import Parts, count_runs, seeds, verdict
from arena_tables import chance, gap_cell, in_words
from arena_tuning import width_effects

from trustclip.report.draw.figures import save
from trustclip.report.tables import Table, markdown
from trustclip.stats import Difference
from trustclip.support.text import percent
from trustclip_lab.pages import Contents, filled
from trustclip_lab.stats.equivalence import paired_runs

ROOT = Path(__file__).parents[2]
FOLDER, PAGE, PAPER = (
    ROOT / "lab/benchmarks/arena",
    ROOT / "docs/lab/arena-results.md",
    ROOT / "docs/lab/paper.md",
)
#: Blocks of these pages that benchmarks/smollm2_report.py writes.
OTHERS = ("smollm2",)


def summary(parts: Parts) -> list[str]:
    """The answer in sentences: none, asymmetry, level, tuning, width, larger policies."""
    return [
        _of_none(parts),
        _of_asymmetry(parts),
        _of_level(parts),
        _of_tuning(parts),
        _of_width(parts),
        _of_larger(parts),
    ]


def by_constraint(contrasts: Sequence[Answer]) -> dict[str, Answer]:
    """Answers by the constraint that the reference is compared with."""
    return {answer.question.theirs: answer for answer in contrasts}


def against(contrasts: Mapping[str, Answer], name: str) -> str:
    """A contrast with its conclusion."""
    one = contrasts[name]
    return f"{points(one.contrast.difference)} ({in_words(one)})"


def tuned_runs(parts: Parts) -> Iterator[Runs]:
    """Test runs of everything that was tuned on twelve seeds or more."""
    yield parts.arena.main
    yield parts.ends.main
    yield parts.larger.main


def settings_of(parts: Parts, question: Question, task: str) -> dict[str, Difference]:
    """A contrast in a task wherever it was tuned on twelve seeds or more, by setting."""
    gaps = {}
    for runs, policy in zip(tuned_runs(parts), ("", "", ", 0.4 M"), strict=True):
        for a in answers(runs.where(task=task), [question]):
            for (_, depth), gap in sorted(a.settings.items()):
                gaps[f"{depth}{policy}"] = paired_runs(gap)
    return dict(sorted(gaps.items(), key=lambda one: (len(one[0]) > 3, int(one[0].split(",")[0]))))


def gap_list(gaps: Mapping[str, Difference]) -> str:
    """Differences, each with its interval and setting."""
    return ", ".join(f"{points(gap, '')} at {name}" for name, gap in gaps.items())


def _of_none(parts: Parts) -> str:
    entry = parts.arena
    by = by_constraint(answers(entry.main, entry.questions))
    none = by["none"]
    first = by_constraint(answers(parts.first.main, parts.first.questions))["none"]
    at = {task: settings_of(parts, none.question, task) for task in ("teacher", "needle", "many")}
    early = [paired_runs(first.settings["teacher", depth]) for depth in (16, 64)]
    above = [gap.low > 0 for gap in [*at["teacher"].values(), *early]]
    return (
        f"**A constraint or none: it depends on the task.** `atr` minus none, in `teacher`: "
        f"{gap_list(at['teacher'])}, by updates a generation; with the first time's "
        f"{' and '.join(points(gap, '') for gap in early)} at 16 and 64 it is above 0 in "
        f"{sum(above)} of {len(above)} settings. In `needle`: {gap_list(at['needle'])}. In `many`: "
        f"{gap_list(at['many'])}. The mean that was planned as the primary number, "
        f"{against(by, 'none')} at 16 and 64, averages settings that are not the same (Cochran's "
        f"Q = {none.heterogeneity.q:.0f} with {none.heterogeneity.freedom} degrees of freedom, "
        f"p = {chance(none.heterogeneity.p)})."
    )


def _of_asymmetry(parts: Parts) -> str:
    entry = parts.arena
    by = by_constraint(answers(entry.main, entry.questions))
    same = by_constraint(answers(parts.same.main, parts.same.questions))["mirrored"]
    gaps = {cell: paired_runs(gap) for cell, gap in same.settings.items()}
    small = [gap for (task, _), gap in gaps.items() if task != "many"]
    widest = max(abs(bound) for gap in small for bound in (gap.low, gap.high))
    ends = sorted(by["mirrored"].settings.values(), key=lambda gap: gap.mean)
    return (
        "**Asymmetry and shape.** `atr` minus its mirror image at one threshold and one rate: "
        f"every interval of `teacher` and `needle` is within {percent(widest)} points of 0; `many` "
        f"has {points(gaps['many', 16], '')} at 16 updates and {points(gaps['many', 64], '')} at "
        f"64, which leaves some points open. Each tuned by itself, {against(by, 'mirrored')}: by "
        f"setting from {points(paired_runs(ends[0]), '')} to {points(paired_runs(ends[-1]), '')}. "
        "A hard gate minus a soft one, with the choice of trials counted: "
        f"{by_task(parts, 'soft_gate')}."
    )


def by_task(parts: Parts, name: str) -> str:
    """A contrast of the arena in each task, with the choice of trials counted."""
    chosen = parts.arena.choices_by_task
    gaps = {
        task: next(one.both for one in choices if one.question.theirs == name)
        for task, choices in chosen.items()
    }
    return ", ".join(f"{points(gap, '')} in `{task}`" for task, gap in gaps.items())


def _of_level(parts: Parts) -> str:
    deep = {a.question.theirs: a for a in parts.at_ends[256]}
    cells = {
        name: {task: paired_runs(gap) for (task, _), gap in deep[name].settings.items()}
        for name in ("gspo", "prefix")
    }
    texts = {
        name: ", ".join(f"{points(gap, '')} in `{task}`" for task, gap in gaps.items())
        for name, gaps in cells.items()
    }
    return (
        f"**Level and what is measured.** At 256 updates a generation token minus sequence is "
        f"{texts['gspo']}, and token minus prefix {texts['prefix']}: large in one task of three. "
        "At 16 and 64, with the choice of trials counted, token minus sequence is "
        f"{by_task(parts, 'gspo')}; the sampled gate minus the exact KL divergence "
        f"{by_task(parts, 'full_kl')}; constant bounds minus bounds that know the probability "
        f"{by_task(parts, 'dppo')}."
    )


def _of_tuning(parts: Parts) -> str:
    entry, crossed = parts.arena, Crossed(parts.first, parts.arena)
    first = by_constraint(answers(parts.first.main, parts.first.questions))
    by = by_constraint(answers(entry.main, entry.questions))
    larger = [name for name, a in first.items() if a.contrast.conclusion == "larger"]
    holding = [name for name in larger if verdict(first[name], by[name]) != "does not hold"]
    none = by["none"].question
    gaps = {key: student([*of.values()]) for key, of in crossed.gaps(none, "many").items()}
    apart = [
        question.theirs for question in entry.questions if crossed.trials(question, "many").low > 0
    ]
    small = [
        paired_runs(differences(own["atr"], own["none"]))
        for runs in (parts.first.main, entry.main)
        for own in [runs.where(task=["teacher", "needle"]).constraints]
    ]
    return (
        f"**How many seeds to tune on.** With {seeds(parts.first)} the means of {len(larger)} of "
        f"the {len(first)} contrasts were told from 0; with {seeds(entry)}, none of them the same, "
        f"{len(larger) - len(holding)} of these do not hold. That was `many`: there `atr` minus "
        f"none is {points(gaps['first', 'first'], '')} with the first time's trials on its seeds, "
        f"{points(gaps['first', 'again'], '')} with the same trials on the second's seeds, and "
        f"{points(gaps['again', 'again'], '')} with the second time's trials on these. The trials "
        f"alone are worth {points(crossed.trials(none, 'many'), '')}, and more than 0 in "
        f"{len(apart)} of {len(entry.questions)} contrasts: the best of 25 rates on three seeds "
        "was one at which many runs fail. In `teacher` and `needle` together three seeds and "
        f"sixteen say the same, {points(small[0], '')} and {points(small[1], '')}."
    )


def _of_width(parts: Parts) -> str:
    trials = parts.arena.trials
    copies = {control.theirs for control in parts.arena.controls}
    once = trials.where(constraint=[name for name in trials.constraints if name not in copies])
    every = {
        task: width_effects(once.where(task=task))["all"] for task in ("many", "needle", "teacher")
    }
    narrow, wide = (
        ", ".join(f"{points(effects[place], '')} in `{task}`" for task, effects in every.items())
        for place in (0, -1)
    )
    return (
        "**Width.** Of five thresholds, over all constraints and each at its best rate, the "
        f"narrowest minus the middle one is {narrow}; the widest {wide}."
    )


def _of_larger(parts: Parts) -> str:
    larger = by_constraint(answers(parts.larger.main, parts.larger.questions))
    ends = {name: arena_trl.pooled(name) for name in ("clip", "none")}
    areas = {name: arena_trl.pooled(name, "area") for name in ("clip", "none")}
    alike = paired_runs(arena_trl.gaps(arena_trl.TINY, "clip", "area"))
    return (
        "**Larger policies.** In TRL, 0.4 and 3.2 million parameters, 24 and 12 seeds taken "
        f"together, `atr` minus a clip of 0.2 is {points(ends['clip'], '')} at the end "
        f"(p = {chance(ends['clip'].p)}) and {points(areas['clip'], '')} in area; minus none "
        f"{points(ends['none'], '')} (p = {chance(ends['none'].p)}) and "
        f"{points(areas['none'], '')}. Pooling was not planned. With 0.4 million both `atr` and "
        f"the clip had chosen one rate, and there the area is {points(alike, '')} above the "
        "clip's: the paper's direction. Against none the rates differ. In the lab a transformer "
        f"of 0.4 million has {against(larger, 'none')} minus none, {against(larger, 'mirrored')} "
        f"minus the mirror image and {against(larger, 'gspo')} minus sequence, mean of three tasks."
    )


def points(difference: Difference, unit: str = " points") -> str:
    """A difference in points with its interval."""
    cell = gap_cell(difference)
    return f"{cell.text}{unit} {cell.note}"


def blocks(parts: Parts, page: Contents) -> dict[str, str]:
    """Text of every block of the pages, by name: a table's key, or one of its own."""
    sentences = [page.headline, *(finding.text for finding in page.findings)]
    tables: dict[str, Table] = {t.key: t for section in page.sections for t in section.tables}
    tables |= parts.tables() | Crossed(parts.first, parts.arena).tables()
    texts = parts.descriptions()
    for experiment in (arena_trl.TINY, arena_trl.SMALL):
        tables |= experiment.tables()
        texts |= experiment.descriptions()
    return (
        {key: body(table) for key, table in tables.items()}
        | texts
        | {
            "settings": count_runs(parts.arena),
            "tabular": arena_tabular.block(),
            "sentences": "\n".join(
                f"{i}. {text}" for i, text in enumerate(summary(parts), start=1)
            ),
            "findings": "\n".join(f"- {text}" for text in sentences),
        }
    )


def body(table: Table) -> str:
    """A table in Markdown without its title."""
    return markdown(table).partition("\n\n")[2].strip()


def main() -> None:
    """Write everything, or the page alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the interactive page to this file")
    parser.add_argument("--add", type=Path, help="a folder of runs by the same plan, to show too")
    given = parser.parse_args()
    to, entry = given.page, read_entry(FOLDER)
    if given.add is not None:
        other = read_entry(given.add)
        if problems := plan_differences(other, entry):
            sys.exit(f"{given.add} has another plan: {' '.join(problems)}")
        entry, to = combine(entry, [other]), to or Path("arena.html")
    arena_page = contents(entry, entry.links("../methods/{}.md"))
    if to is not None:
        write_page(arena_page, to)
        return
    for figure in write_figures(arena_page, FOLDER):
        if f"arena/{figure.name}" not in PAGE.read_text(encoding="utf-8"):
            figure.unlink()
    parts = Parts(entry)
    for folder, picture in parts.figures().items():
        pdf, _ = save(picture, folder)
        pdf.unlink()
    text = f"# The arena: every table\n\n{tables_text(arena_page)}"
    (FOLDER / "tables.md").write_text(text, encoding="utf-8")
    texts = blocks(parts, arena_page)
    for page in (PAGE, PAPER):
        text = filled(page.read_text(encoding="utf-8"), texts, others=OTHERS)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
