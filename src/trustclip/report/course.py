"""The course of any run in sentences, from whatever its log holds: ours, TRL's, verl's, tokens.

`trustclip.report.explain` says more where a run has our own metrics; what a log cannot answer is
said in `unanswered`, not guessed.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from trustclip.report.change import Change, improved, moved
from trustclip.report.rows import ends, percent, values
from trustclip.runs.foreign.digest import Words
from trustclip.runs.foreign.log import Log
from trustclip.runs.jsonl import Row
from trustclip.runs.thresholds import (
    ABSOLUTE,
    FALLEN,
    GROWN,
    IDLE,
    LARGE,
    OFTEN,
    RISEN,
    SOLVED,
    TRUNCATED,
)

#: Mean log-ratio up to which a policy has not moved but for rounding, nats.
_ROUNDING = 1e-5
#: Losses of verl that log a clipped share of 0 whatever they do.
_SILENT = ("sapo",)

_QUADRANTS = {
    "gated/positive_above": "rewarded tokens that had become more likely",
    "gated/negative_below": "penalised tokens that had become less likely",
    "gated/negative_above": "penalised tokens that had become more likely (the dual clip)",
}


def subject(name: str, log: Log) -> str:
    """What was read."""
    size = f"{len(log.rows)} {steps_of(log)}{'s' * (len(log.rows) != 1)}"
    if log.digest:
        size += f", {log.digest.completions:,} completions, {log.digest.tokens:,} tokens"
    state = "" if log.finished else ", unfinished"
    return f"{name}: {log.trainer}, {log.kind}, {size}{state}."


def steps_of(log: Log) -> str:
    """What a row of the log is: verl and prime-rl log a row for all updates of a generation."""
    return "update" if log.trainer == "TRL" else "step"


def constraint(log: Log) -> str:
    """Whether the constraint acted."""
    rows, unit, schedule = log.rows, steps_of(log), log.schedule
    shares = {row["step"]: row["trustclip/gated"] for row in rows if "trustclip/gated" in row}
    moved = values(rows, "k1")
    once = schedule if schedule is not None and schedule.updates <= 1 else None
    still = not moved or max(map(abs, moved)) < _ROUNDING
    if once and still and not any(shares.values()):
        zero = f", and the clipped share was 0 in all {len(shares)} {unit}s" if shares else ""
        return (
            f"The constraint was inert: there was one update per generation ({once.basis}), "
            f"so every token had ratio 1, where no constraint on the ratio can act{zero}."
        )
    if not shares:
        capped = values(rows, "weight_capped", prefix="")
        if capped:
            return f"The constraint capped the weight of {percent(fmean(capped))} of tokens."
        return "Whether the constraint acted is not in this log: it has no share of clipped tokens."
    if not any(shares.values()):
        return _never(log, len(shares), still=bool(moved) and still)
    closed = [step for step, share in shares.items() if share > 0]
    top = max(shares, key=lambda step: shares[step])
    text = f"The constraint cut {percent(fmean(shares.values()))} of tokens."
    if len(shares) > 1:
        text += (
            f" It acted in {len(closed)} of {len(shares)} {unit}s, first in {unit} {closed[0]}; "
            f"the largest share was {percent(shares[top])}, in {unit} {top}."
        )
    if schedule is not None and schedule.updates > 1:
        text += (
            f" There were {schedule.updates:.3g} updates per generation ({schedule.basis}), of "
            "which the first is at ratio 1."
        )
    elif once:
        text += (
            f" With one update per generation ({once.basis}) the ratio is not of this update: "
            "the sampler, or old log-probabilities of another pass, differ."
        )
    return text


def _never(log: Log, count: int, *, still: bool) -> str:
    """A constraint that cut nothing: why, as far as the log says."""
    text = f"The constraint was inert: the share of clipped tokens was 0 in all {count} "
    text += f"{steps_of(log)}s"
    mode = log.settings.get("loss_mode")
    if mode in _SILENT:
        return (
            f"Whether the constraint acted is not in this log: verl's loss {mode} logs a clipped "
            "share of 0 whatever it does."
        )
    if still:
        return f"{text}, and the mean log-ratio was 0: every token had ratio 1."
    if log.schedule is not None:
        return (
            f"{text}, although there were {log.schedule.updates:.3g} updates per generation "
            f"({log.schedule.basis}): no ratio reached a bound."
        )
    return f"{text}. Whether every ratio was 1, or the bounds are wide, is not in this log."


def quadrants(rows: Sequence[Row]) -> Iterator[str]:
    """Which tokens were cut, where the log tells two kinds apart."""
    shares = {name: fmean(found) for name in _QUADRANTS if (found := values(rows, name))}
    total = sum(shares.values())
    if len(shares) > 1 and total > 0:
        ordered = sorted(shares, key=lambda name: -shares[name])
        parts = [f"{shares[n] / total:.0%} were {_QUADRANTS[n]}" for n in ordered if shares[n]]
        yield f"Of the tokens cut, {'; '.join(parts)}.".replace("%", " %")


def distance(log: Log) -> Iterator[str]:
    """How far the policy moved, where the log has a mean log-ratio or a KL to a reference."""
    moved = {row["step"]: row["trustclip/k1"] for row in log.rows if "trustclip/k1" in row}
    if moved:
        top = max(moved, key=lambda step: abs(moved[step]))
        yield (
            f"The policy moved by {fmean(moved.values()):.2g} nats per token (k1, the mean of "
            f"old minus new log-probability), most in {steps_of(log)} {top}: {moved[top]:.2g}."
        )
    reference = values(log.rows, "kl", prefix="")
    if reference:
        first, last = ends(reference)
        yield f"The KL divergence from the reference went from {first:.2g} to {last:.2g} nats."


def sampler(rows: Sequence[Row]) -> Iterator[str]:
    """Whether the sampler differs from the trainer."""
    k3, k1, absolute, largest = (
        values(rows, f"sampler/{name}") for name in ("k3", "k1", "abs", "abs_max")
    )
    if not (k3 or k1 or absolute):
        return
    parts = [f"{max(fmean(k3), 0.0):.2g} nats per token (k3)"] if k3 else []
    parts += [f"a mean absolute log-ratio of {fmean(absolute):.2g}"] if absolute else []
    parts += [f"{fmean(k1):.2g} nats per token (k1)"] if k1 and not k3 else []
    most = f", at most {max(largest):.2g} on a token" if largest else ""
    figure = max([*map(abs, k3 or k1), *absolute])
    if figure < _ROUNDING:
        yield f"The sampler is the trainer's policy but for rounding: {', '.join(parts)}{most}."
        return
    trend = k3 or absolute or k1
    first, last = ends(trend)
    grown = f"; it grew from {first:.2g} to {last:.2g}" if first > 0 and last > 2 * first else ""
    yield f"The sampler differs from the trainer by {', '.join(parts)}{most}{grown}."


def entropy(rows: Sequence[Row], words: Words | None = None) -> Iterator[str]:
    """Whether entropy falls or rises, and through which words."""
    change = Change.of_entropy(rows)
    if change is None:
        return
    text = change.sentence(moved=moved(rows))
    if words is not None and words.push:
        text += f" To first order, the kept tokens pushed it {'up' if words.push > 0 else 'down'}"
        named = words.entropy()
        text += f", most of all {listed(words, named)}." if named else "."
    yield text


def cut_words(words: Words) -> Iterator[str]:
    """Which words were cut most often."""
    for kind, named in (
        ("Most cuts", words.cut()),
        ("Of the cut tokens with A > 0, most", words.cut(positive=True)),
    ):
        if named:
            yield f"{kind} were of {listed(words, named)}."


def listed(words: Words, named: Sequence[tuple[str | int, float]]) -> str:
    """Words with their shares of something, beside those of all tokens."""
    parts = []
    for word, share in named:
        shown = repr(word) if isinstance(word, str) else f"token {word}"
        parts.append(f"{shown} ({percent(share)}; {percent(words.share(word))} of all tokens)")
    return ", ".join(parts)


def signal(rows: Sequence[Row]) -> Iterator[str]:
    """Reward, groups without a difference, truncation and length."""
    reward = values(rows, "reward", prefix="")
    if reward:
        first, last = ends(reward)
        yield (
            f"The mean reward went from {first:.3g} to {last:.3g}."
            if any(value != reward[0] for value in reward)
            else f"The mean reward was {first:.3g} in every update that logged it."
        )
    groups = values(rows, "frac_reward_zero_std", prefix="")
    if groups:
        yield (
            f"In {percent(fmean(groups))} of groups all rewards were equal, so their tokens had no "
            f"advantage (at the end {percent(ends(groups)[1])})."
            if any(groups)
            else "In no group were all rewards equal."
        )
    elif any(idle := values(rows, "completions/zero_advantage", prefix="")):
        yield f"{percent(fmean(idle))} of completions had advantage 0 on every token."
    cut, length = (
        values(rows, f"completions/{name}", prefix="") for name in ("clipped_ratio", "mean_length")
    )
    if broken := [share for share in values(rows, "nonfinite") if share]:
        yield f"Up to {percent(max(broken))} of tokens hold a number that is not finite."
    if cut:
        first, last = ends(cut)
        yield f"Truncated completions: {percent(first)} at the start, {percent(last)} at the end."
    if length:
        first, last = ends(length)
        course = (
            f"stayed at {last:.4g}" if first == last else f"went from {first:.4g} to {last:.4g}"
        )
        yield f"The mean length of completions {course} tokens."


def unanswered(log: Log) -> Iterator[str]:
    """What the log cannot answer."""
    if log.unknown:
        yield f"Not in this log: {'; '.join(log.unknown)}."


def advice(log: Log) -> list[str]:
    """What to try next, each with the figure that it rests on."""
    rows = log.rows
    found = [*_constraint_advice(log), *_sampler_advice(rows), *_signal_advice(rows)]
    if found:
        return found
    if any(values(rows, name) for name in _READ):
        return ["nothing unusual in what this log holds."]
    return [
        "log a share of clipped tokens, a ratio or a distance from the sampler: without one of "
        "them nothing can be said of the constraint, good or bad."
    ]


#: Metrics of ours without which a log says nothing of a constraint.
_READ = ("gated", "k1", "k3", "ratio_q99", "sampler/k3", "sampler/abs")


def _constraint_advice(log: Log) -> Iterator[str]:
    shares = values(log.rows, "gated")
    once = log.schedule is not None and log.schedule.updates <= 1
    if shares and not any(shares) and log.settings.get("loss_mode") not in _SILENT:
        ways = {
            "TRL": "num_iterations or steps_per_generation",
            "verl": "actor.ppo_epochs, or lower ppo_mini_batch_size",
        }
        why = f" ({log.schedule.basis})" if log.schedule else ""
        if once or log.schedule is None:
            way = ways.get(log.trainer, "the number of passes")
            yield (
                f"the clipped share was 0 throughout{why}, so the constraint explains nothing of "
                f"this run. For one that acts, raise {way}, so that each generation is used for "
                "two updates or more."
            )
        else:
            yield (
                f"the clipped share was 0 throughout{why}: the bounds are wider than what the "
                "policy moves; a constraint with a smaller threshold would act."
            )
    elif shares and fmean(shares) > OFTEN:
        yield (
            f"{percent(fmean(shares))} of tokens were cut, so the constraint limits every update: "
            "lower the learning rate, or take fewer updates per generation."
        )


def _sampler_advice(rows: Sequence[Row]) -> Iterator[str]:
    for name, limit in (("k3", LARGE), ("abs", ABSOLUTE)):
        found = values(rows, f"sampler/{name}")
        if found and fmean(found) > limit:
            yield (
                f"the sampler differs by {fmean(found):.2g} nats ({name}, limit {limit}): compare "
                "precisions and weights of the two engines, then correct for it (tis, icepop)."
            )
            return


def _signal_advice(rows: Sequence[Row]) -> Iterator[str]:
    reward, groups, cut, length = (
        values(rows, name, prefix="")
        for name in (
            *("reward", "frac_reward_zero_std"),
            *("completions/clipped_ratio", "completions/mean_length"),
        )
    )
    solved = bool(reward) and ends(reward)[1] > SOLVED
    change = Change.of_entropy(rows)
    if change is not None and change.clear and moved(rows) and change.first > 0:
        first, last = change.first, change.last
        if last < FALLEN * first and not (solved or improved(rows)):
            yield (
                f"entropy fell to {last / first:.0%} of its start".replace("%", " %")
                + ": a wider upper bound (clip_higher), a smaller learning rate, or an entropy "
                "bonus."
            )
        elif last > RISEN * first:
            yield (
                f"entropy rose to {last / first:.3g} times its start: look at the penalised tokens "
                "(A < 0), a lower bound on the ratio, and the sampler, before the learning rate."
            )
    idle = groups or values(rows, "completions/zero_advantage", prefix="")
    if idle and fmean(idle) > IDLE and not solved:
        yield (
            f"{percent(fmean(idle))} of {'groups' if groups else 'completions'} gave no advantage: "
            "problems of medium difficulty, or more completions per prompt."
        )
    if cut and ends(cut)[1] > TRUNCATED:
        grown = bool(length) and ends(length)[1] > GROWN * ends(length)[0]
        extra = ", and length is growing" if grown else ""
        yield (
            f"{percent(ends(cut)[1])} of completions were truncated at the end{extra}: a larger "
            "limit, or masking truncated completions."
        )
