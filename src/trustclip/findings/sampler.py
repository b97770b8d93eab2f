"""The sampler: how far it is from the trainer, on which tokens, and what follows."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from trustclip.constraints.base import Trait
from trustclip.findings.course import Course
from trustclip.findings.facts import (
    ABSOLUTE,
    EXP_ABSOLUTE,
    FEW,
    LARGE,
    LISTED,
    NAMED,
    NORMAL,
    ROUNDING,
    STILL,
    WORSENED,
)
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
    if not course.full:
        yield from _differs(course)
        yield from _exponential(course)
        return
    rows = course.full
    if not values(rows, "sampler/k3"):
        return
    distance = _distance(course)
    yield distance
    if mean(rows, "sampler/k3") <= ROUNDING:
        return
    if sizes := values(rows, _ESS):
        few = min(sizes) < FEW
        yield Finding(
            "sampler/few" if few else "sampler/ess",
            "warning" if few else "note",
            "With weights that correct for the sampler, the completions counted like "
            f"{percent(fmean(sizes))} of their number on average (effective sample size), and like "
            f"{percent(min(sizes))} in the worst update.",
            {_ESS: min(sizes)},
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


def _distance(course: Course) -> Finding:
    """The distance of the sampler beside that which the policy moved."""
    rows = course.full
    differs, moved = mean(rows, "sampler/k3"), mean(rows, "k3")
    identical = percent(mean(rows, "sampler/identical_share"))
    evidence = {"sampler/k3": differs, "k3": moved}
    if differs <= ROUNDING:
        text = (
            "Sampler and trainer agree; they differ only by rounding (sampler/k3 "
            f"{differs:.2g} nats; {identical} of tokens identical to the bit)."
        )
        return Finding("sampler/exact", "ok", text, evidence)
    first, last = ends(values(rows, "sampler/k3"))
    grown = f", from {first:.2g} at first to {last:.2g} at last" if last > WORSENED * first else ""
    more = "more" if differs > moved else "less"
    text = (
        f"The sampler differs from the trainer by {more} than the updates moved the policy: by "
        f"{differs:.2g} nats per token (k3){grown}, against {moved:.2g}. Log-probabilities differ "
        f"by {mean(rows, 'sampler/abs'):.2g} nats on average, and {identical} are identical."
    )
    if differs <= LARGE or (course.log is None and differs <= moved):
        return Finding("sampler/distance", "note", text, evidence)
    return Finding("sampler/far", "warning", text, evidence, _advice(course, "k3", differs, LARGE))


def _differs(course: Course) -> Iterator[Finding]:
    """Whether the sampler of a log differs, from whichever measure that has."""
    rows = course.rows
    k3, k1, absolute, largest = (
        values(rows, f"sampler/{name}") for name in ("k3", "k1", "abs", "abs_max")
    )
    if course.log is None or not (k3 or k1 or absolute):
        return
    parts = [f"{max(fmean(k3), 0.0):.2g} nats per token (k3)"] if k3 else []
    parts += [f"a mean absolute log-ratio of {fmean(absolute):.2g}"] if absolute else []
    parts += [f"{fmean(k1):.2g} nats per token (k1)"] if k1 and not k3 else []
    most = f", at most {max(largest):.2g} on a token" if largest else ""
    listing = f"{', '.join(parts)}{most}"
    means = {n: fmean(v) for n, v in (("k3", k3), ("abs", absolute), ("k1", k1)) if v}
    evidence = {f"sampler/{name}": value for name, value in means.items()}
    rounding = {"k3": ROUNDING, "abs": STILL, "k1": STILL}
    if all(max(map(abs, values(rows, f"sampler/{n}"))) <= rounding[n] for n in means):
        text = f"Sampler and trainer agree; they differ only by rounding: {listing}."
        yield Finding("sampler/exact", "ok", text, evidence)
        return
    first, last = ends(k3 or absolute or k1)
    grew = first > 0 and last > WORSENED * first
    grown = f"; it grew from {first:.2g} to {last:.2g}" if grew else ""
    text = f"The sampler differs from the trainer by {listing}{grown}."
    limits = {"k3": LARGE, "abs": ABSOLUTE}
    if far := [name for name in limits if means.get(name, 0.0) > limits[name]]:
        advice = _advice(course, far[0], means[far[0]], limits[far[0]])
        yield Finding("sampler/far", "warning", text, evidence, advice)
    else:
        yield Finding("sampler/distance", "note", text, evidence)
    yield Finding("sampler/normal", "note", f"Normal is {NORMAL}.")


def _exponential(course: Course) -> Iterator[Finding]:
    """The mean of e^|log-ratio|, which NeMo RL logs in place of the mean."""
    if means := values(course.rows, "sampler/exp_abs"):
        value = fmean(means)
        text = (
            f"The mean of e^|log-ratio| to the sampler was {value:.3g}, at most {max(means):.3g}; "
            f"1 would be equality, and NeMo RL's own tests ask for less than {EXP_ABSOLUTE:g}."
        )
        far = value > EXP_ABSOLUTE
        advice = "compare precisions and weights of the two engines (trustclip doctor --sampler)."
        yield Finding("sampler/exponential", "warning" if far else "note", text,
                      {"sampler/exp_abs": value}, advice if far else "")  # fmt: skip


def _advice(course: Course, name: str, differs: float, limit: float) -> str:
    if course.log is not None:
        return (
            f"the sampler differs by {differs:.2g} nats ({name}; {limit} is the limit): compare "
            "precisions and weights of the two engines, then correct for the rest (tis, icepop)."
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
        f"by {mean(rows, f'k3/{lag}'):.2g} and {mean(rows, f'sampler/k3/{lag}'):.2g} at a lag of "
        f"{in_words(lag)} updates"
        for lag in lags
    ]
    yield f"The policy moved and the sampler differed (k3, nats) {', '.join(parts)}."


def in_words(name: str) -> str:
    """Updates since sampling, from the name of a bucket.

    Example:
      >>> [in_words(name) for name in ("lag_0", "lag_3_4", "lag_17_inf")]
      ['0', '3 to 4', '17 and more']
    """
    low, _, high = name.removeprefix("lag_").partition("_")
    return f"{low} and more" if high == "inf" else f"{low} to {high}" if high else low


def _worst(run: Run) -> Iterator[str]:
    if tokens := worst_tokens(run)[:NAMED]:
        listing = "; ".join(
            f"{token['text']!r} (place {token['position']} of completion {token['index']} sampled "
            f"after update {token['generated']}: log-probability {token['logp_old']:.3g} and "
            f"{token['logp_rollout']:.3g})"
            for token in tokens
        )
        yield f"Trainer and sampler agree least on {listing}."


def worst_tokens(run: Run) -> list[dict[str, Any]]:
    """The tokens of the run on which trainer and sampler agree least, each place once."""
    tokens = {
        (token["generated"], token["index"], token["position"]): token
        for row in gate_rows(run.path)
        for token in row.get("worst", ())
    }
    return sorted(tokens.values(), key=lambda t: -abs(t["logp_old"] - t["logp_rollout"]))[:LISTED]
