"""The drift of the updates: what they did whatever the reward, and which way that pulled."""

from collections.abc import Iterator

from trustclip.constraints.base import moves_candidates
from trustclip.findings.course import Course
from trustclip.findings.finding import Finding
from trustclip.findings.rows import mean, percent, values


def of_run(course: Course) -> Iterator[Finding]:
    """What the ledger says; nothing where no candidates were scored."""
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
    yield Finding("drift/ledger", "note", text, {"drift/share": share, "drift/pull": pull})
