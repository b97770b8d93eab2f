r"""Sampler against trainer on the first completions: do they agree, and if not, why?

The differences $d_t$ of the two log-probabilities of each token carry the mark of their cause. A
sampler at another temperature has, to first order, $d_t$ in proportion to
$\log\pi(y_t) + H_t$: the score of the temperature. One that samples from a renormalised part of the
vocabulary finds every token a little likelier, by at most the share that it left out; one whose
vocabulary has rows that the trainer's lacks, less likely. Another precision is noise on both
sides; another prompt makes the text surprising, most at its beginning.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console

from trustclip.constraints.sampler import Pairs
from trustclip.runs.directory import RunDirectory
from trustclip.runs.jsonl import read_jsonl

Cause = Literal[
    "none", "precision", "temperature", "truncation", "padding", "outliers", "context", "weights"
]

#: Fewer tokens than this carry no mark.
FEWEST = 50
#: Differences that float32 makes: mean and largest, nats.
ROUNDING, ROUNDING_MOST = 1e-4, 1e-2
#: Largest mean difference that half precision and other kernels make, nats: measured engines are
#: between 0.005 and 0.02.
PRECISION = 0.03
#: Share of the variance of the differences that a temperature explains to first order; the same
#: where a difference exceeds `FAR` nats; and from which on its size is stated.
EXPLAINED, EXPLAINED_FAR, EXACT = 0.8, 0.4, 0.9
#: No truncated distribution leaves out so much of itself, nats.
FAR = 2.0
#: Least sum of one side's differences over that of the other, for two sides.
ONE_SIDED = 0.1
#: Outliers: the largest 2 % have this share of all differences, and the median is below that, nats.
OUTLIERS, OUTLIERS_MEDIAN = 0.9, 0.01
#: Tokens at the beginning of a completion, on which another prompt shows most.
EARLY = 3
#: Standard errors and nats by which tokens are likelier, or less likely, than their entropy says.
SURPRISE, SURPRISE_MEAN = 5.0, 0.03


@dataclass(frozen=True)
class Verdict:
    """What the comparison found.

    Args:
      cause: the likeliest one; ``"none"`` if the two agree.
      text: the numbers, the cause, and what to set.
      harmless: whether training can go on as it is.
    """

    cause: Cause
    text: str
    harmless: bool

    @property
    def title(self) -> str:
        """The verdict in a few words."""
        return _TITLES[self.cause] if self.harmless or self.cause in _SERIOUS else _DRAWN


@dataclass(frozen=True)
class _Marks:
    """Numbers of the differences d = log p(trainer) - log p(sampler), nats."""

    tokens: int
    mean: float  # of |d|
    median: float  # of |d|
    largest: float  # |d|
    lowest: float  # d
    identical: float  # share with d = 0
    up: float  # sum of the positive d
    down: float  # and of the negative ones, without their sign
    top: float  # share of the sum of |d| on the largest 2 %
    explained: float  # R² of d on log p + H
    slope: float  # of the same
    surprise: float  # mean of log p + H: 0 for tokens that the trainer's policy drew
    surprise_z: float


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
    marks = _marks(pairs)
    cause = _cause(marks)
    slight = cause not in _SERIOUS
    sharper = slight and _likely(marks)
    parts = [_numbers(marks), _WHY[cause](marks, pairs), _SHARPER if sharper else ""]
    return Verdict(cause, " ".join(filter(None, parts)), slight and not sharper)


def _marks(pairs: Pairs) -> _Marks:
    a, d = pairs.trainer.double(), pairs.trainer.double() - pairs.sampler.double()
    size = d.abs()
    most = size.sort(descending=True).values[: max(len(d) // 50, 1)].sum() / size.sum()
    explained = slope = surprise = error = 0.0
    if pairs.entropy is not None:
        score = a + pairs.entropy.double()
        surprise, error = score.mean().item(), (score.std() / len(score) ** 0.5).item()
        varied, moved = score - score.mean(), d - d.mean()
        both = (varied * moved).sum().item()
        if varied.any() and moved.any():
            slope = both / varied.square().sum().item()
            explained = slope * both / moved.square().sum().item()  # R²
    return _Marks(
        tokens=len(d),
        mean=size.mean().item(),
        median=size.median().item(),
        largest=size.max().item(),
        lowest=d.min().item(),
        identical=(d == 0).double().mean().item(),
        up=d.clamp(min=0).sum().item(),
        down=(-d).clamp(min=0).sum().item(),
        top=most.nan_to_num().item(),
        explained=explained,
        slope=slope,
        surprise=surprise,
        surprise_z=surprise / max(error, 1e-30),
    )


def _cause(marks: _Marks) -> Cause:
    if marks.mean <= ROUNDING and marks.largest <= ROUNDING_MOST:
        return "none"
    if marks.top >= OUTLIERS and marks.median <= OUTLIERS_MEDIAN:
        return "outliers"
    if _scaled(marks):
        return "temperature"
    if marks.up <= ONE_SIDED * marks.down:
        # What a truncated sampler draws is likelier than the entropy says, not less likely.
        return "context" if _unlikely(marks) else "truncation"
    if marks.down <= ONE_SIDED * marks.up:
        return "padding"
    return "precision" if marks.mean <= PRECISION else "weights"


def _scaled(marks: _Marks) -> bool:
    one_sided = min(marks.up, marks.down) <= ONE_SIDED * max(marks.up, marks.down)
    if marks.explained >= EXPLAINED and not one_sided:
        return True
    # Far from the trainer's temperature the effect is neither linear nor on both sides.
    return marks.largest > FAR and marks.explained >= EXPLAINED_FAR and not _unlikely(marks)


def _likely(marks: _Marks) -> bool:
    return marks.surprise_z > SURPRISE and marks.surprise > SURPRISE_MEAN


def _unlikely(marks: _Marks) -> bool:
    return marks.surprise_z < -SURPRISE and marks.surprise < -SURPRISE_MEAN


def _numbers(marks: _Marks) -> str:
    if marks.largest == 0:
        return f"Sampler and trainer agree to the bit on all {marks.tokens:,} tokens."
    return (
        f"On {marks.tokens:,} tokens, sampler and trainer differ by {marks.mean:.2g} nats on "
        f"average and by {marks.largest:.2g} at most; {marks.identical:.0%} are equal to the bit."
    )


def _temperature(marks: _Marks, pairs: Pairs) -> str:
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


def _truncation(marks: _Marks, pairs: Pairs) -> str:
    nucleus = math.exp(marks.lowest)
    return (
        "The sampler finds every token likelier, never less likely: it samples from a part of the "
        f"vocabulary (top_p of about {nucleus:.2g}, or top_k or min_p) and the trainer does not "
        "know. Sample with top_p=1, top_k=0 (-1 in vLLM) and min_p=0. If the sampler truncates "
        "nothing, the trainer's output head has rows of padding that the sampler's lacks."
    )


def _outliers(marks: _Marks, pairs: Pairs) -> str:
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


def _weights(marks: _Marks, pairs: Pairs) -> str:
    text = (
        "That is more than another precision makes, on both sides: the sampler has other weights "
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


def _fixed(text: str) -> "Callable[[_Marks, Pairs], str]":
    return lambda marks, pairs: text


_WHY: dict[Cause, Callable[[_Marks, Pairs], str]] = {
    "none": _fixed(""),
    "precision": _fixed(
        "It is noise on both sides and on all tokens alike, as another precision, quantisation or "
        "kernel makes. Training can go on; watch sampler/k3 and sampler/sequence_ess, and correct "
        "for it (tis, icepop, or anchor 'rollout') if they drift."
    ),
    "temperature": _temperature,
    "truncation": _truncation,
    "padding": _fixed(
        "The sampler finds every token less likely, never likelier: its vocabulary has rows that "
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
    "precision": "rounding: another precision or kernel",
    "temperature": "another temperature",
    "truncation": "the sampler truncates its distribution (top-p, top-k or min-p)",
    "padding": "the sampler has a larger vocabulary",
    "outliers": "a few tokens that differ by much",
    "context": "another prompt, or another model",
    "weights": "other weights, or another prompt",
}
_DRAWN = "drawn from a sharper distribution than reported"
#: Causes after which training should not go on.
_SERIOUS = set(_TITLES) - {"none", "precision"}

_SHARPER = (
    "But the tokens are likelier than the trainer's entropy says: they were drawn at a lower "
    "temperature or from a truncated distribution, and the reported log-probabilities do not show "
    "it. Check temperature, top_p and top_k of the sampler."
)


class FirstCompletions:
    """Compares sampler and trainer before the first update of a run, and records the verdict.

    A row of ``metrics.jsonl`` with ``"stage": "sampler"`` holds it; one that is not harmless is a
    notice as well, and is printed. A resumed run is not compared again.

    Args:
      run: the run directory.
      console: gets a verdict that is not harmless.
    """

    def __init__(self, run: RunDirectory, console: Console) -> None:
        self._run, self._console = run, console
        path = run.path / "metrics.jsonl"
        rows = read_jsonl(path) if path.exists() else []
        self._done = any(row.get("stage") == "sampler" for row in rows)

    def listen(self, trainer: Any) -> None:
        """Compare the first completions of this trainer, unless the run has been compared.

        Args:
          trainer: one that records; see `trustclip.engines.trl.recording.Recorded`.
        """
        if not self._done:
            trainer.mismatch.listener = self

    def __call__(self, pairs: Pairs) -> None:
        """Compare the tokens of the first update, if there are enough of them."""
        if self._done or len(pairs.trainer) < FEWEST or not self._run.leads:
            return
        verdict = compare(pairs)
        row = {"cause": verdict.cause, "harmless": verdict.harmless, "text": verdict.text}
        self._run.log({"stage": "sampler", "step": 0, **row})
        if not verdict.harmless:
            self._run.notice(0, "sampler_mismatch", verdict.text)
            self._console.print(f"sampler: {verdict.text}", highlight=False, markup=False)
