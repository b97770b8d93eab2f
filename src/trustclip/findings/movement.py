"""How far the policy moved, from the one an update began with and from a reference; its drift."""

from collections.abc import Iterator
from statistics import fmean

from trustclip.constraints.base import moves_candidates
from trustclip.findings.course import Course
from trustclip.findings.facts import FEW_TOKENS
from trustclip.findings.finding import Finding
from trustclip.findings.rows import PREFIX, ends, mean, percent, values


def of_run(course: Course) -> Iterator[Finding]:
    """The distance that was logged; nothing where none was."""
    if course.full:
        yield _distance(course)
        yield from _unequal(course)
        return
    moves = {row["step"]: k1 for row in course.rows if (k1 := row.get(f"{PREFIX}k1")) is not None}
    if moves:
        top = max(moves, key=lambda step: abs(moves[step]))
        text = (
            f"{_subject(course)} {fmean(moves.values()):.2g} nats per token (k1, the mean of old "
            f"minus new log-probability), and by {moves[top]:.2g} at most, in {course.unit} {top}."
        )
        yield Finding("movement/k1", "note", text)
    if reference := values(course.rows, "kl", prefix=""):
        first, last = ends(reference)
        text = f"The KL divergence from the reference went from {first:.2g} to {last:.2g} nats."
        yield Finding("movement/reference", "note", text)


def _unequal(course: Course) -> Iterator[Finding]:
    """The update in which the fewest tokens carried the weight, if they were few."""
    sizes = {row["step"]: size for row in course.full if (size := row.get(f"{PREFIX}ess"))}
    few = {step: size for step, size in sizes.items() if size < FEW_TOKENS}
    if not few:
        return
    least = min(few, key=lambda step: few[step])
    text = (
        f"In {len(few)} of {len(sizes)} {course.unit}s few tokens carried most of the weight, "
        f"because the ratios were very unequal: in {course.unit} {least} all tokens counted like "
        f"{percent(few[least])} of their number (effective sample size)."
    )
    advice = "for more equal ratios, lower the learning rate or take fewer updates per generation."
    yield Finding("movement/unequal", "warning", text, advice)


def _distance(course: Course) -> Finding:
    rows = course.full
    low, high = (values(rows, f"ratio_q{q}") for q in ("01", "99"))
    k3, sizes = mean(rows, "k3"), values(rows, "ess")
    text = f"{_subject(course)} {k3:.2g} nats per token and update (k3, a KL estimate)"
    if low and high:
        text += f"; 98 % of ratios were between {fmean(low):.3g} and {fmean(high):.3g}"
    if sizes:
        text += f"; the effective sample size was at least {100 * min(sizes):.0f} % of the tokens"
    return Finding("movement/k3", "note", f"{text}.")


def _subject(course: Course) -> str:
    """Who moved from whom: a trainer of two policies measures its ratio from the sampler."""
    if course.log is not None and course.log.two_policies:
        return "The trainer differed from the sampler by"
    return "The policy moved by"


def drift(course: Course) -> Iterator[Finding]:
    """What the updates did whatever the reward; nothing where no candidates were scored."""
    rows = course.full
    if not values(rows, "drift/share"):
        return
    share, pull = mean(rows, "drift/share"), mean(rows, "drift/pull")
    centred = course.method is not None and moves_candidates(course.method)
    signs = [
        f"{mean(rows, f'drift/pull_{sign}'):+.2g} per unit of {sign} advantage"
        for sign in ("positive", "negative")
        if values(rows, f"drift/pull_{sign}")
    ]
    way = "towards" if pull > 0 else "away from"
    text = (
        f"{percent(share)} of the squared update was drift, which holds no reward"
        f"{'; centring removed it' if centred else ''}. The drift pulled {way} the sampler, by "
        f"{abs(pull):.2g} nats of KL(sampler‖policy) for a unit step"
        + (f" ({', '.join(signs)})." if signs else ".")
    )
    yield Finding("drift/ledger", "note", text)
