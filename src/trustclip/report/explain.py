"""A run's constraint in plain sentences: what the gate did, and what to try next.

Of a run directory of ours, or of the log of another trainer; see `trustclip.report.course`.
"""

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from statistics import fmean

import torch

from trustclip.constraints import divergences
from trustclip.constraints.base import Method, Trait
from trustclip.constraints.consent import consent
from trustclip.constraints.registry import as_method
from trustclip.report import course, sampler
from trustclip.report.change import Change, improved, moved
from trustclip.report.groups import describe
from trustclip.report.rows import PREFIX as _PREFIX
from trustclip.report.rows import mean as _mean
from trustclip.report.rows import percent as _percent
from trustclip.report.rows import values as _values
from trustclip.report.shadows import mean_metrics
from trustclip.report.shadows import sentences as shadow_sentences
from trustclip.runs.foreign.log import Log
from trustclip.runs.jsonl import Row, read_jsonl
from trustclip.runs.outlook import outlook
from trustclip.runs.reader import Run, find, read_run
from trustclip.runs.scored import course_of_scores, score_fell, score_rose
from trustclip.runs.text import one_line
from trustclip.runs.thresholds import FALLEN, OFTEN, SELDOM, SOLVED, TINY

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
#: A kind of token is named if its gated share is this many times the mean.
STANDS_OUT = 2.0


def explain(folder: Path) -> list[str]:
    """Describe what the gate did in a run.

    Args:
      folder: a run directory, or a log of another trainer; it is only read.

    Returns:
      Paragraphs, each one line without control characters; the last ones suggest what to try next.

    Raises:
      ValueError: neither, a suite of several runs, or a run without training under a constraint.
    """
    folders = list(find([folder]))
    if len(folders) > 1:
        names = ", ".join(path.name for path in folders[:5])
        raise ValueError(f"{folder} contains {len(folders)} runs; choose one: {names}.")
    run = read_run(folders[0])
    if run.log is not None:
        return [one_line(paragraph) for paragraph in _of_log(run, run.log)]
    rows = [row for row in run.training if _PREFIX + "gated" in row]
    if run.method is None or not rows:
        return [one_line(paragraph) for paragraph in _unconstrained(run)]
    with consent():
        method = as_method(run.method)
    found = [_subject(run), *_outlook(run), _gate(method, rows)]
    if _mean(rows, "gated") > 0:
        found += [_quadrants(rows), *_kinds(rows), *_when(rows), *_mass(rows), *_completions(run)]
    found += [_distance(rows), *_threshold(rows), *_agreement(rows), *_entropy(run, rows)]
    found += [*sampler.sentences(run, rows), *course.signal(run.training)]
    found += course_of_scores(run.evaluations)
    found += shadow_sentences(method, mean_metrics(rows))
    found += [f"Warning at update {n.get('step')}: {n.get('text')}" for n in run.notices]
    advice = [*sampler.advice(method, rows), *_fallen(run)] or _next(run, method, rows)
    found += [f"Next: {text}" for text in advice]
    # Names and warnings come from files: none of them may control a terminal.
    return [one_line(paragraph) for paragraph in found]


def _outlook(run: Run) -> Iterator[str]:
    yield from (f"At the start: {sign.text}" for sign in outlook(run))


def _unconstrained(run: Run) -> Iterator[str]:
    """A run in which no constraint had anything to constrain: what there is to say of it."""
    rows = run.training
    if run.silence:
        raise ValueError(run.silence)
    if run.method is None:
        state = "" if run.finished or not rows else ", unfinished"
        steps = max((row["step"] for row in run.metrics.get("sft", ())), default=0)
        tuned = f"{steps} steps" if steps and not run.evaluations else "an evaluation"
        many = f"{run.last_step} updates" if rows else tuned
        yield f"{run.name}: {run.command} of {run.model}, {many}{state}. It has no constraint."
    elif not rows:
        yield f"{run.name}: {describe(run.method)} on {run.model}, no update logged yet."
    else:
        yield _subject(run)
        yield from _outlook(run)
        yield (
            "No update had anything to constrain: in every group all rewards were equal, so no "
            "token had an advantage, and the policy did not move."
            if not moved(rows)
            else "No update has logged what the constraint did."
        )
    yield from course.entropy(rows)
    yield from course.signal(rows)
    yield from course_of_scores(run.evaluations)
    yield from (f"Warning at update {n.get('step')}: {n.get('text')}" for n in run.notices)
    if rows and run.method is not None and not outlook(run):
        yield (
            "Next: look at completions and their rewards (samples.jsonl, trustclip report): "
            "problems of medium difficulty, or another reward, give groups that differ."
        )


def _of_log(run: Run, log: Log) -> Iterator[str]:
    """The log of another trainer: what it holds, what it lacks, and advice."""
    rows, words = log.rows, log.digest.words if log.digest else None
    full = [row for row in rows if _PREFIX + "off_policy" in row]
    yield course.subject(run.name, log)
    yield course.constraint(log)
    if full and _mean(full, "gated") > 0:
        yield _quadrants(full)
        yield from (*_kinds(full), *_when(full), *_mass(full))
    else:
        yield from course.quadrants(rows)
    if words is not None:
        yield from course.cut_words(words)
    between = "The trainer differed from the sampler by" if log.two_policies else None
    yield from [_distance(full, *filter(None, [between]))] if full else course.distance(log)
    yield from sampler.sentences(run, full) if full else course.sampler(rows)
    yield from course.entropy(rows, words)
    yield from course.signal(rows)
    yield from (f"About the files: {remark}." for remark in log.remarks)
    yield from course.unanswered(log)
    yield from (f"Next: {text}" for text in course.advice(log))


def _subject(run: Run) -> str:
    state = "" if run.finished else ", unfinished"
    method = describe(run.method or {})
    return f"{run.name}: {method} on {run.model}, {run.last_step} updates{state}."


def _gate(method: Method, rows: Sequence[Row]) -> str:
    shares = {row["step"]: row[_PREFIX + "gated"] for row in rows}
    closed = [step for step, share in shares.items() if share and share > 0]
    off_policy = _mean(rows, "off_policy")
    if off_policy == 0:
        return (
            "The constraint was inert: every token had ratio 1, where no constraint on the ratio "
            "can act."
        )
    if Trait.CUTS not in method.traits:
        return (
            f"This method reweights tokens and cuts none; {_percent(off_policy)} of tokens had a "
            "ratio other than 1, where its weight differs from that of the plain policy gradient."
        )
    if not closed:
        return (
            f"The constraint was inert: its gate closed on no token in {len(shares)} logged "
            "updates, so training was the same as without a constraint."
        )
    top = max(shares, key=lambda step: shares[step] or 0)
    return (
        f"The gate cut {_percent(_mean(rows, 'gated'))} of tokens. It closed on at least one token "
        f"in {len(closed)} of {len(shares)} logged updates, first in update {closed[0]}; the "
        f"largest share was {_percent(shares[top])}, in update {top}."
    )


def _quadrants(rows: Sequence[Row]) -> str:
    shares = {name: _mean(rows, f"gated/{name}") for name in _QUADRANTS}
    total = sum(shares.values()) or 1.0
    ordered = sorted(shares, key=lambda name: -shares[name])
    parts = [f"{100 * shares[n] / total:.0f} % were {_QUADRANTS[n]}" for n in ordered if shares[n]]
    return "Of the tokens cut, " + ("; ".join(parts) or "all were at ratio 1") + "."


def _kinds(rows: Sequence[Row]) -> Iterator[str]:
    mean = _mean(rows, "gated")
    for kind, title in _KINDS.items():
        prefix = f"{_PREFIX}gated/{kind}_"
        names = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
        found = {n.removeprefix(prefix): _of_kind(rows, n.removeprefix(_PREFIX)) for n in names}
        shares = {name: share for name, (share, n) in found.items() if n is None or n >= TINY}
        if not shares:
            continue
        ordered = sorted(shares, key=lambda name: float(name.partition("_")[0]))
        listed = ", ".join(
            f"{_percent(shares[name])} of {_named(kind, name)}{_many(found[name][1])}"
            for name in ordered
        )
        most = max(shares, key=lambda name: shares[name])
        times = shares[most] / mean
        highest = f" The highest share, {times:.1f} times the mean: {_named(kind, most)}."
        yield f"{title}, the gate cut {listed}.{highest if times > STANDS_OUT else ''}"


def _of_kind(rows: Sequence[Row], name: str) -> tuple[float, int | None]:
    """Gated share of a kind of token over all updates, and the number of such tokens if logged."""
    share, count = _PREFIX + name, _PREFIX + name.replace("gated", "tokens", 1)
    pairs = [(row[share], row[count]) for row in rows if share in row and row.get(count)]
    if not pairs:
        return _mean(rows, name), None
    tokens = sum(n for _, n in pairs)
    return sum(gated * n for gated, n in pairs) / tokens, round(tokens)


def _many(tokens: int | None) -> str:
    return "" if tokens is None else f" (n = {tokens:,})"


def _named(kind: str, name: str) -> str:
    if kind == "position":
        return f"quarter {name}"
    low, _, high = name.partition("_")
    return f"those above {low}" if high == "inf" else f"those from {low} to {high}"


def _when(rows: Sequence[Row]) -> Iterator[str]:
    half = len(rows) // 2
    if half >= 4:
        early, late = (_mean(part, "gated") for part in (rows[:half], rows[half:]))
        yield (
            f"In the first half of training it cut {_percent(early)}, in the second "
            f"{_percent(late)}."
        )


def _mass(rows: Sequence[Row]) -> Iterator[str]:
    if _values(rows, "advantage_cut"):
        cut, gated = _mean(rows, "advantage_cut"), _mean(rows, "gated")
        yield (
            f"The cut tokens carried {_percent(cut)} of the total absolute advantage, "
            f"{cut / gated:.1f} times their share of tokens."
        )


def _completions(run: Run) -> Iterator[str]:
    """Which completions were affected, from the gated share of each in each update."""
    path = run.path / "gates.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    every = [
        (share, row["step"], row["generated"][i], row["index"][i])
        for row in rows
        for i, share in enumerate(row["gated"])
    ]
    hit = [entry for entry in every if entry[0] > 0]
    if hit:
        share, step, generated, index = max(hit)
        yield (
            f"It cut tokens in {_percent(len(hit) / len(every))} of completions. The most affected "
            f"was number {index} of the generation after update {generated}: {_percent(share)} of "
            f"its tokens were cut in update {step}."
        )


def _distance(rows: Sequence[Row], moved: str = "The policy moved by") -> str:
    low, high = (_values(rows, f"ratio_q{q}") for q in ("01", "99"))
    reach = (
        f"; 98 % of ratios were in [{fmean(low):.3g}, {fmean(high):.3g}]" if low and high else ""
    )
    sizes = _values(rows, "ess")
    size = f"; the effective sample size was at least {100 * min(sizes):.0f} %" if sizes else ""
    return f"{moved} {_mean(rows, 'k3'):.2g} nats per token and update (k3){reach}{size}."


def _threshold(rows: Sequence[Row]) -> Iterator[str]:
    prefix = _PREFIX + "threshold/"
    keys = dict.fromkeys(k.removeprefix(prefix) for row in rows for k in row if prefix in k)
    for name in (key for key in keys if "/" not in key):
        values = _values(rows, f"threshold/{name}")
        yield (
            f"The threshold {name} changed from {values[0]:.3g} to {values[-1]:.3g} and stayed "
            f"between {min(values):.3g} and {max(values):.3g}."
        )
        limited = _values(rows, f"threshold/{name}/at_limit")
        if limited and fmean(limited) > 0.5:
            yield (
                f"In {fmean(limited):.0%} of the updates {name} was at its controller's limit, "
                "where the target cannot be held: give it another `low` or `high`."
            )


def _agreement(rows: Sequence[Row]) -> Iterator[str]:
    precision, recall = (_values(rows, f"agreement/{name}") for name in ("precision", "recall"))
    if precision and recall:
        yield (
            "The exact KL divergence at the same threshold would also have cut "
            f"{fmean(precision):.0%} of the tokens that were cut; {fmean(recall):.0%} of the "
            "tokens that it would have cut were cut."
        )


def _entropy(run: Run, rows: Sequence[Row]) -> Iterator[str]:
    change = Change.of_entropy(run.training)
    if change is None:
        return
    text = change.sentence(moved=moved(run.training))
    cut, kept = (_values(rows, f"entropy_slope/{name}") for name in ("cut", "kept"))
    if cut and kept and fmean(cut) != 0:
        effect = "lowered" if fmean(cut) > 0 else "raised"
        text += (
            f" To first order, the kept tokens pushed it {_direction(fmean(kept))} and the cut "
            f"tokens would have pushed it {_direction(fmean(cut))}, "
            f"{abs(fmean(cut) / (fmean(kept) or 1)):.2g} times as much: the gate {effect} it."
        )
    yield text


def _direction(slope: float) -> str:
    return "up" if slope > 0 else "down"


def _fallen(run: Run) -> Iterator[str]:
    best = score_fell(run.evaluations)
    if best is not None:
        where = f"after update {best}" if best else "before training"
        yield (
            f"the evaluation score was highest {where}, and the last interval lies below: a "
            "smaller learning rate, or fewer updates, before another threshold."
        )


def _next(run: Run, method: Method, rows: Sequence[Row]) -> Iterator[str]:
    """Advice, from the most notable number."""
    gated, entropy = _mean(rows, "gated"), Change.of_entropy(run.training)
    rose = score_rose(run.evaluations) or improved(run.training)
    if _mean(rows, "off_policy") == 0:
        yield "set num_iterations or steps_per_generation to 2 or more, so that ratios leave 1."
    elif Trait.CUTS in method.traits and gated < SELDOM:
        yield f"for a constraint that acts, tighten the threshold: {_cutting(rows)}."
    elif gated > OFTEN:
        yield (
            f"{_percent(gated)} of tokens were cut, so the gate limits every update"
            + ("; the run improved all the same." if rose else
               ": lower the learning rate, take fewer updates per generation, or widen the "
               "threshold.")
        )  # fmt: skip
    elif entropy is None or not entropy.clear or entropy.last >= FALLEN * entropy.first:
        yield "nothing unusual; compare with other methods over several seeds (trustclip suite)."
    elif rose or _solved(rows):
        yield "nothing unusual: entropy fell as answers became correct."
    else:
        rising = _mean(rows, "gated/positive_above") > 0.5 * gated
        yield (
            "entropy has fallen by more than half, and the gate mostly cuts rewarded tokens whose "
            "probability rises: try a wider upper bound (clip_higher, or atr with a larger delta)."
            if rising
            else "entropy has fallen by more than half, and the gate is not the cause: try a "
            "smaller learning rate or an entropy bonus before another threshold."
        )


def _solved(rows: Sequence[Row]) -> bool:
    rewards = _values(rows, "reward", prefix="")
    return bool(rewards) and rewards[-1] > SOLVED


def _cutting(rows: Sequence[Row]) -> str:
    """A threshold that would have acted, from the observed ratios."""
    low, high = (_values(rows, f"ratio_q{q}") for q in ("01", "99"))
    if not (low and high):
        return "use the controller target_gate to reach a chosen share of gated tokens"
    bounds = fmean(low), fmean(high)
    reached = min(
        divergences.k3(torch.tensor(log(bound), dtype=torch.float64)).item() for bound in bounds
    )
    return (
        f"atr with delta {reached:.2g} would cut about 1 % of tokens, and the controller "
        "target_gate finds the threshold for a chosen share"
    )
