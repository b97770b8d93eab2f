r"""Sampler against trainer on the first completions: do they agree, if not why, and at what cost?

The differences $d_t$ of the two log-probabilities of each token carry the trace of their cause. A
sampler at another temperature has, to first order, $d_t$ in proportion to
$\log\pi(y_t) + H_t$: the score of the temperature. One that samples from a renormalised part of the
vocabulary finds every token a little likelier, by at most the share that it left out; one whose
vocabulary has rows that the trainer's lacks, less likely. Another precision is noise on both
sides, in proportion to what $1-\pi(y_t)$ leaves it to move; a mixture of experts that routes a
token elsewhere makes a sparse tail on top of it; another prompt makes the text surprising, most at
its beginning. Whatever the cause, $E[e^{d_t}] = 1$ on samples of the whole vocabulary: a mean
below 1 is what a truncated sampler left out, also where half precision hides it.

Size alone says little: it is judged against the trainer's own noise on the same tokens
(`trustclip.engines.trl.scoring.floor`) where that was measured.
"""

import math
from collections import Counter
from collections.abc import Callable

from trustclip.constraints.base import Method
from trustclip.constraints.noise import capped_weight, cut_by_noise, effective_share, variance
from trustclip.constraints.sampler import Pairs
from trustclip.findings import facts
from trustclip.findings.finding import Finding
from trustclip.findings.mismatch.traces import Growth, Traces, cause_of, likely
from trustclip.findings.rows import percent


def compare(pairs: Pairs) -> Finding:
    """Compare trainer and sampler on the same tokens, and name the likeliest cause.

    The finding's name is the cause, a key of `TITLES`. It is a warning unless training can go on
    unchanged.

    Without entropies, a temperature or another prompt cannot be distinguished from other causes.

    Raises:
      ValueError: fewer than `FEWEST_TOKENS` tokens.

    Example:
      >>> import torch
      >>> logp = -torch.linspace(0, 3, 1000)
      >>> compare(Pairs(logp, logp + 0.005 * torch.linspace(0, 99, 1000).sin())).kind
      'sampler/precision'
      >>> compare(Pairs(logp, logp - torch.linspace(0, math.log(0.9), 1000))).kind
      'sampler/truncation'
    """
    if len(pairs.trainer) < facts.FEWEST_TOKENS:
        raise ValueError(
            f"a comparison needs at least {facts.FEWEST_TOKENS} tokens, got {len(pairs.trainer)}: "
            "raise the number of completions, or their length."
        )
    traces = Traces(pairs)
    cause = cause_of(traces)
    # The largest mean with which training can go on. Weights a few updates old have a tail as
    # routing has, on top of more than half precision makes.
    limit = {"none": traces.other, "precision": traces.other, "tail": traces.half}.get(cause, -1.0)
    slight = traces.mean <= limit
    sharper = slight and likely(traces)
    parts = [_numbers(traces), _floor(traces), _WHY[cause](traces, pairs)]
    name = cause
    if sharper:
        parts, name = [*parts, _SHARPER], "sharper"
    elif cause == "precision" and traces.between:
        name = "finer"
    return Finding(
        f"sampler/{name}",
        "ok" if slight and not sharper else "warning",
        " ".join(filter(None, parts)),
    )


def _numbers(traces: Traces) -> str:
    if traces.largest == 0:
        return f"Sampler and trainer agree to the bit on all {traces.tokens:,} tokens."
    return (
        f"On {traces.tokens:,} tokens, sampler and trainer differ by {traces.mean:.2g} nats on "
        f"average and by {traces.largest:.2g} at most; {traces.identical:.0%} are equal to the bit."
    )


def _floor(traces: Traces) -> str:
    """How much the trainer differs from itself."""
    floor = traces.floor
    if floor is None or traces.mean <= facts.KERNELS:
        return ""
    return (
        f"The trainer differs from itself by {floor.kernels:.2g} nats where only the batch or the "
        f"order of sums is another, and by {floor.half:.2g} between float32 and bfloat16."
    )


def _temperature(traces: Traces, pairs: Pairs) -> str:
    size = f"about {1 / max(1 - traces.slope, 0.1):.2g} times"
    if traces.explained < facts.EXACT:
        size = "well below" if traces.slope < 0 else "well above"
    return (
        "The differences are those of a temperature: the sampler's log-probabilities belong to one "
        f"{size} the trainer's. Either the sampler "
        "returns them before it divides by the temperature (vLLM: set logprobs_mode to "
        "'processed_logprobs'), or the two have different temperatures: set the trainer's to that "
        "of sampling."
    )


def _size(traces: Traces) -> str:
    """Noise on both sides: possible causes of its size."""
    floor, half = traces.floor, f"{facts.HALF_PRECISION:g}"
    if traces.between and floor is not None:
        eighth = facts.FINER * floor.half
        finer = eighth / facts.FINER_FACTOR < traces.mean < eighth * facts.FINER_FACTOR
        text = "The difference is noise on both sides, more than other kernels make and less than "
        one = "float16 or TF32, or " if finer else ""
        return f"{text}bfloat16. Its cause may be {one}weights that are an update or two old."
    if traces.mean > traces.half:
        most = f"up to {half} nats" if floor is None else "that of this model"
        times = "" if floor is None else f", {traces.mean / floor.half:.1f} times as much here"
        return (
            "The difference is noise on both sides, more than half precision usually makes "
            f"({most}{times}). Weights are quantised (8 bits make about twice as much as bfloat16) "
            "or some updates old."
        )
    text = "The difference is noise of both signs, as half precision makes (bfloat16 or float16 "
    if floor is None:
        return (
            f"{text}in the sampler, the trainer or both: 0.005 to {half} nats are usual; other "
            "kernels alone make less)."
        )
    return f"{text}in the sampler, the trainer or both)."


def _growth(growth: Growth | None) -> str:
    assert growth is not None
    return f"{growth.last:.2g} nats against {growth.first:.2g}, {growth.times:.1f} times as much"


def _prompt(traces: Traces, pairs: Pairs) -> str:
    where = (
        f"The first {facts.EARLY} tokens of a completion differ most, "
        f"{traces.early.times:.1f} times as much as the others:"
        if traces.early is not None and traces.early.times > 1.5
        else "The trainer finds the text itself improbable:"
    )
    return (
        f"{where} the sampler has read another prompt (chat template, system message, BOS token), "
        "or is another model. Compare the token ids of one prompt in both."
    )


def _truncation(traces: Traces, pairs: Pairs) -> str:
    cut = "samples from a part of the vocabulary"
    if traces.up <= facts.ONE_SIDED * traces.down:
        nucleus = math.exp(traces.lowest)
        text = (
            f"The sampler finds every token likelier than the trainer does. So it {cut} "
            f"(top_p of about {nucleus:.2g}, or top_k or min_p)"
        )
    else:
        text = (
            f"The sampler finds the tokens likelier, by more than noise on both sides explains: "
            f"the ratios trainer / sampler have the mean {1 - traces.left_out:.3g} instead of 1. "
            f"So it {cut} (top_p, top_k or min_p)"
        )
    return (
        f"{text}, and the trainer computes over all of it. Sample with top_p=1, top_k=0 (-1 in "
        "vLLM) and min_p=0. If the sampler truncates nothing, the trainer's output layer has rows "
        "of padding that the sampler's lacks."
    )


def _outliers(traces: Traces, pairs: Pairs) -> str:
    far = (pairs.trainer - pairs.sampler).abs() > max(10 * traces.median, traces.largest / 10)
    text = (
        f"Sampler and trainer agree except on {int(far.sum())} tokens, which have {traces.top:.0%} "
        "of the difference. Usually these were decoded and tokenised again, or are special tokens, "
        "or the vocabulary has another size. Send token ids, not text, to the trainer."
    )
    if pairs.token is not None:
        common = Counter(pairs.token[far].tolist()).most_common(3)
        each = ", ".join(f"{token} ({n} times)" for token, n in common)
        text += f" Most of them are token {each}."
    return text


def _weights(traces: Traces, pairs: Pairs) -> str:
    times = "" if traces.floor is None else f" ({traces.mean / traces.floor.half:.1f} times here)"
    text = (
        f"The difference is larger than half precision makes{times}, on both sides: the sampler "
        "has other weights (LoRA adapters not merged or not synchronised, an older checkpoint, a "
        "coarse quantisation), or reads another prompt (chat template, BOS token)."
    )
    if traces.early is not None and traces.early.times > 1.5:
        text += (
            f" The prompt is likelier: the first {facts.EARLY} tokens of a completion differ "
            f"{traces.early.times:.1f} times as much."
        )
    return text


#: What is said of each cause.
_WHY: dict[str, Callable[[Traces, Pairs], str]] = {
    "none": lambda *_: "",
    "precision": lambda t, _: (
        f"{_size(t)} Training can go on. Weights that were not sent look alike at first, but "
        "sampler/abs then rises with every update. Watch it and sampler/sequence_ess; if they get "
        "worse, correct for the sampler (tis, icepop, or anchor 'rollout')."
    ),
    "tail": lambda t, _: (
        f"A few tokens differ far more than the others: {100 * t.tail:.2g} % of them, by "
        f"{t.tail_mean:.2g} nats on average, have {100 * t.tail_weight:.0f} % of the "
        "squared differences. In a mixture of experts, sampler and trainer then sent a token to "
        "other experts: replay the sampler's routing if the engine can, or mask these tokens "
        "(icepop), and watch sampler/sequence_ess. In a dense model precision is not the cause: "
        "the sampler's weights are some updates old, or single tokens are wrong (gates.jsonl, "
        "column `worst`)."
    ),
    "temperature": _temperature,
    "truncation": _truncation,
    "padding": lambda *_: (
        "The sampler finds the tokens less likely than the trainer: its vocabulary has rows that "
        "the trainer's lacks (padding of the output head, added tokens). Give both the same "
        "vocabulary size, or let the sampler mask the padding."
    ),
    "outliers": _outliers,
    "prompt": _prompt,
    "depth": lambda t, _: (
        "The difference grows along a completion: in the last quarter of the places it is, over "
        f"1 - p, {_growth(t.depth)} as in the first. Precision is not the cause: the engines "
        "read another context. Suspect the sampler's cache of keys and values (precision, "
        "eviction, prefix sharing), positions (RoPE scaling, padding), or a sliding window that "
        "only one of them has."
    ),
    "stale": lambda t, _: (
        "The difference grows with the age of a sample: on tokens from older weights it is, over "
        f"1 - p, {_growth(t.stale)} as on the freshest. The engines agree, but the samples "
        "are stale. A smaller lag (max_staleness, fewer generations in flight) removes the cause; "
        "a correction (tis, icepop, or anchor 'rollout') compensates for it."
    ),
    "weights": _weights,
}

#: What is found, in a few words, by the name of the finding.
TITLES = {
    "none": "sampler and trainer agree",
    "precision": "noise of half precision, quantisation or other kernels",
    "tail": "a few tokens differ by far more than the others",
    "temperature": "another temperature",
    "truncation": "the sampler truncates its distribution (top-p, top-k or min-p)",
    "padding": "the sampler has a larger vocabulary",
    "outliers": "single tokens that are not the same token",
    "prompt": "another prompt, or another model",
    "depth": "a difference that grows with the context: cache or positions",
    "stale": "samples of older weights",
    "weights": "other weights, or another prompt",
    "finer": "noise below that of bfloat16: a finer precision, or slightly older weights",
    "sharper": "drawn from a sharper distribution than reported",
}

_SHARPER = (
    "But the tokens are likelier than the trainer's entropy says: they were drawn at a lower "
    "temperature or from a truncated distribution, and the reported log-probabilities do not show "
    "it. Check temperature, top_p and top_k of the sampler."
)

#: The usual cap of a weight of whole completions.
CAP = 2.0
#: Names of findings whose differences are noise, which adds up over a completion.
ADDS_UP = ("none", "precision", "finer", "sharper", "tail", "stale", "weights")


def damage(pairs: Pairs, length: int) -> str:
    """What weights of whole completions lose at a length of completions, in tokens.

    The differences are shifted so that their ratios have the mean 1, as those of samples of the
    whole vocabulary must: over a long completion the error of a mean would be larger than they are.
    """
    d = pairs.trainer.double().cpu() - pairs.sampler.double().cpu()
    d = d - d.clamp(max=10.0).exp().mean().log()
    v = variance(d)
    return (
        f"At {length:,} tokens, completions with a weight for the whole completion count like "
        f"{percent(effective_share(v, length))} of their number (effective sample size), and their "
        f"weights, capped at {CAP:g}, have the mean {capped_weight(v, length, CAP):.2g} instead of "
        "1."
    )


def too_tight(method: Method, pairs: Pairs, length: int) -> Finding | None:
    """A warning where the trainer's own noise closes a gate; None where it does not."""
    noise = (pairs.floor or {}).get("batch")
    if noise is None or method.requires:
        return None
    noise = noise[noise.isfinite()]
    share = cut_by_noise(method, noise, length) if len(noise) else 0.0
    if share <= facts.CUT_BY_NOISE:
        return None
    text = (
        f"The threshold of {method.name} lies inside the noise: on equal weights, two passes of "
        f"the trainer in other batches differ by {noise.abs().mean().item():.2g} nats per token. "
        f"At {length:,} tokens this noise alone makes the gate cut {percent(share)} of tokens. "
        "Widen the threshold, or score in float32."
    )
    return Finding("gate/bound_in_noise", "warning", text)
