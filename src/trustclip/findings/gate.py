"""The gate: whether it acted, on which tokens, and at which threshold."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from trustclip.findings.course import Course
from trustclip.findings.facts import AT_LIMIT, OFTEN, OUTSIDE, SELDOM, STANDS_OUT, STILL, TINY
from trustclip.findings.finding import Finding
from trustclip.findings.rows import PREFIX, mean, over_tokens, percent, values
from trustclip.logs.log import Log
from trustclip.support.jsonl import Row
from trustclip.support.text import plural

_QUADRANTS = {
    "positive_above": "rewarded tokens that had already become more likely (A > 0, ratio above 1)",
    "positive_below": "rewarded tokens that had become less likely (A > 0, ratio below 1)",
    "negative_above": "penalised tokens that had become more likely (A < 0, ratio above 1)",
    "negative_below": "penalised tokens that had already become less likely (A < 0, ratio below 1)",
}
_KINDS = {
    "p_old": "By old probability",
    "position": "By quarter of the completion",
    "entropy": "By entropy (nats)",
}
#: Losses of verl that log a clipped share of 0 whatever they do.
_SILENT = ("sapo",)
_WAYS = {
    "TRL": "num_iterations or steps_per_generation",
    "verl": "actor.ppo_epochs, or lower ppo_mini_batch_size",
}


def of_run(course: Course) -> Iterator[Finding]:
    """Whether the constraint acted; if so, on what; and its threshold."""
    yield from _state_of_log(course, course.log) if course.log else _state(course)
    if course.cut > 0:
        yield from _quadrants(course)
        yield from (Finding("gate/tokens", "note", text) for text in _kinds(course))
    yield from _threshold(course.full)
    yield from _agreement(course.full)


def _state(course: Course) -> Iterator[Finding]:
    shares, off = course.gated, values(course.full, "off_policy")
    if course.run.method is None or not course.rows:
        return
    if not course.full and not course.moved:
        text = (
            "No update had anything to constrain: in every group all rewards were equal, so no "
            "token had an advantage, and the policy did not move."
        )
        yield Finding("gate/nothing", "fault", text)
    elif not course.full:
        yield Finding("gate/unlogged", "note", "No update has logged what the constraint did.")
    elif off and not any(off):
        text = (
            "The constraint was inert: every token had ratio 1, where no constraint on the ratio "
            "can act."
        )
        advice = "set num_iterations or steps_per_generation to 2 or more, so that ratios leave 1."
        yield Finding("gate/ratio_1", "fault", text, advice)
    elif not course.cuts:
        text = "This method cuts no token; it gives tokens other weights."
        if off:
            where = f"where the ratio is not 1: on {percent(fmean(off))} of tokens"
            text += f" It differs from the plain policy gradient {where}."
        yield Finding("gate/weights", "note", text)
    elif not any(shares.values()):
        updates = f" in {plural(len(shares), 'logged update')}"
        text = (
            f"The constraint was inert: its gate closed on no token{updates}, so training was the "
            "same as without a constraint."
        )
        yield Finding("gate/never", "fault", text, _acting_threshold(course))
    else:
        yield _acting(course, "gate", "closed on at least one token", "logged update")


def _acting(course: Course, noun: str, verb: str, row: str) -> Finding:
    """A gate that closed: how often, and whether that is hardly or too much."""
    shares, cut = course.gated, course.cut
    seldom = cut < SELDOM
    text = f"The {noun} {'hardly acted: it ' if seldom else ''}cut {percent(cut)} of tokens."
    if len(shares) > 1:
        closed = [step for step, share in shares.items() if share > 0]
        top = max(shares, key=lambda step: shares[step])
        text += (
            f" It {verb} in {len(closed)} of {len(shares)} {row}s, first in {course.unit} "
            f"{closed[0]}; the largest share was {percent(shares[top])}, in {course.unit} {top}."
        )
    if seldom:
        return Finding("gate/seldom", "warning", text, _acting_threshold(course))
    if cut <= OFTEN:
        return Finding("gate/acted", "ok", text)
    if course.rose:
        text += f" A share above {percent(OFTEN)} is a lot, but the run improved: change nothing."
        return Finding("gate/often", "note", text)
    wider = "" if course.log else ", or widen the threshold"
    fewer = "take fewer updates per generation"
    advice = (
        f"{percent(cut)} of tokens were cut, so the {noun} limits every update: lower the learning "
        f"rate, {fewer if wider else f'or {fewer}'}{wider}."
    )
    return Finding("gate/often", "warning", text, advice)


def _state_of_log(course: Course, log: Log) -> Iterator[Finding]:
    """Whether the constraint of another trainer acted, as far as its log says."""
    shares, schedule = course.gated, log.schedule
    distances = values(log.rows, "k1")
    once = schedule if schedule is not None and schedule.updates <= 1 else None
    still = not distances or max(map(abs, distances)) < STILL
    if once and still and not any(shares.values()):
        count = plural(len(shares), course.row)
        zero = f" The clipped share was 0 in all {count}." if shares else ""
        text = (
            f"The constraint was inert: there was one update per generation ({once.basis}), "
            f"so every token had ratio 1, where no constraint on the ratio can act.{zero}"
        )
        yield Finding("gate/ratio_1", "fault", text, _zero_advice(log) if shares else "")
    elif not shares:
        capped = values(log.rows, "weight_capped", prefix="")
        yield Finding(
            "gate/capped" if capped else "gate/unknown",
            "note",
            f"The constraint capped the weight of {percent(fmean(capped))} of tokens."
            if capped
            else "This log does not say whether the constraint acted: it has no share of clipped "
            "tokens.",
        )
    elif any(shares.values()):
        finding = _acting(course, "constraint", "acted", course.row)
        yield replace(finding, sentence=finding.sentence + _pace(log))
    else:
        yield _never(course, log, still=bool(distances) and still)


def _pace(log: Log) -> str:
    """What the number of updates per generation says of a constraint that acted."""
    if log.schedule is None:
        return ""
    if log.schedule.updates > 1:
        return (
            f" There were {log.schedule.updates:.3g} updates per generation "
            f"({log.schedule.basis}); in the first of them every ratio is 1."
        )
    return (
        f" With one update per generation ({log.schedule.basis}) every ratio should be 1. "
        "Something else differs: the sampler, or the pass that computed the old log-probabilities."
    )


def _never(course: Course, log: Log, *, still: bool) -> Finding:
    """A constraint that cut nothing: why, as far as the log says."""
    mode, schedule = log.settings.get("loss_mode"), log.schedule
    if mode in _SILENT:
        text = (
            f"This log does not say whether the constraint acted: verl's loss {mode} logs a "
            "clipped share of 0 whatever it does."
        )
        return Finding("gate/unknown", "note", text)
    unless = ""
    if log.trainer == "verl" and mode is None and not still:
        unless = f", unless verl's loss was {_SILENT[0]}, which logs a share of 0 whatever it does"
    furthest = max(values(log.rows, "k1"), key=abs, default=0.0)
    if abs(furthest) > OUTSIDE:
        text = (
            f"The log contradicts itself{unless}: no token was clipped, and the mean log-ratio "
            f"reached {furthest:.2g} nats, which is outside the bounds of every usual clip."
        )
        advice = (
            "two causes are usual: no token had an advantage, or the old log-probabilities come "
            "from a pass that computes other values. Compare the two passes on one batch before "
            "any update; all differences must be 0."
        )
        return Finding("gate/contradiction", "fault", text, advice)
    text = f"The constraint was inert{unless}: the share of clipped tokens was 0 in all "
    text += plural(len(course.gated), course.row)
    if still:
        text += ", and the mean log-ratio was 0: every token had ratio 1."
    elif schedule is not None:
        text += (
            f", although there were {schedule.updates:.3g} updates per generation "
            f"({schedule.basis}): no ratio reached a bound."
        )
    else:
        text += ". This log does not say whether every ratio was 1 or the bounds are too wide."
    advice = _zero_advice(log) if len(course.gated) > 1 else ""  # the first is always at ratio 1
    return Finding("gate/never", "fault", text, advice)


def _zero_advice(log: Log) -> str:
    """What to do about a clipped share of 0."""
    why = f" ({log.schedule.basis})" if log.schedule else ""
    if log.schedule is not None and log.schedule.updates > 1:
        return (
            f"the clipped share was 0 throughout{why}, so the bounds are wider than the policy "
            "moves: take a smaller threshold."
        )
    return (
        f"the clipped share was 0 throughout{why}, so whatever happened has another cause. To make "
        f"the constraint act, raise {_WAYS.get(log.trainer, 'the number of passes')}, so that each "
        "generation is used for two updates or more."
    )


def _quadrants(course: Course) -> Iterator[Finding]:
    """Which tokens were cut, where at least two kinds are told apart."""
    rows = course.full or course.rows
    shares = {n: fmean(v) for n in _QUADRANTS if (v := values(rows, f"gated/{n}"))}
    total = sum(shares.values())
    if not course.full and (len(shares) < 2 or not total):
        return
    every = max(mean(rows, "gated"), total)
    names = sorted(shares, key=lambda name: -shares[name])
    parts = [f"{100 * shares[n] / every:.0f} % were {_QUADRANTS[n]}" for n in names if shares[n]]
    rest = f"{100 * (1 - total / every):.0f}"
    parts += [f"{rest} % had no advantage, or ratio 1"] if rest != "0" else []
    yield Finding("gate/quadrants", "note", f"Of the tokens cut, {'; '.join(parts)}.")


def _kinds(course: Course) -> Iterator[str]:
    rows = course.full
    for kind, title in _KINDS.items():
        prefix = f"{PREFIX}gated/{kind}_"
        names = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
        by_name = {n.removeprefix(prefix): over_tokens(rows, n.removeprefix(PREFIX)) for n in names}
        shares = {name: share for name, (share, n) in by_name.items() if n is None or n >= TINY}
        if not shares:
            continue
        ordered = sorted(shares, key=lambda name: float(name.partition("_")[0]))
        listing = ", ".join(
            f"{percent(shares[name])} of {_describe_kind(kind, name)}"
            + ("" if (many := by_name[name][1]) is None else f" (n = {many:,})")
            for name in ordered
        )
        most = max(shares, key=lambda name: shares[name])
        times = shares[most] / mean(rows, "gated")
        top = f"{_describe_kind(kind, most)} most, {times:.1f} times the average share: "
        left_out = (
            f" Kinds of fewer than {TINY} tokens are left out." if len(shares) < len(names) else ""
        )
        yield f"{title}, the gate cut {top if times > STANDS_OUT else ''}{listing}.{left_out}"


def _describe_kind(kind: str, name: str) -> str:
    if kind == "position":
        return f"quarter {name}"
    low, _, high = name.partition("_")
    return f"tokens above {low}" if high == "inf" else f"tokens from {low} to {high}"


def _acting_threshold(course: Course) -> str:
    """Advice to take a threshold that would have acted, and, in our own runs, how to find it."""
    way = (
        ": trustclip shadow RUN --suggest METHOD finds that of a share of the recorded tokens, and "
        "the controller target_gate holds a share"
    )
    return f"for a constraint that acts, tighten the threshold{'' if course.log else way}."


def _threshold(rows: Sequence[Row]) -> Iterator[Finding]:
    prefix = PREFIX + "threshold/"
    keys = dict.fromkeys(k.removeprefix(prefix) for row in rows for k in row if prefix in k)
    for name in (key for key in keys if "/" not in key):
        series = values(rows, f"threshold/{name}")
        text = (
            f"The threshold {name} changed from {series[0]:.3g} to {series[-1]:.3g} and stayed "
            f"between {min(series):.3g} and {max(series):.3g}."
        )
        yield Finding("gate/threshold", "note", text)
        limited = values(rows, f"threshold/{name}/at_limit")
        if limited and fmean(limited) > AT_LIMIT:
            text = (
                f"In {percent(fmean(limited))} of the updates {name} was at its controller's "
                "limit, where the target cannot be held."
            )
            advice = f"give {name} a smaller `low` or a larger `high`."
            yield Finding("gate/at_limit", "warning", text, advice)


def _agreement(rows: Sequence[Row]) -> Iterator[Finding]:
    precision, recall = (values(rows, f"agreement/{name}") for name in ("precision", "recall"))
    if precision and recall:
        text = (
            f"Of the tokens that the gate cut, {percent(fmean(precision))} would also be cut by "
            "the exact KL divergence at the same threshold. Of the tokens that the exact KL would "
            f"cut, the gate cut {percent(fmean(recall))}."
        )
        yield Finding("gate/agreement", "note", text)
