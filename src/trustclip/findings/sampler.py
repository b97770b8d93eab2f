"""The sampler: how far it is from the trainer, on which tokens, and what follows."""

from collections.abc import Iterator, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from trustclip.constraints.base import Trait
from trustclip.findings import facts
from trustclip.findings.course import Course
from trustclip.findings.finding import Finding
from trustclip.findings.rows import PREFIX, ends, mean, percent, values
from trustclip.logs.run import Run
from trustclip.logs.samples import gate_rows
from trustclip.support.jsonl import Row

_ESS = "sampler/current/sequence_ess"


def of_run(course: Course) -> Iterator[Finding]:
    """What the run says of its sampler; nothing where that reported no log-probabilities."""
    for row in course.run.metrics.get("sampler", ()):
        yield Finding("sampler/start", "note", f"Before the first update: {row.get('text')}")
    yield from _exponential(course)
    distance = _distance(course)
    if distance is None:
        return
    yield distance
    rows = course.full
    if distance.kind == "sampler/exact":
        return
    if course.log is not None:
        yield Finding("sampler/normal", "note", f"Normal is {facts.NORMAL}.")
    if sizes := values(rows, _ESS):
        few = min(sizes) < facts.FEW
        yield Finding(
            "sampler/few" if few else "sampler/ess",
            "warning" if few else "note",
            "With weights that correct for the sampler, the completions counted like "
            f"{percent(fmean(sizes))} of their number on average (effective sample size), and like "
            f"{percent(min(sizes))} in the worst update.",
            "few completions carried some updates: lower the lag or the learning rate, or mask "
            "sequences that are far off (icepop with level 'sequence', opsm, trm)."
            if few and not distance.advice
            else "",
        )
    for text in (*_gate_shares(rows), *_lags(rows), *_worst(course.run)):
        yield Finding("sampler/tokens", "note", text)


def _gate_shares(rows: Sequence[Row]) -> Iterator[str]:
    old, rollout = (values(rows, f"sampler/gated_{name}") for name in ("old", "rollout"))
    if old and rollout:
        yield (
            f"Measured from the proximal policy, the gate cuts {percent(fmean(old))} of tokens; "
            f"measured from the sampler, it cuts {percent(fmean(rollout))}."
        )


def _distance(course: Course) -> Finding | None:
    """How far the sampler is, by what was logged of it, beside what the updates moved."""
    rows = course.full or course.rows
    series = {name: v for name in _MEASURES if (v := values(rows, f"sampler/{name}"))}
    if not series:
        return None
    means = {name: fmean(column) for name, column in series.items()}
    if "k3" in means:
        means["k3"] = max(means["k3"], 0.0)  # below 0 is rounding
    parts = [_MEASURES[n].words.format(means[n]) for n in means if n != "k1" or "k3" not in means]
    if largest := values(rows, "sampler/abs_max"):
        parts.append(f"at most {max(largest):.2g} on a token")
    if identical := values(rows, "sampler/identical_share"):
        parts.append(f"{percent(fmean(identical))} of tokens identical to the bit")
    listing = ", ".join(parts)
    name, column = next(iter(series.items()))
    if max(map(abs, column)) <= _MEASURES[name].rounding:
        text = f"Sampler and trainer agree; they differ only by rounding: {listing}."
        return Finding("sampler/exact", "ok", text)
    first, last = ends(column)
    grown = f"; it grew from {first:.2g} to {last:.2g}" if last > facts.WORSENED * first > 0 else ""
    far, beside = next((n for n in means if means[n] > _MEASURES[n].far), None), ""
    if course.log is None and "k3" in means:
        moved = mean(rows, "k3")
        more = "more" if means["k3"] > moved else "less"
        far = "k3" if means["k3"] > max(moved, facts.LARGE) else None
        beside = f"{more} than the updates moved the policy ({moved:.2g}): by "
    text = f"The sampler differs from the trainer by {beside}{listing}{grown}."
    if far is None:
        return Finding("sampler/distance", "note", text)
    return Finding("sampler/far", "warning", text, _advice(course, far, means[far]))


class _Measure(NamedTuple):
    """A distance from the sampler: in words, up to where it is rounding, and what is far, nats."""

    words: str
    rounding: float
    far: float


#: The measures that logs have, the one that is judged first.
_MEASURES = {
    "k3": _Measure("{:.2g} nats per token (k3)", facts.ROUNDING, facts.LARGE),
    "abs": _Measure("a mean absolute log-ratio of {:.2g}", facts.STILL, facts.ABSOLUTE),
    "k1": _Measure("{:.2g} nats per token (k1)", facts.STILL, inf),
}


def _exponential(course: Course) -> Iterator[Finding]:
    """The mean of e^|log-ratio|, which NeMo RL logs in place of the mean."""
    if means := values(course.rows, "sampler/exp_abs"):
        value, limit = fmean(means), facts.EXP_ABSOLUTE
        text = (
            f"The mean of e^|log-ratio| to the sampler was {value:.3g}, at most {max(means):.3g}; "
            f"1 would be equality, and NeMo RL's own tests ask for less than {limit:g}."
        )
        advice = "compare precisions and weights of the two engines (trustclip doctor --sampler)."
        far = value > limit
        severity = "warning" if far else "note"
        yield Finding("sampler/exponential", severity, text, advice if far else "")


def _advice(course: Course, name: str, differs: float) -> str:
    if course.log is not None:
        return (
            f"the sampler differs by {_MEASURES[name].words.format(differs)}, and the limit is "
            f"{_MEASURES[name].far}: compare precisions and weights of the two engines, then "
            "correct for the rest (tis, icepop)."
        )
    corrects = course.method is not None and Trait.CORRECTS_SAMPLER in course.method.traits
    cure = (
        f"{course.method.name} corrects for the difference, but does not remove its cause."
        if course.method is not None and corrects
        else "Correct for the rest with tis, icepop, or anchor 'rollout'."
    )
    return (
        "run trustclip doctor --sampler to find out whether engine or precision differ; if samples "
        f"are old, lower the lag. {cure}"
    )


def _lags(rows: Sequence[Row]) -> Iterator[str]:
    """Both distances by lag, where completions of several ages were trained on."""
    prefix = f"{PREFIX}sampler/k3/"
    names = dict.fromkeys(key for row in rows for key in row if key.startswith(prefix))
    lags = [key.removeprefix(prefix) for key in names]
    lags.sort(key=lambda name: int(name.removeprefix("lag_").partition("_")[0]))
    if len(lags) < 2:
        return
    parts = [
        f"{mean(rows, f'k3/{lag}'):.2g} and {mean(rows, f'sampler/k3/{lag}'):.2g} at a lag of "
        f"{in_words(lag)} updates"
        for lag in lags
    ]
    yield f"The policy moved, and the sampler differed, by these nats (k3): {'; '.join(parts)}."


def in_words(name: str) -> str:
    """Updates since sampling, from the name of a bucket.

    Example:
      >>> [in_words(name) for name in ("lag_0", "lag_3_4", "lag_17_inf")]
      ['0', '3 to 4', '17 and more']
    """
    low, _, high = name.removeprefix("lag_").partition("_")
    return f"{low} and more" if high == "inf" else f"{low} to {high}" if high else low


def _worst(run: Run) -> Iterator[str]:
    """The tokens on which trainer and sampler agree least, each place once."""
    tokens = {
        (token["generated"], token["index"], token["position"]): token
        for row in gate_rows(run.path)
        for token in row.get("worst", ())
    }
    worst = sorted(tokens.values(), key=lambda t: -abs(t["logp_old"] - t["logp_rollout"]))
    if worst:
        listing = "; ".join(
            f"{token['text']!r} (place {token['position']} of completion {token['index']} sampled "
            f"after update {token['generated']}: log-probability {token['logp_old']:.3g} and "
            f"{token['logp_rollout']:.3g})"
            for token in worst[: facts.NAMED]
        )
        yield f"Trainer and sampler agree least on {listing}."
