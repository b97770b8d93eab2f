"""What several runs say: how methods differ, what training gained, and what limits both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trustclip import stats
from trustclip.findings import start
from trustclip.findings.comparison import Compared, gain, significant
from trustclip.findings.conditions import families, unequal_samples, unlike, unlike_settings
from trustclip.findings.course import Course
from trustclip.findings.facts import ALPHA, EACH, ENOUGH_RUNS, LEVEL, SHOWN
from trustclip.findings.finding import Finding
from trustclip.findings.groups import Estimate, Group, by_setting, names, trained_on
from trustclip.findings.learning import Learning
from trustclip.findings.run import of_run
from trustclip.findings.scores import collapsed, mean_of
from trustclip.logs.run import Run
from trustclip.support.text import bracket, join_words, percent, plural, signed, title_of


@dataclass(frozen=True)
class RunFindings:
    """The findings of one run.

    Args:
      name: of the run: that of its group, and the seed where that has several.
      findings: see `trustclip.findings.run.of_run`.
    """

    name: str
    group: Group
    run: Run
    findings: Sequence[Finding]


def findings_by_run(groups: Sequence[Group]) -> list[RunFindings]:
    """The findings of every run."""
    return [
        RunFindings(
            f"{name}, seed {run.seed}" if len(group.runs) > 1 else name, group, run, of_run(run)
        )
        for name, group in _with_names(groups)
        for run in group.runs
    ]


def headline(
    groups: Sequence[Group], compared: Sequence[Compared], elsewhere: Sequence[str] = ()
) -> str:
    """The main finding in one sentence, and what differs in other scores in another."""
    measured = [c for c in compared if c.difference is not None]
    if measured:
        also = f" In other scores: {'; '.join(elsewhere)}." if elsewhere else ""
        early = any(c.step is not None for c in measured)
        return _of_comparisons(measured) + also + (" Not all runs are finished." if early else "")
    signs = [sign.text for group in groups for run in group.runs for sign in start.of_run(run)]
    scored = [group for group in groups if group.scored]
    if scored and (change := gain(scored[0])):
        told = _sentence(_gain_sentence(scored[0], change))
        return told if significant(change.p) else " ".join([told, *signs[:1]])
    if scored and (e := scored[0].estimate(None, scored[0].metrics[0])):
        return _sentence(_level(scored[0], e))
    if all(run.log for group in groups for run in group.runs):
        return "These logs show what the constraints of other trainers did."
    if all(run.silence for group in groups for run in group.runs):
        return "Neither an update nor an evaluation is logged."
    return " ".join([_initial_score(groups), *signs[:1]])


def _initial_score(groups: Sequence[Group]) -> str:
    """The scores before training, of runs that have no later ones."""
    for group in groups:
        if group.metrics and (e := group.estimate(None, group.metrics[0], "initial")):
            return f"{_level(group, e)} before training; no later evaluation is complete yet."
    runs = [run for group in groups for run in group.runs if run.command != "sft"]
    steps = [r["step"] for run in runs if not run.training for r in run.metrics.get("sft", ())]
    if steps:
        return f"Fine-tuning has reached step {max(steps)}; reinforcement learning has not begun."
    return "No evaluation is complete yet."


def differing(
    groups: Sequence[Group], by_pass: Sequence[Compared], ways: Sequence[Learning | None]
) -> list[str]:
    """Which groups differ from their reference in Pass@K, and in area, after the correction."""
    in_pass = [c.name for c in by_pass if c.resolved]
    in_area = [
        name
        for name, way in zip(names(groups), ways, strict=True)
        if way is not None and way.area_minus and significant(way.area_minus.p)
    ]
    scores = {title_of(by_pass[0].metric) if by_pass else "": in_pass,
              "the area under the learning curve": in_area}  # fmt: skip
    return [f"{score} differs for {join_words(those)}" for score, those in scores.items() if those]


def _of_comparisons(compared: Sequence[Compared]) -> str:
    reference, metric = compared[0].reference.label, title_of(compared[0].metric)
    higher, lower = ([c for c in compared if c.resolved and _gap(c) * sign > 0] for sign in (1, -1))
    gaps = join_words([f"{_points(c)} points for {c.name}" for c in compared[:SHOWN]])
    gaps = f"{metric} differs from that of {reference} by {gaps}"
    if all(c.seeds == 1 and not c.identical for c in compared):
        return f"One run of each cannot compare the methods: {gaps}."
    if not higher and not lower:
        others = [c for c in compared if c.tested and not c.identical] or compared
        if not any(c.tested for c in compared):
            return f"One or two runs of each cannot tell the methods apart: {gaps}."
        many = len({c.group.label for c in others})
        score = f"significantly from {reference} in {metric} at the end"
        if many > 1:
            return f"None of {many} methods differs {score} in these runs."
        return f"{others[0].group.label} does not differ {score} in these runs."
    parts = []
    if lower:
        those = join_words([c.name for c in lower])
        parts.append(f"{reference} scored higher in {metric} than {those}")
    if higher:
        those = join_words([c.name for c in higher])
        parts.append(f"{those} scored higher {'' if lower else f'in {metric} '}than {reference}")
    return "; ".join(parts) + "."


def of_groups(
    groups: Sequence[Group], compared: Sequence[Compared], by_run: Sequence[RunFindings]
) -> list[Finding]:
    """The sentences under the headline: differences, then faults, then warnings."""
    findings = [
        *_comparisons(compared),
        *_gains(groups, compared),
        *_gates(groups, by_run),
        *_states(by_run),
        *_troubles(by_run),
        *cautions(groups, compared),
    ]
    order = ("ok", "note", "fault", "warning")
    return sorted(findings, key=lambda finding: max(order.index(finding.severity), 1))


def _comparisons(compared: Sequence[Compared]) -> Iterator[Finding]:
    measured = [c for c in compared if c.difference is not None]
    measured.sort(key=lambda c: -abs(_gap(c)))  # the largest first
    resolved = [c for c in measured if c.resolved]
    if len(resolved) == 1:
        (c,) = resolved
        where = "" if c.name == c.group.label else f"{c.name}: "
        text = f"{_at(c)}{where}{_sentence(c.verdict + _pairing(measured))}"
        yield Finding("scores/difference", "note", text)
    elif resolved:
        gaps = join_words([f"{c.name} {_points(c)}" for c in resolved])
        text = f"Differences to {resolved[0].reference.label} are significant: {gaps} points (p ≤ "
        family = f"{ALPHA} after Holm's correction for {len(measured)} comparisons"
        yield Finding("scores/difference", "note", f"{text}{family}{_pairing(measured)}).")
    for c in [c for c in measured if not c.resolved][:EACH]:
        text = f"{_at(c)}{c.name} ({_points(c)} points): {_sentence(c.verdict)}"
        kind = "identical" if c.identical else "disputed" if c.disputed else "inconclusive"
        yield Finding(f"scores/{kind}", "note", text)
    for c in compared:
        if c.difference is None:
            text = f"{c.name} is {_sentence(c.verdict)}"
            yield Finding("comparison/obstacle", "warning", text)


def _gains(groups: Sequence[Group], compared: Sequence[Compared]) -> Iterator[Finding]:
    in_headline = not [c for c in compared if c.difference is not None]
    each = [*_with_names(groups)]
    gains = [(n, g, d) for n, g in each if g.scored and (d := gain(g))][1 if in_headline else 0 :]
    gains.sort(key=lambda one: -abs(one[2].value))
    if len(gains) == 1:
        yield Finding("scores/gain", "note", _sentence(_gain_sentence(*gains[0][1:])))
    elif gains:
        metric = title_of(gains[0][1].metrics[0])
        parts = "; ".join(
            f"{name} {signed(d.value)} {bracket(d.low, d.high)}" for name, _, d in gains[:SHOWN]
        )
        more = f"; and {len(gains) - SHOWN} more" if len(gains) > SHOWN else ""
        text = f"Training changed {metric} by these points: {parts}{more}."
        yield Finding("scores/gain", "note", text)


def _gain_sentence(group: Group, difference: stats.Difference) -> str:
    metric = group.metrics[0]
    before, after = (group.estimate(None, metric, moment) for moment in ("initial", "final"))
    assert before is not None and after is not None
    interval = bracket(difference.low, difference.high)
    unclear = not significant(difference.p)
    verb = "moved" if unclear else "raised" if difference.value > 0 else "lowered"
    chance = ", which is not significant" if unclear else ""
    if before.value == after.value:
        level = f"{percent(after.value)} %: the gain is 0.0 points {interval}".rstrip()
        return f"Training with {group.label} left {title_of(metric)} at {level}"
    return (
        f"Training with {group.label} {verb} {title_of(metric)} from {percent(before.value)} to "
        f"{percent(after.value)} %: {signed(difference.value)} points {interval}".rstrip()
        + chance
    )


def _level(group: Group, e: Estimate) -> str:
    text = f"{group.label} scored {percent(e.value)} % {bracket(e.low, e.high)}".rstrip()
    return f"{text} in {title_of(group.metrics[0])}"


def _gates(groups: Sequence[Group], by_run: Sequence[RunFindings]) -> Iterator[Finding]:
    """On what share of tokens each gate closed, in the runs where it did; of one run, all of it."""
    if len(by_run) == 1:
        yield from (f for f in by_run[0].findings if f.subject == "gate" and not f.troubles
                    and f.kind in _STATES)  # fmt: skip
        return
    shares = {}
    for name, group in _with_names(groups):
        cuts = [
            Course(one.run).cut
            for one in by_run
            if one.group is group and {f.kind for f in one.findings} & _ACTED
        ]
        if cuts:
            shares[name] = sum(cuts) / len(cuts)
    if shares:
        parts = [f"{label} {percent(share, 2)} %" for label, share in [*shares.items()][:SHOWN]]
        text = f"The gate cut this share of tokens: {'; '.join(parts)}."
        yield Finding("gate/shares", "note", text)


#: Kinds that say whether a gate acted, and those of one that did.
_ACTED = {"gate/acted", "gate/often"}
_STATES = _ACTED | {"gate/weights", "gate/capped", "gate/unknown", "gate/unlogged"}


def _states(by_run: Sequence[RunFindings]) -> Iterator[Finding]:
    runs = [one.run for one in by_run]
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        many = f"{len(unfinished)} of {len(runs)} runs" if len(runs) > 1 else "The run"
        verb = "are" if len(unfinished) > 1 else "is"
        text = f"{many} {verb} not finished; the results below are preliminary."
        yield Finding("runs/unfinished", "warning", text)
    if notices := [f for one in by_run for f in one.findings if f.subject == "guard"]:
        kinds = join_words([*dict.fromkeys(finding.name for finding in notices)])
        text = f"The guards logged {plural(len(notices), 'warning')}: {kinds}."
        yield Finding("guard/count", "warning", text)


def _troubles(by_run: Sequence[RunFindings]) -> Iterator[Finding]:
    """Faults and warnings of the runs, each kind once, with the number of runs that have it."""
    by_kind: dict[str, list[tuple[str, Finding]]] = {}
    for one in by_run:
        mine: dict[str, Finding] = {}
        for finding in one.findings:
            if finding.troubles and finding.subject != "guard":
                mine.setdefault(finding.kind, finding)
        for kind, finding in mine.items():
            by_kind.setdefault(kind, []).append((one.name, finding))
    for those in by_kind.values():
        name, first = those[0]
        more = len(those) - 1
        others = f" and {plural(more, 'other run')}" if more else ""
        where = f"{name}{others}: " if len(by_run) > 1 else ""
        yield replace(first, sentence=where + first.sentence)


def cautions(groups: Sequence[Group], compared: Sequence[Compared]) -> Iterator[Finding]:
    """Limitations of the intervals and comparisons of these runs."""
    trained = [
        group
        for group in groups
        if group.scored and (group.runs[0].method is not None or len(group.scored) > 1)
    ]
    yield from families([run for group in groups for run in group.scored])
    yield from _few_seeds(trained)
    if compared and not trained:
        text = (
            "Each evaluation is of one model. Only several trained seeds of each can show whether "
            "the ways of training differ."
        )
        yield Finding("comparison/models", "warning", text)
    yield from _collapses(trained)
    if overlapping := {name: n for name, g in _with_names(groups) if (n := trained_on(g))}:
        each = join_words([f"{name} ({n} training problems)" for name, n in overlapping.items()])
        text = f"Test problems were in the training data: {each}. Their scores may be memory."
        yield Finding("scores/contaminated", "fault", text)
    pairs = [[*one.reference.scored, *one.group.scored] for one in compared]
    yield from {caution.sentence: caution for pair in pairs for caution in unlike(pair)}.values()
    if compared:
        yield from unlike_settings(groups)
    for here in by_setting(groups).values() if compared else ():
        yield from unequal_samples(here)
    if len(by_setting(groups)) > 1 and compared:
        same = "in the same setting" if any(g.setting != g.model for g in groups) else ""
        text = f"Methods are compared only with methods {same or 'on the same model'}."
        yield Finding("comparison/within", "warning", text)


def _few_seeds(trained: Sequence[Group]) -> Iterator[Finding]:
    single = [group for group in trained if len(group.scored) == 1]
    if single and len(trained) > 1:
        which = "Every method was" if len(single) == len(trained) else f"{len(single)} methods were"
        text = (
            f"{which} trained once. Another seed may give another order: a difference says which "
            "run scored higher, not which method does."
        )
        advice = f"to compare methods, train each from {stats.FEW_SEEDS} seeds or more."
        yield Finding("comparison/one_seed", "warning", text, advice)
    several = [len(group.scored) for group in trained if 1 < len(group.scored) < stats.FEW_SEEDS]
    if not several:
        return
    seeds = min(several)
    # Measured by `collapses` of benchmarks/coverage.py.
    text = (
        f"{seeds} seeds per method are few, because an interval cannot show a failure that none of "
        f"its runs had. If one run in four collapses, {100 * LEVEL:.0f} % intervals from 3 seeds "
        f"contain the true mean in 53 to 87 % of cases. If none of {seeds} runs collapsed, up to "
        f"{percent(stats.rate_interval(0, seeds).high, 0)} % of all runs may still collapse."
    )
    yield Finding("comparison/few_seeds", "warning", text)


def _collapses(groups: Sequence[Group]) -> Iterator[Finding]:
    """How many of several runs lost what they had learned, and what follows for their score."""
    for name, group in _with_names(groups):
        lost = [run for run in group.scored if collapsed(run)]
        if not lost or len(group.scored) == 1:  # of one run, its own findings say so
            continue
        rate = stats.rate_interval(len(lost), len(group.scored))
        others = [run.final for run in group.scored if run not in lost and run.final is not None]
        values = [mean_of(final) for final in others]
        rest = f", and the others end at {percent(sum(values) / len(values))} %" if values else ""
        withheld = (
            f" No interval is given, because with fewer than {ENOUGH_RUNS} runs it would be wrong."
            if group.unsteady
            else ""
        )
        text = (
            f"{name}: {len(lost)} of {len(group.scored)} runs collapsed (the {100 * LEVEL:.0f} % "
            f"interval of the rate is {percent(rate.low, 0)} to {percent(rate.high, 0)} %)"
            f"{rest}.{withheld}"
        )
        yield Finding("scores/collapses", "fault", text)


def _pairing(compared: Sequence[Compared]) -> str:
    return ", runs paired by seed" if any(c.seeds > 1 and c.same_seeds for c in compared) else ""


def _at(c: Compared) -> str:
    return "" if c.step is None else f"At update {c.step}: "


def _gap(c: Compared) -> float:
    return 0.0 if c.difference is None else c.difference.value


def _points(c: Compared) -> str:
    return signed(_gap(c))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _with_names(groups: Sequence[Group]) -> Iterator[tuple[str, Group]]:
    return zip(names(groups), groups, strict=True)
