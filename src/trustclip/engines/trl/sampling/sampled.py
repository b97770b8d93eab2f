"""Log-probabilities that `generate` of Transformers samples with: it returns none to TRL.

They are those of the distribution that the token is really drawn from: the logits as `generate`
has processed them, divided by the temperature, cut off by top-k, top-p and min-p, and normalised
again. That is what vLLM calls *processed* log-probabilities.
"""

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trustclip.constraints.batch import TokenBatch
from trustclip.engines.trl.sampling.generate import replaced
from trustclip.engines.trl.scoring.candidates import Likeliest, join, likeliest

#: Settings of sampling that are applied here, in the order of Transformers, and their off values.
_APPLIED: dict[str, tuple[type[LogitsProcessor], float]] = {
    "temperature": (TemperatureLogitsWarper, 1.0),
    "top_k": (TopKLogitsWarper, 0),
    "top_p": (TopPLogitsWarper, 1.0),
    "min_p": (MinPLogitsWarper, 0.0),
}

#: Mean difference of log-probabilities that is worth a notice, nats a token; weights rounded to
#: bfloat16 show some 1e-4.
_NOTABLE = 0.02

#: Names of generation settings under which the log-probabilities are right.
RECORDED = frozenset(_APPLIED)


def with_logps(
    model: Any, generate: Callable[[], Any], k: int = 0
) -> tuple[list[list[int]], list[Any], list[Likeliest]]:
    """Tokens, log-probabilities and k likeliest tokens (none for k = 0) of each completion.

    ``generate`` returns the tokens, and something else; it calls the model's `generate` once.

    The temperature and the cut-offs are taken out of that call's settings and applied by the same
    classes of Transformers, with the recorder behind them: the samples are the same bit for bit,
    and nothing comes between what is recorded and what is drawn.
    """
    recorder, original = Recorder(k), model.generate

    def recorded(*args: Any, generation_config: Any, **kwargs: Any) -> Tensor:
        defaults, plain = model.generation_config, copy.deepcopy(generation_config)
        processors: list[LogitsProcessor] = []
        for name, (warper, off) in _APPLIED.items():
            value = getattr(generation_config, name)
            value = getattr(defaults, name) if value is None else value
            if value is not None and value != off:
                processors.append(warper(value))  # type: ignore[call-arg]
                setattr(plain, name, off)
        processed = LogitsProcessorList([*processors, recorder])
        ids = original(*args, generation_config=plain, logits_processor=processed, **kwargs)
        recorder.draw(ids[:, -1])
        return ids

    with replaced(model, recorded):
        ids, _ = generate()
    logps = [row[: len(tokens)] for row, tokens in zip(recorder.logps.tolist(), ids, strict=True)]
    further = [recorder.likeliest(i).first(len(row)) for i, row in enumerate(ids)] if k else []
    return ids, logps, further


def same_lengths(rollout_func: Callable[..., Any]) -> Callable[..., Any]:
    """A `rollout_func` of TRL's whose log-probabilities are counted: TRL pads them with zeros.

    Raises:
      ValueError: (when called) a completion has more or fewer of them than tokens.
    """

    @functools.wraps(rollout_func)
    def counted(*args: Any, **kwargs: Any) -> Any:
        output = rollout_func(*args, **kwargs)
        pairs = zip(output.get("completion_ids") or (), output.get("logprobs") or (), strict=False)
        for i, (tokens, logps) in enumerate(pairs):
            if len(tokens) != len(logps):
                raise ValueError(
                    f"`rollout_func` returned {len(logps)} log-probabilities for the {len(tokens)} "
                    f"tokens of completion {i}; it must return one for each."
                )
        return output

    return counted


@torch.no_grad()
def oddity(batch: TokenBatch) -> str | None:
    r"""What is wrong with the sampler's log-probabilities of fresh samples, if anything.

    On its own samples a sampler's log-probabilities are at least the trainer's on average, since
    $E_b[\log\pi_b - \log\pi_{old}] = KL(b \| old) \ge 0$. Lower ones are not of the distribution
    that the tokens were drawn from.

    Raises:
      ValueError: no token has a log-probability of the sampler, or some are above 0.
    """
    valid = batch.finite & ~batch.given("logp_rollout").isnan()
    gap = (batch.given("logp_rollout") - batch.logp_old)[valid].double()  # [tokens]
    tokens = int(batch.finite.sum())
    if not tokens:
        return None
    if not len(gap):
        raise ValueError(
            f"the sampler gave NaN for the log-probability of every one of {tokens} tokens."
        )
    if (top := batch.given("logp_rollout")[valid].max().item()) > 1e-3:
        raise ValueError(
            f"the sampler gave a log-probability of {top:g}, above 0; it must give natural "
            "logarithms of probabilities."
        )
    if len(gap) < tokens:
        return (
            f"the sampler gave NaN for the log-probability of {tokens - len(gap)} of {tokens} "
            "tokens: on these a correction for the sampler does nothing."
        )
    mean = gap.mean().item()
    if abs(mean) < _NOTABLE or abs(mean) < 5 * gap.std().item() / math.sqrt(len(gap)):
        return None
    if mean < 0:
        return (
            f"the sampler's log-probabilities are {-mean:.3g} nats a token below the trainer's on "
            "the sampler's own samples, and those of the distribution it drew from cannot be lower "
            "on average: it probably reports them without its temperature, top-p or top-k."
        )
    return (
        f"the sampler's log-probabilities are {mean:.3g} nats a token above the trainer's, so the "
        "two distributions differ by that KL divergence: probably one of them applies a "
        "temperature, top-p or top-k that the other does not, or the weights differ."
    )


class Recorder(LogitsProcessor):
    """The last processor: a token is known when the next one is requested.

    Values after the end of a completion are meaningless.
    """

    def __init__(self, k: int) -> None:
        self._next: Tensor | None = None
        self._logps: list[Tensor] = []
        self._k = k
        self._further: list[Likeliest] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.draw(input_ids[:, -1])
        self._next = scores.log_softmax(dim=-1)  # [batch, vocabulary]
        if self._k:
            self._further.append(likeliest(self._next, self._k))
        return scores

    def draw(self, tokens: Tensor) -> None:
        """Record the tokens that followed the last request, if there was one. Shape [batch]."""
        if self._next is not None:
            self._logps.append(self._next.gather(1, tokens[:, None]))

    @property
    def logps(self) -> Tensor:
        """Log-probabilities of all new tokens, nats. Shape [batch, new tokens]."""
        return torch.cat(self._logps, dim=1)

    def likeliest(self, row: int) -> Likeliest:
        """The likeliest tokens of a completion. Shapes [new tokens, ...]."""
        return join([Likeliest(*(part[row, None] for part in step)) for step in self._further])
