"""What the guards of a training report: each failure in words, from the figures that show it."""

from collections.abc import Iterator, Sequence

from trustclip.findings.course import Course
from trustclip.findings.facts import MAX_SKIPPED, PATIENCE, SKIP_WINDOW
from trustclip.findings.finding import Finding


def of_run(course: Course) -> Iterator[Finding]:
    """The warnings that a run has logged, oldest first."""
    for row in course.run.notices:
        evidence = {"step": row.get("step")}
        yield Finding(f"guard/{row.get('notice')}", "warning", str(row.get("text")), evidence)


def nonfinite_gradient() -> str:
    """An update that was skipped."""
    return (
        "the gradient of this update is not finite (NaN or infinite), so the update was "
        "skipped: weights and optimizer are unchanged. One such batch does no harm; more "
        f"than {MAX_SKIPPED:.0%} of {SKIP_WINDOW} updates end the run."
    )


def entropy_collapse(entropy: float, first: float, accuracy: float | None) -> str:
    """An entropy that has fallen to almost nothing."""
    right = "" if accuracy is None else f", with {accuracy:.0%} of answers right"
    return (
        f"the entropy fell to {entropy:.3g} nats per token, {entropy / first:.0%} of the "
        f"{first:.3g} it began with{right}: the policy has almost stopped exploring. Lower "
        "learning_rate, let rare tokens rise further (a method with a wider upper bound, such "
        "as clip_higher or atr), or stop at an earlier checkpoint."
    )


def constant_reward(reward: float | None) -> str:
    """Generations whose groups taught nothing."""
    level = "" if reward is None else f" (mean reward {reward:.3g})"
    return (
        f"in the last {PATIENCE['constant_reward']} generations every answer to a "
        f"problem got the same reward{level}: advantages are zero and there is nothing to "
        "learn. Use problems that are solved sometimes but not always, raise num_generations, "
        "or check the answer format with the completions in samples.jsonl."
    )


def truncated(share: float) -> str:
    """Completions that lack an end."""
    return (
        f"{share:.0%} of completions lack an end token, as those cut off at the length limit "
        "do: a truncated answer cannot be right. Raise max_completion_length, or teach the "
        "model the format and its end first (sft)."
    )


def gate_closed(share: float) -> str:
    """A gate that stops the training."""
    return (
        f"the gate is closed on {share:.0%} of tokens in updates where it closes at all: "
        "the constraint stops training more than it steers it. Lower learning_rate, take fewer "
        "updates per generation (num_iterations, steps_per_generation), or widen its threshold."
    )


def spike(what: str, value: float, before: Sequence[float]) -> str:
    """A jump of the loss or of the gradient."""
    largest = max(before)
    return (
        f"{what} jumped to {value:.3g}, {abs(value) / largest:.0f} times the largest of the "
        f"{len(before)} rows before ({largest:.3g}). One jump may pass; if reward or entropy "
        "then fall, go back to the checkpoint before it and lower learning_rate or "
        "max_grad_norm."
    )


def mismatch_drift(factor: float, generations: int, last: float) -> str:
    """A sampler that drifts away."""
    return (
        f"the sampler drifts away from the trainer: sampler/k3 rose {factor:.1f} times "
        f"over the last {generations} generations, to {last:.2g} nats per token. If it rose "
        "from 0, the sampler's weights are not updated (LoRA not synchronised); if it grows with "
        "the length of the completions, compare precision and kernels (trustclip doctor "
        "--sampler). Correct for it (tis, icepop, anchor 'rollout') or lower learning_rate."
    )


def mismatch_jump(times: float, generations: int, last: float) -> str:
    """A sampler that left at once."""
    return (
        f"the sampler left the trainer at once: sampler/k3 is {times:.0f} times its median of the "
        f"{generations} generations before ({last:.2g} nats per token), twice in a row. "
        "Look for what changed there: a weight transfer that failed, a restarted or updated "
        "engine, another prompt length; gates.jsonl has the worst tokens (column `worst`)."
    )


def weight_sync(last: float, times: float, generations: int) -> str:
    """A sampler that has not got all of the new weights."""
    return (
        "the sampler left the policy although it had just got its weights: sampler/abs of fresh "
        f"samples is {last:.2g} nats per token, {times:.0f} times as much as in any generation "
        f"before ({generations}). Some weights were not sent or are not used (tied or packed "
        "layers, adapters, an engine that restarted). Samples are not the policy's own until that "
        "is found: correct for it (tis, icepop), and compare with trustclip doctor --sampler."
    )


def ess_fall(last: float, factor: float, generations: int) -> str:
    """An effective sample size that falls."""
    return (
        "the effective sample size of whole completions against the sampler fell to "
        f"{last:.0%}, {factor:.0%} of where it was {generations} generations ago: few "
        "completions carry each update, and collapses have been seen to follow. Lower "
        "learning_rate or the policy lag, take fewer updates per generation, or mask sequences "
        "that are far off (icepop with level 'sequence', opsm, trm)."
    )


def entropy_rise(factor: float, generations: int, last: float) -> str:
    """An entropy that grows without end."""
    return (
        f"the entropy rises: {factor:.1f} times as high as {generations} generations ago, "
        f"{last:.2g} nats per token. Completions turn random, often just before the reward "
        "falls. Lower learning_rate, an entropy bonus or the upper bound of the constraint "
        "(entropy_slope/kept and gated/negative_* show which tokens drive it), and check the "
        "sampler (sampler/k3)."
    )
