"""``trustclip power``: from a pilot's runs to the number of seeds that would find a gap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from trustclip import stats
from trustclip.findings.groups import Group, by_setting, common_seeds, group_runs, shared_answers
from trustclip.findings.learning import learning_curve, tallies
from trustclip.logs.choice import Choice
from trustclip.logs.reader import Run
from trustclip.logs.score_files import read_all
from trustclip.stats.power import Spread, pooled, seeds_for, spread_of
from trustclip.stats.scores import benchmarks, macro_weights, problem_scores, strata_groups
from trustclip.support.terminal import print_table
from trustclip.support.text import plural, title_of


@dataclass(frozen=True)
class PilotComparison:
    """A comparison of a pilot, by one score.

    Args:
      score: ``"Mean@8"``, at the end, or ``"area"``.
      names: the method and its reference; of a single method its name alone.
      seeds: of the pilot that it rests on.
      spread: of these.
    """

    score: str
    names: tuple[str, ...]
    seeds: int
    spread: Spread


def pilot_comparisons(groups: Sequence[Group]) -> list[PilotComparison]:
    """Spreads of every method against the reference of its setting, or of a method alone.

    Raises:
      ValueError: no method has two finished runs from different seeds.
    """
    plans = [one for here in by_setting(groups).values() for one in _of_setting(here)]
    if not plans:
        seeds = "; ".join(f"{g.label}: {len(g.scored)} evaluated" for g in groups)
        raise ValueError(
            "a pilot needs two seeds or more of a method, with evaluations of the same problems: "
            f"one run says nothing of how much runs differ ({seeds})."
        )
    return plans


def _of_setting(groups: Sequence[Group]) -> Iterator[PilotComparison]:
    reference = next(group for group in groups if group.is_reference)
    for group in groups:
        if group is reference and len(groups) > 1:
            continue
        for score in ("end", "area"):
            pair = (group,) if group is reference else (group, reference)
            spread = _spread(score, [[*one.scored] for one in pair])
            if spread is not None:
                name = title_of(group.metrics[0]) if score == "end" else "area"
                means = 1 if spread.paired or len(pair) == 1 else 2
                yield PilotComparison(
                    name, tuple(one.label for one in pair), spread.freedom + means, spread
                )


def _spread(score: str, arms: Sequence[Sequence[Run]]) -> Spread | None:
    """Of pairs where two seeds or more are shared, else of the runs; None with one seed each."""
    shared = common_seeds(arms)
    if len(arms) > 1 and len(shared[0]) > 1:
        return _measure(score, shared)
    spreads = [one for arm in arms if len(arm) > 1 and (one := _measure(score, [arm]))]
    return pooled(spreads) if spreads else None


def _measure(score: str, arms: Sequence[Sequence[Run]]) -> Spread | None:
    every = [run for arm in arms for run in arm]
    many = len(arms[0])
    finals = [run.final for run in every if run.final is not None]
    if number := min(one.number for one in finals):
        found = [s["value"] for one in finals if (s := one.score(None, number))]
        theirs = found[many:] if len(arms) > 1 else None
        return None if score == "area" else spread_of(found[:many], theirs)
    if score == "area":
        counts, strata = tallies([run for run in every if len(learning_curve(run)) > 1])
        if counts is None or len(counts.right) < len(every):
            return None
    else:
        answers, strata = shared_answers(finals)
        if not answers:
            return None
        counts = stats.tally(answers)
    weights = macro_weights(strata_groups(benchmarks(strata), len(strata)))
    scores = problem_scores(counts) @ weights  # [runs]
    return spread_of(scores[:many], scores[many:] if len(arms) > 1 else None)


def print_power(
    paths: Sequence[Path],
    console: Console,
    gap: float,
    power: float,
    comparisons: int | None,
    choice: Choice | None = None,
) -> list[PilotComparison]:
    """Print how many seeds would find a gap, in points, with a chance of ``power``.

    The number of comparisons that are planned, those of the pilot when None, gives Holm's
    strictest level.

    Raises:
      ValueError: a wrong gap, power or count; or a pilot that has no spread.
    """
    if not 0 < gap <= 100:
        raise ValueError(f"`gap` is in points, above 0 and at most 100; got {gap:g}.")
    if not 0 < power < 1:
        raise ValueError(f"`power` is a chance in (0, 1), such as 0.8; got {power:g}.")
    if comparisons is not None and comparisons < 1:
        raise ValueError(f"`comparisons` is a number of methods, 1 or more; got {comparisons}.")
    plans = pilot_comparisons(group_runs(read_all(paths, choice or Choice())))
    count = comparisons or max(1, len({one.names for one in plans}))
    console.print(
        f"So many seeds find {gap:g} points with {100 * power:g} % power, on these problems, by a "
        f"two-sided test at 5 % over {plural(count, 'comparison')} (Holm's strictest level). "
        "Brackets hold what the pilot's 95 % interval of the standard deviation allows.",
        highlight=False,
    )
    print_table(console, _table(plans, gap / 100, 1 - 0.05 / count, power), keys=2)
    for text in _notes(plans):
        console.print(text, highlight=False)
    return plans


def _table(plans: Sequence[PilotComparison], gap: float, level: float, power: float) -> Table:
    heads = ("score", "difference", "pilot", "sd, points", "seeds")
    table = Table(*(Column(head, overflow="fold") for head in heads), box=None, pad_edge=False)
    for one in plans:
        sd = one.spread.interval()

        def seeds(std: float, paired: bool = one.spread.paired) -> str:
            count = seeds_for(std, gap, paired=paired, level=level, power=power)
            return "> 100000" if isinf(count) else f"{count:.0f}"

        named = ("" if len(one.names) > 1 else "two like ") + " − ".join(one.names)
        pilot = f"{one.seeds} {'pairs' if one.spread.paired else 'runs'}"
        cells = [f"{100 * sd.value:.1f} [{100 * sd.low:.1f}, {100 * sd.high:.1f}]"]
        cells.append(f"{seeds(sd.value)} [{seeds(sd.low)}, {seeds(sd.high)}]")
        table.add_row(one.score, named, pilot, *cells)
    return table


def _notes(plans: Sequence[PilotComparison]) -> Iterator[str]:
    if any(not one.spread.paired for one in plans):
        yield (
            "Runs without common seeds are independent: each method needs this number of seeds, "
            "and the standard deviation is that of a run. Shared seeds usually need fewer."
        )
    if (least := min(plans, key=lambda one: one.spread.freedom)).spread.freedom < 9:
        yield (
            f"A pilot of {least.seeds} says little about how much runs differ. Plan for the upper "
            "number, or add seeds and test again, if the levels of all tests were fixed beforehand."
        )
    yield "Area means the area under the learning curve."
