"""The learning signal: rewards, groups that teach nothing, truncated completions, lengths."""

import re
from collections.abc import Iterator
from itertools import pairwise
from math import sqrt
from statistics import fmean

from trustclip.findings import facts, start
from trustclip.findings.course import Course
from trustclip.findings.finding import Finding
from trustclip.findings.rows import ends, percent, values

#: The mean of one reward function, as TRL names it.
_MEAN = re.compile(r"rewards/.+/mean").fullmatch


def of_run(course: Course) -> Iterator[Finding]:
    """What the updates could learn from."""
    if reward := course.reward:
        first, last = ends(reward)
        text = (
            f"The mean reward went from {first:.3g} to {last:.3g}."
            if any(value != reward[0] for value in reward)
            else f"The mean reward was {first:.3g} in every update that logged it."
        )
        yield Finding("signal/reward", "note", text)
    hopeless = bool(start.of_run(course.run))  # which has its own advice
    yield from _never(course, hopeless)
    yield from _drop(course)
    yield from _loss(course)
    yield from _idle(course, hopeless)
    if broken := [share for share in values(course.rows, "nonfinite") if share]:
        text = f"Up to {percent(max(broken))} of tokens hold a number that is not finite."
        yield Finding("signal/nonfinite", "warning", text)
    yield from _lengths(course, hopeless)


def _never(course: Course, hopeless: bool) -> Iterator[Finding]:
    """Rewards that no completion ever got, one by one where there are several."""
    names = dict.fromkeys(key for row in course.rows for key in row if _MEAN(key))
    spreads = {name: name.removesuffix("mean") + "std" for name in names}
    many = sum(course.completions.values())
    of_all = f"all {many:,} completions" if many else "every completion"
    for name, spread in (spreads or {"reward": "reward_std"}).items():
        means, spreads_of = (values(course.rows, key, prefix="") for key in (name, spread))
        if not means or any(means) or any(spreads_of):
            continue
        which = f" {name.split('/')[1]!r}" if len(spreads) > 1 else ""
        text = f"Nothing was right in training: the reward{which} was 0 for {of_all}."
        advice = (
            "look at some completions (trustclip report), then take easier problems, or fine-tune "
            "on worked solutions first (sft)."
        )
        yield Finding("signal/never", "fault", text, "" if hopeless else advice)


def _drop(course: Course) -> Iterator[Finding]:
    """The largest clear fall of the reward from one generation to the next."""
    many, worst = course.completions, None
    told = [row for row in course.rows if row.get("reward_std") and "reward" in row]
    for before, after in pairwise(told):
        fall = before["reward"] - after["reward"]
        size = many.get(max((step for step in many if step < after["step"]), default=-1), 0)
        if not size or after["reward"] > facts.LEFT * before["reward"]:
            continue
        error = sqrt((before["reward_std"] ** 2 + after["reward_std"] ** 2) / size)
        if fall > facts.DROPPED * error and (worst is None or fall > worst[0]):
            worst = fall, before, after
    if worst:
        _, before, after = worst
        text = (
            f"The mean reward fell from {before['reward']:.3g} to {after['reward']:.3g} with the "
            f"generation of update {after['step']}, by more than chance explains."
        )
        advice = (
            f"look at the updates before update {after['step']} (trustclip report): if the policy "
            "moved far there (k3), lower the learning rate or take fewer updates per generation."
        )
        yield Finding("signal/drop", "warning", text, advice)


def _loss(course: Course) -> Iterator[Finding]:
    """Why a loss of 0 is no sign that nothing is learned."""
    losses, gradients = (values(course.rows, name, prefix="") for name in ("loss", "grad_norm"))
    if not losses or not gradients:
        return
    most = max(map(abs, losses))
    if most <= facts.NO_LOSS and fmean(gradients) > facts.LOSS_HAS_GRADIENT * most:
        text = (
            "The loss is 0 as it must be: where the ratio is 1 its value is the mean advantage, "
            "and the advantages of a group sum to 0. Its gradient is not 0 (mean norm "
            f"{fmean(gradients):.2g}); watch the reward, not the loss."
        )
        yield Finding("signal/loss", "note", text)


def _idle(course: Course, hopeless: bool) -> Iterator[Finding]:
    """Groups, or where these are not logged completions, without an advantage."""
    groups = values(course.rows, "frac_reward_zero_std", prefix="")
    idle = groups or values(course.rows, "completions/zero_advantage", prefix="")
    share, kind = fmean(idle) if idle else 0.0, "groups" if groups else "completions"
    if groups and share:
        text = (
            f"In {percent(share)} of groups ({percent(ends(groups)[1])} at the end) all rewards "
            "were equal, so that their tokens had no advantage."
        )
    elif groups:
        text = "In no group were all rewards equal."
    elif share:
        text = f"{percent(share)} of completions had advantage 0 on every token."
    else:
        return
    advice = (
        f"{percent(share)} of {kind} gave no advantage: "
        + ("look at completions and their rewards (samples.jsonl, trustclip report), then "
           if share == 1 and course.log is None else "")
        + "take problems of medium difficulty, or more completions per prompt."
    )  # fmt: skip
    wasted = share > facts.IDLE and not course.solved and not hopeless
    severity, advice = ("warning", advice) if wasted else ("note", "")
    yield Finding("signal/idle", severity, text, advice)


def _lengths(course: Course, hopeless: bool) -> Iterator[Finding]:
    cut, length = (
        values(course.rows, f"completions/{name}", prefix="")
        for name in ("clipped_ratio", "mean_length")
    )
    if cut:
        first, last = ends(cut)
        many = "Many" if max(first, last) > facts.TRUNCATED else "Few" if any(cut) else "No"
        spans = f"{percent(first)} at the start, {percent(last)} at the end"
        text = f"{many} completions were truncated: {spans}."
        growing = bool(length) and ends(length)[1] > facts.GROWN * ends(length)[0]
        advice = (
            f"{percent(last)} of completions were truncated at the end"
            f"{', and length is growing' if growing else ''}: raise the limit, or mask truncated "
            "completions."
        )
        often = last > facts.TRUNCATED and not hopeless
        severity, advice = ("warning", advice) if often else ("note", "")
        yield Finding("signal/truncated", severity, text, advice)
    if length:
        first, last = ends(length)
        course_of = (
            f"stayed at {last:.4g}" if first == last else f"went from {first:.4g} to {last:.4g}"
        )
        text = f"The mean length of completions {course_of} tokens."
        yield Finding("signal/length", "note", text)
