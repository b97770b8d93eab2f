"""Our output head inside a model's forward pass, in the place of TRL's."""

import functools
import types
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from trustclip.engines.hidden import language_model, unusual, whole
from trustclip.head import Scores, score


@dataclass
class Scored(ModelOutput):
    """What the trainer reads of a forward pass; zero where a label is -100.

    Args:
      log_probs: of each next-token label, nats. Shape [batch, time - 1].
      entropy: of each next-token distribution, nats, if it was wanted. Shape [batch, time - 1].
      aux_loss: None; models with a router keep TRL's head.
    """

    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    aux_loss: Tensor | None = None


@dataclass
class Asked:
    """What our head in a model is asked for, beside log-probabilities; may change at every pass.

    Args:
      entropy: make entropies.
      mean: make `trustclip.head.Scores.mean` where no gradient needs it.
      scores: gets what each pass has found out, or None. Leading shape [batch, time - 1].
    """

    entropy: bool = False
    mean: bool = False
    scores: list[Scores] | None = None


def obstacle(model: nn.Module) -> str | None:
    """Why our head cannot serve this model, or None."""
    if reason := unusual(model):
        return reason
    config = language_model(model).config.get_text_config()
    if getattr(config, "output_router_logits", False):
        return "it trains a router beside its head"
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "its adapter adds tokens to the prompt"
    return None


def use_head(model: nn.Module, temperature: float) -> Asked:
    """Let ``model(..., labels=labels, fused_lm_head=True)`` answer with `Scored`, by our head.

    Only positions with a label enter the head: neither prompts nor padding. Every other call goes
    to the forward pass that was there before.

    Args:
      model: causal language model, or an adapter around one; see `obstacle`.
      temperature: that of sampling.

    Returns:
      What it answers to.
    """
    asked = Asked()
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
            entropy=asked.entropy,
            mean=asked.mean,
        )
        scores = Scores(*(None if x is None else x.unflatten(0, labels.shape) for x in flat))  # type: ignore[arg-type]
        if asked.scores is not None:
            asked.scores.append(scores)
        return Scored(scores.logp, scores.entropy)

    inner.forward = types.MethodType(forward, inner)
    return asked
