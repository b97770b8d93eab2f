"""trustclip's output head inside a model's forward pass, in place of TRL's."""

import functools
import types
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from trustclip.engines.trl.hidden import language_model, whole
from trustclip.head import Scores, score


@dataclass
class Scored(ModelOutput):
    """Result of a forward pass as the trainer reads it; zero where a label is -100.

    Args:
      log_probs: of each next-token label, nats. Shape [batch, time - 1].
      entropy: of each next-token distribution, nats, if requested. Shape [batch, time - 1].
      aux_loss: None; models with a router's loss keep TRL's head.
    """

    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    aux_loss: Tensor | None = None


@dataclass
class Request:
    """What the head computes in addition to log-probabilities; may change between passes.

    Args:
      entropy: compute entropies.
      mean: compute `trustclip.head.Scores.mean` where no gradient needs it.
      scores: list that collects the scores of each pass, or None. Leading shape [batch, time - 1].
    """

    entropy: bool = False
    mean: bool = False
    scores: list[Scores] | None = None


def use_head(model: nn.Module, temperature: float) -> Request:
    """Make ``model(..., labels=labels, fused_lm_head=True)`` return `Scored` by trustclip's head.

    Only positions with a label enter the head: neither prompts nor padding. Every other call goes
    to the forward pass that was there before.

    Args:
      model: causal language model, or an adapter around one; see `fast_paths.obstacle`.
      temperature: that of sampling.

    Returns:
      The request that it answers, which the caller may change between passes.
    """
    request = Request()
    inner = language_model(model)
    before = inner.forward

    @functools.wraps(type(inner).forward)  # `generate` checks its arguments against the signature
    def forward(
        self: Any, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any
    ) -> Any:
        if not fused_lm_head:
            return before(*args, **(kwargs if labels is None else {**kwargs, "labels": labels}))
        outputs = self.base_model(*args, **{**kwargs, "use_cache": False})
        states, head = outputs.last_hidden_state[:, :-1], self.get_output_embeddings()
        weight, bias = whole(head.weight), whole(head.bias)
        labels = labels[:, 1:].to(weight.device)
        flat = score(
            states.to(weight.device).flatten(0, 1),
            weight,
            labels.flatten(),
            bias=bias,
            temperature=temperature,
            entropy=request.entropy,
            mean=request.mean,
        )
        scores = Scores(*(None if x is None else x.unflatten(0, labels.shape) for x in flat))  # type: ignore[arg-type]
        if request.scores is not None:
            request.scores.append(scores)
        return Scored(scores.logp, scores.entropy)

    inner.forward = types.MethodType(forward, inner)
    return request
