"""The summary of a report: its findings in plain sentences, and their limitations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trustclip import stats
from trustclip.constraints.base import Trait
from trustclip.report import collapse, course, rows
from trustclip.report.comparison import Compared, gain
from trustclip.report.conditions import unequal_samples, unlike, unlike_settings
from trustclip.report.contamination import trained_on
from trustclip.report.groups import Group, by_setting, names
from trustclip.report.learning import ALPHA, Learning
from trustclip.report.results import title_of
from trustclip.runs.outlook import outlook
from trustclip.runs.text import bracket, percent
from trustclip.runs.thresholds import SELDOM

#: A percent sign that no line break separates from its number.
_PERCENT = "\N{NO-BREAK SPACE}%"


@dataclass(frozen=True)
class Finding:
    """One sentence.

    Args:
      kind: ``"finding"``, ``"caution"`` (it limits the findings) or ``"fault"``.
      text: the sentence.
      about: key of the part of the page that shows it; empty if none does.
    """

    kind: Literal["finding", "caution", "fault"]
    text: str
    about: str = ""


def headline(
    groups: Sequence[Group], compared: Sequence[Compared], elsewhere: Sequence[str] = ()
) -> str:
    """The main finding in one sentence, and what differs in other scores in another.

    Args:
      groups: the runs.
      compared: groups against the reference of their setting, by one score.
      elsewhere: what differs in the other scores, see `differing`.
    """
    found = [c for c in compared if c.difference is not None]
    if found:
        also = f" In other scores: {'; '.join(elsewhere)}." if elsewhere else ""
        early = any(c.step is not None for c in found)
        return _of_comparisons(found) + also + (" Not all runs are finished." if early else "")
    scored = [group for group in groups if group.scored]
    if scored and (gained := gain(scored[0])):
        signs = [] if gained.p <= 0.05 else [*_signs(groups).values()]
        return " ".join([_sentence(_gained(scored[0])), *signs[:1]])
    if scored:
        return _sentence(_standing(scored[0]))
    if all(run.log for group in groups for run in group.runs):
        return "Logs of other trainers: what their constraints did."
    if all(run.silence for group in groups for run in group.runs):
        return "Neither an update nor an evaluation is logged."
    return " ".join([_begun(groups), *_signs(groups).values()][:2])


def _begun(groups: Sequence[Group]) -> str:
    """The scores before training, of runs that have no later ones."""
    for group in groups:
        if group.metrics and (e := group.estimate(None, group.metrics[0], "initial")):
            score = f"{percent(e.value)}{_PERCENT} {bracket(e.low, e.high)}".rstrip()
            return (
                f"{group.label}: {title_of(group.metrics[0])} {score} before training; no later "
                "evaluation is complete yet."
            )
    return "No evaluation is complete yet."


def _signs(groups: Sequence[Group]) -> dict[str, str]:
    """Why runs may learn nothing, each once, as sentences."""
    signs = [sign for group in groups for run in group.runs for sign in outlook(run)]
    first = {sign.name: sign.text[:1].upper() + sign.text[1:] for sign in reversed(signs)}
    return dict(reversed(first.items()))


def differing(
    groups: Sequence[Group], by_pass: Sequence[Compared], ways: Sequence[Learning | None]
) -> list[str]:
    """Which groups differ from their reference in Pass@K, and in area, after the correction.

    Args:
      groups: the runs.
      by_pass: groups against the reference of their setting, by Pass@K.
      ways: learning curve of each group.
    """
    called = _called(by_pass)
    in_pass = [called[id(c)] for c in by_pass if c.resolved]
    in_area = [
        name
        for name, way in zip(names(groups), ways, strict=True)
        if way is not None and way.area_minus and (p := way.area_minus["p_holm"]) is not None
        if p <= ALPHA
    ]
    scores = {title_of(by_pass[0].metric) if by_pass else "": in_pass,
              "the area under the learning curve": in_area}  # fmt: skip
    return [f"{score} differs for {_listed(those)}" for score, those in scores.items() if those]


def _of_comparisons(found: Sequence[Compared]) -> str:
    reference, metric = found[0].reference.label, title_of(found[0].metric)
    called = _called(found)
    higher, lower = ([c for c in found if c.resolved and _gap(c) * sign > 0] for sign in (1, -1))
    if not higher and not lower:
        others = [c for c in found if not c.identical] or found
        many = len({c.group.label for c in others})
        score = f"significantly from {reference} in {metric} at the end"
        if many > 1:
            return f"None of {many} methods differs {score} in these runs."
        return f"{others[0].group.label} does not differ {score} in these runs."
    if all(c.seeds == 1 for c in found):
        gaps = _listed([f"{called[id(c)]} {_points(c)}" for c in [*higher, *lower]])
        return (
            f"One run of each method: {metric} against {reference} is {gaps} points, which does "
            "not compare the methods."
        )
    parts = []
    if lower:
        those = _listed([called[id(c)] for c in lower])
        parts.append(f"{reference} has a higher {metric} than {those}")
    if higher:
        those = _listed([called[id(c)] for c in higher])
        which = "one" if lower else metric
        verb = "have" if len(higher) > 1 else "has"
        parts.append(f"{those} {verb} a higher {which} than {reference}")
    return "; ".join(parts) + "."


def _called(compared: Sequence[Compared]) -> dict[int, str]:
    """Name of each comparison's group, by the comparison's id."""
    called = names([c.group for c in compared])
    return {id(c): name for c, name in zip(compared, called, strict=True)}


def findings(groups: Sequence[Group], compared: Sequence[Compared]) -> list[Finding]:
    """The sentences under the headline, findings first."""
    texts = [
        *_comparisons(compared),
        *_gains(groups, compared),
        *_gates(groups),
        *_logs(groups),
        *_faults(groups),
        *cautions(groups, compared),
    ]
    order = ("finding", "fault", "caution")
    return sorted(texts, key=lambda finding: order.index(finding.kind))


def _comparisons(compared: Sequence[Compared]) -> Iterator[Finding]:
    found, called = [c for c in compared if c.difference is not None], _called(compared)
    found.sort(key=lambda c: -abs(_gap(c)))  # the largest first
    resolved = [c for c in found if c.resolved]
    if len(resolved) == 1:
        (c,) = resolved
        where = "" if called[id(c)] == c.group.label else f"{called[id(c)]}: "
        yield Finding(
            "finding", f"{_at(c)}{where}{_sentence(c.verdict + _paired(found))}", "scores"
        )
    elif resolved:
        gaps = _listed([f"{called[id(c)]} {_points(c)}" for c in resolved])
        text = f"Difference to {resolved[0].reference.label} in points: {gaps}, each p ≤ 0.05 "
        family = f"after Holm's correction for {len(found)} comparisons"
        yield Finding("finding", f"{text}{family}{_paired(found)}.", "scores")
    for c in [c for c in found if not c.resolved][:3]:
        yield Finding(
            "finding",
            f"{_at(c)}{called[id(c)]} ({_points(c)} points): {_sentence(c.verdict)}",
            "scores",
        )
    for c in compared:
        if c.difference is None:
            yield Finding("caution", f"{called[id(c)]} is {_sentence(c.verdict)}")


def _gains(groups: Sequence[Group], compared: Sequence[Compared]) -> Iterator[Finding]:
    in_headline = not [c for c in compared if c.difference is not None]
    each = [*_named(groups)]
    gained = [(n, g, d) for n, g in each if g.scored and (d := gain(g))][1 if in_headline else 0 :]
    gained.sort(key=lambda one: -abs(one[2].value))
    if len(gained) == 1:
        yield Finding("finding", _sentence(_gained(gained[0][1])), "scores")
    elif gained:
        metric = title_of(gained[0][1].metrics[0])
        parts = "; ".join(
            f"{name} {_signed(d.value)} {bracket(d.low, d.high)}" for name, _, d in gained[:6]
        )
        more = f"; and {len(gained) - 6} more" if len(gained) > 6 else ""
        yield Finding(
            "finding", f"Change of {metric} by training, in points: {parts}{more}.", "scores"
        )


def _gained(group: Group) -> str:
    difference, metric = gain(group), group.metrics[0]
    before, after = (group.estimate(None, metric, moment) for moment in ("initial", "final"))
    assert difference is not None and before is not None and after is not None
    interval = bracket(difference.low, difference.high)
    verb = "moved" if difference.p > 0.05 else "raised" if difference.value > 0 else "lowered"
    chance = ", which is not significant" if difference.p > 0.05 else ""
    if before.value == after.value:
        level = f"{percent(after.value)}{_PERCENT}: gain 0.0 points {interval}".rstrip()
        return f"Training with {group.label} left {title_of(metric)} at {level}"
    return (
        f"Training with {group.label} {verb} {title_of(metric)} from {percent(before.value)} to "
        f"{percent(after.value)}{_PERCENT}: {_signed(difference.value)} points {interval}".rstrip()
        + chance
    )


def _standing(group: Group) -> str:
    metric = group.metrics[0]
    e = group.estimate(None, metric)
    assert e is not None
    text = f"{group.label}: {title_of(metric)} {percent(e.value)}{_PERCENT}"
    return f"{text} {bracket(e.low, e.high)}".rstrip()


def _logs(groups: Sequence[Group]) -> Iterator[Finding]:
    """What the logs of other trainers say, and what they do not."""
    for name, group in _named(groups):
        for log in [run.log for run in group.runs if run.log]:
            yield Finding("finding", f"{name}: {course.constraint(log)}")
            yield from (Finding("caution", f"{name}: {s}") for s in course.unanswered(log))


def _gates(groups: Sequence[Group]) -> Iterator[Finding]:
    shares = {}
    for name, group in _named(groups):
        values = rows.values([row for run in group.runs for row in run.training], "gated")
        if values and (group.method is None or Trait.CUTS in group.method.traits):
            shares[name] = sum(values) / len(values)
    for label, share in shares.items():
        if share < SELDOM:
            text = (
                f"The gate of {label} closed on under 0.01{_PERCENT} of tokens: these runs had "
                "hardly a constraint"
                if share
                else f"The gate of {label} never closed: these runs had no constraint"
            )
            yield Finding("fault", _sentence(text), "gate")
    acting = {label: share for label, share in shares.items() if share >= SELDOM}
    if acting:
        shown = [f"{label} {percent(share, 2)}{_PERCENT}" for label, share in [*acting.items()][:6]]
        yield Finding(
            "finding", f"The gate closed on this share of tokens: {'; '.join(shown)}.", "gate"
        )


def _faults(groups: Sequence[Group]) -> Iterator[Finding]:
    runs = [run for group in groups for run in group.runs]
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        many = f"{len(unfinished)} of {len(runs)} runs" if len(runs) > 1 else "The run"
        verb = "are" if len(unfinished) > 1 else "is"
        yield Finding(
            "fault", f"{many} {verb} not finished; the results below are preliminary.", "runs"
        )
    yield from (Finding("fault", text, "notices") for text in _signs(groups).values())
    notices = [notice for run in runs for notice in run.notices]
    if notices:
        many = f"{len(notices)} warnings" if len(notices) > 1 else "1 warning"
        kinds = _listed([*dict.fromkeys(str(n["notice"]).replace("_", " ") for n in notices)])
        yield Finding("fault", f"The guards logged {many}: {kinds}.", "notices")


def cautions(groups: Sequence[Group], compared: Sequence[Compared]) -> Iterator[Finding]:
    """Limitations of the intervals and comparisons of these runs."""
    trained = [group for group in groups if group.scored and group.runs[0].method is not None]
    single = [group for group in trained if len(group.scored) == 1]
    if single and len(trained) > 1:
        which = "Every method has" if len(single) == len(trained) else f"{len(single)} methods have"
        yield Finding(
            "caution",
            f"{which} one training seed: its interval omits the variation between training runs, "
            "and a difference is one of these runs, not of the methods. To compare methods, train "
            f"each from {stats.FEW_SEEDS} seeds or more.",
        )
    if compared and not trained:
        yield Finding(
            "caution",
            "Each evaluation is of one model. Whether the ways in which they were trained differ, "
            "only several trained seeds of each can show.",
        )
    several = [len(group.scored) for group in trained if 1 < len(group.scored) < stats.FEW_SEEDS]
    if several:
        yield Finding("caution", _of_few_seeds(min(several)))
    yield from _collapses(trained)
    if overlapping := {name: n for name, g in _named(groups) if (n := trained_on(g))}:
        each = _listed([f"{name} ({n} training problems)" for name, n in overlapping.items()])
        text = f"Trained on problems of their own test sets: {each}; see the clean scores."
        yield Finding("fault", text)
    truncated = [
        (group.label, share)
        for group in groups
        for e in group.evaluations("final")[:1]
        if (share := e.scores["average"].get("truncated") or 0) > 0.1
    ]
    for label, share in truncated[:3]:
        text = f"{percent(share, 0)}{_PERCENT} of the final answers of {label} were truncated."
        yield Finding("caution", text)
    pairs = [[*one.reference.scored, *one.group.scored] for one in compared]
    differing = dict.fromkeys(text for pair in pairs for text in unlike(pair))
    yield from (Finding("fault", text) for text in differing)
    if compared:
        yield from (Finding("fault", text) for text in unlike_settings(groups))
    for here in by_setting(groups).values() if compared else ():
        counts = unequal_samples({group.label: group.scored for group in here})
        yield from (Finding("caution", text) for text in counts)
    if len(by_setting(groups)) > 1 and compared:
        within = "setting" if any(g.setting != g.model for g in groups) else "model"
        yield Finding("caution", f"Groups are compared within their {within} only.")


def _of_few_seeds(seeds: int) -> str:
    # Measured by `collapses` of benchmarks/coverage.py.
    return (
        f"With {seeds} seeds per method an interval cannot show a failure that none of its runs "
        f"had: where one run in four collapses, 95{_PERCENT} intervals from 3 seeds contain the "
        f"true mean in 53 to 87{_PERCENT} of cases. If none of {seeds} runs collapsed, up to "
        f"{percent(stats.rate_interval(0, seeds).high, 0)}{_PERCENT} of all runs may."
    )


def _collapses(groups: Sequence[Group]) -> Iterator[Finding]:
    """How many runs of each method lost what they had learned, and what follows for its score."""
    for name, group in _named(groups):
        if not (rate := collapse.rate(group.scored)):
            continue
        held = [run for run in group.scored if not collapse.collapsed(run)]
        values = [collapse.mean_of(run.final) for run in held if run.final is not None]
        rest = f", and the others end at {percent(sum(values) / len(values))}" if values else ""
        withheld = (
            f" No interval is given: with fewer than {collapse.ENOUGH_RUNS} runs none would cover."
            if group.unsteady
            else ""
        )
        text = f"{name}: {rate} (95{_PERCENT} interval){rest}{_PERCENT if rest else ''}.{withheld}"
        yield Finding("fault", text)


def _paired(found: Sequence[Compared]) -> str:
    return ", runs paired by seed" if any(c.seeds > 1 and c.same_seeds for c in found) else ""


def _at(c: Compared) -> str:
    return "" if c.step is None else f"At update {c.step}: "


def _gap(c: Compared) -> float:
    return 0.0 if c.difference is None else c.difference.value


def _points(c: Compared) -> str:
    return _signed(_gap(c))


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _sentence(text: str) -> str:
    """Text with one full stop at its end."""
    return text if text.endswith(".") else text + "."


def _named(groups: Sequence[Group]) -> Iterator[tuple[str, Group]]:
    return zip(names(groups), groups, strict=True)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
