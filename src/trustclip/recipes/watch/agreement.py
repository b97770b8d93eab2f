r"""Sampler against trainer on the first completions: do they agree, and if not, why?

The differences $d_t$ of the two log-probabilities of each token carry the mark of their cause. A
sampler at another temperature has, to first order, $d_t$ in proportion to
$\log\pi(y_t) + H_t$: the score of the temperature. One that samples from a renormalised part of the
vocabulary finds every token a little likelier, by at most the share that it left out; one whose
vocabulary has rows that the trainer's lacks, less likely. Another precision is noise on both
sides, in proportion to what $1-\pi(y_t)$ leaves it to move; a mixture of experts that routes a
token elsewhere makes a sparse tail on top of it; another prompt makes the text surprising, most at
its beginning. Whatever the cause, $E[e^{d_t}] = 1$ on samples of the whole vocabulary: a mean
below 1 is what a truncated sampler left out, also where half precision hides it.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from trustclip.constraints.sampler import Pairs
from trustclip.recipes.watch.marks import (
    EARLY,
    EXACT,
    FEWEST,
    HALF,
    ONE_SIDED,
    PRECISION,
    Cause,
    Marks,
    cause_of,
    likely,
    marks_of,
)
from trustclip.runs.directory import RunDirectory


@dataclass(frozen=True)
class Verdict:
    """What the comparison found.

    Args:
      cause: the likeliest one; ``"none"`` if the two agree.
      text: the numbers, the cause, and what to set.
      harmless: whether training can go on as it is.
      title: the verdict in a few words.
    """

    cause: Cause
    text: str
    harmless: bool
    title: str


def compare(pairs: Pairs) -> Verdict:
    """Compare trainer and sampler on the same tokens, and name the likeliest cause.

    Without entropies, neither a temperature nor another prompt is told from other causes.

    Args:
      pairs: finite log-probabilities; at least `FEWEST` tokens.

    Raises:
      ValueError: too few tokens.

    Example:
      >>> import torch
      >>> logp = -torch.linspace(0, 3, 1000)
      >>> compare(Pairs(logp, logp + 0.005 * torch.linspace(0, 99, 1000).sin())).cause
      'precision'
      >>> compare(Pairs(logp, logp - torch.linspace(0, math.log(0.9), 1000))).cause
      'truncation'
    """
    if len(pairs.trainer) < FEWEST:
        raise ValueError(
            f"a comparison needs at least {FEWEST} tokens, got {len(pairs.trainer)}: raise the "
            "number of completions, or their length."
        )
    marks = marks_of(pairs)
    cause = cause_of(marks)
    slight = marks.mean <= _SLIGHT.get(cause, -1.0)
    sharper = slight and likely(marks)
    parts = [_numbers(marks), _WHY[cause](marks, pairs), _SHARPER if sharper else ""]
    title = _DRAWN if sharper else _TITLES[cause]
    return Verdict(cause, " ".join(filter(None, parts)), slight and not sharper, title)


def _numbers(marks: Marks) -> str:
    if marks.largest == 0:
        return f"Sampler and trainer agree to the bit on all {marks.tokens:,} tokens."
    return (
        f"On {marks.tokens:,} tokens, sampler and trainer differ by {marks.mean:.2g} nats on "
        f"average and by {marks.largest:.2g} at most; {marks.identical:.0%} are equal to the bit."
    )


def _temperature(marks: Marks, pairs: Pairs) -> str:
    size = f"about {1 / max(1 - marks.slope, 0.1):.2g} times"
    if marks.explained < EXACT:
        size = "well below" if marks.slope < 0 else "well above"
    return (
        "The differences are those of a temperature: the sampler's log-probabilities belong to one "
        f"{size} the trainer's. Either the sampler "
        "returns them before it divides by the temperature (vLLM: set logprobs_mode to "
        "'processed_logprobs'), or the two have different temperatures: set the trainer's to that "
        "of sampling."
    )


def _precision(marks: Marks, pairs: Pairs) -> str:
    if marks.mean <= HALF:
        text = (
            "It is noise on both sides, of the size that half precision makes (bfloat16 or float16 "
            f"in the sampler, the trainer or both: 0.005 to {HALF:g} nats are usual; other kernels "
            "alone make less)."
        )
    else:
        text = (
            f"It is noise on both sides, more than half precision usually makes (up to {HALF:g} "
            "nats): quantised weights (8 bits make about 0.06), or weights some updates old."
        )
    return (
        f"{text} Training can go on. Weights that were not sent look alike at first: sampler/abs "
        "then rises with every update. Watch it and sampler/sequence_ess, and correct for it (tis, "
        "icepop, or anchor 'rollout') if they drift."
    )


def _tail(marks: Marks, pairs: Pairs) -> str:
    return (
        f"It is not noise on all tokens alike: {100 * marks.tail:.2g} % of the tokens, by "
        f"{marks.tail_mean:.2g} nats on average, have {100 * marks.tail_weight:.0f} % of the "
        "squared differences. A mixture of experts does this where sampler and trainer route a "
        "token to other experts: replay the sampler's routing if the engine can, or mask these "
        "tokens (icepop), and watch sampler/sequence_ess. In a dense model no precision does: then "
        "the sampler's weights are some updates old, or single tokens are wrong (gates.jsonl, "
        "column `worst`)."
    )


def _truncation(marks: Marks, pairs: Pairs) -> str:
    cut = "samples from a part of the vocabulary"
    if marks.up <= ONE_SIDED * marks.down:
        nucleus = math.exp(marks.lowest)
        text = (
            f"The sampler finds every token likelier, never less likely: it {cut} "
            f"(top_p of about {nucleus:.2g}, or top_k or min_p)"
        )
    else:
        text = (
            f"The tokens are likelier to the sampler, by more than noise on both sides explains: "
            f"the ratios trainer / sampler have the mean {1 - marks.left_out:.3g} in place of 1. "
            f"It {cut} (top_p, top_k or min_p)"
        )
    return (
        f"{text} and the trainer does not "
        "know. Sample with top_p=1, top_k=0 (-1 in vLLM) and min_p=0. If the sampler truncates "
        "nothing, the trainer's output head has rows of padding that the sampler's lacks."
    )


def _outliers(marks: Marks, pairs: Pairs) -> str:
    far = (pairs.trainer - pairs.sampler).abs() > max(10 * marks.median, marks.largest / 10)
    text = (
        f"They agree but on {int(far.sum())} tokens, which have {marks.top:.0%} of the difference: "
        "usually tokens that were decoded and tokenised again, special tokens, or a vocabulary of "
        "another size. Send token ids, not text, from the sampler to the trainer."
    )
    if pairs.token is not None:
        common = Counter(pairs.token[far].tolist()).most_common(3)
        text += " Most often token " + ", ".join(f"{token} ({n} times)" for token, n in common)
        text += "."
    return text


def _weights(marks: Marks, pairs: Pairs) -> str:
    text = (
        "That is more than half precision makes, on both sides: the sampler has other weights "
        "(LoRA adapters not merged or not synchronised, an older checkpoint, a coarse "
        "quantisation), or reads another prompt (chat template, BOS token)."
    )
    if pairs.position is not None:
        size, early = (pairs.trainer - pairs.sampler).abs(), pairs.position < EARLY
        if early.any() and not early.all() and size[early].mean() > 1.5 * size[~early].mean():
            text += (
                f" It is {size[early].mean() / size[~early].mean():.1f} times as large on the "
                f"first {EARLY} tokens of a completion, which points to the prompt."
            )
    return text


def _fixed(text: str) -> "Callable[[Marks, Pairs], str]":
    return lambda marks, pairs: text


_WHY: dict[Cause, Callable[[Marks, Pairs], str]] = {
    "none": _fixed(""),
    "precision": _precision,
    "tail": _tail,
    "temperature": _temperature,
    "truncation": _truncation,
    "padding": _fixed(
        "The sampler finds the tokens less likely than the trainer: its vocabulary has rows that "
        "the trainer's lacks (padding of the output head, added tokens). Give both the same "
        "vocabulary size, or let the sampler mask the padding."
    ),
    "outliers": _outliers,
    "context": _fixed(
        "The trainer finds the text itself improbable: the sampler has read another prompt "
        "(chat template, system message, BOS token), or is another model. Compare the token ids of "
        "one prompt in both."
    ),
    "weights": _weights,
}

_TITLES: dict[Cause, str] = {
    "none": "sampler and trainer agree",
    "precision": "noise of half precision, quantisation or other kernels",
    "tail": "a few tokens differ by far more than the others",
    "temperature": "another temperature",
    "truncation": "the sampler truncates its distribution (top-p, top-k or min-p)",
    "padding": "the sampler has a larger vocabulary",
    "outliers": "single tokens that are not the same token",
    "context": "another prompt, or another model",
    "weights": "other weights, or another prompt",
}
_DRAWN = "drawn from a sharper distribution than reported"
#: Causes with which training can go on, up to this mean difference: weights a few updates old have
#: a tail as routing has, on top of more than half precision makes.
_SLIGHT: dict[Cause, float] = {"none": PRECISION, "precision": PRECISION, "tail": HALF}

_SHARPER = (
    "But the tokens are likelier than the trainer's entropy says: they were drawn at a lower "
    "temperature or from a truncated distribution, and the reported log-probabilities do not show "
    "it. Check temperature, top_p and top_k of the sampler."
)


class FirstCompletions(TrainerCallback):
    """Compares sampler and trainer before the first update of a run, and records the verdict.

    A row of ``metrics.jsonl`` with ``"stage": "sampler"`` holds it; one that is not harmless is a
    notice as well, and is printed. A resumed run whose rows hold a verdict is not compared again.

    Args:
      run: the run directory.
      console: gets a verdict that is not harmless.
      trainer: one that records; see `trustclip.engines.trl.recording.records.Recorded`.
    """

    def __init__(self, run: RunDirectory, console: Console, trainer: Any) -> None:
        self._run, self._console, self._trainer = run, console, trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen, unless the rows that this training goes on from hold a verdict."""
        if self._run.leads and not any(row.get("stage") == "sampler" for row in self._run.logged()):
            self._trainer.mismatch.listener = self

    def __call__(self, pairs: Pairs) -> None:
        """Compare the tokens of the first update, if there are enough of them."""
        if len(pairs.trainer) < FEWEST:
            return
        verdict = compare(pairs)
        row = {"cause": verdict.cause, "harmless": verdict.harmless, "text": verdict.text}
        self._run.log({"stage": "sampler", "step": 0, **row})
        if not verdict.harmless:
            self._run.notice(0, "sampler_mismatch", verdict.text)
            self._console.print(f"sampler: {verdict.text}", highlight=False, markup=False)
