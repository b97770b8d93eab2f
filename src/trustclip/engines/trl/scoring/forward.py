"""trustclip's output head inside a model's forward pass, in place of TRL's."""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from trustclip.engines.trl.additions import addition
from trustclip.engines.trl.scoring import sharing
from trustclip.engines.trl.scoring.candidates import Query
from trustclip.engines.trl.scoring.hidden import language_model, logit_changes
from trustclip.head import Head, Scores
from trustclip.head.logprobs import Plan, scored
from trustclip.head.topk import further_logps

#: Arguments of a pass in which prompts can be shared.
_PACKED = {
    "input_ids",
    "attention_mask",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
}


@dataclass
class Scored(ModelOutput):
    """Result of a forward pass as the trainer reads it; zero where a label is -100."""

    log_probs: Tensor | None = None  # of each next-token label, nats. [batch, time - 1]
    entropy: Tensor | None = None  # of its distribution, nats, if requested. [batch, time - 1]
    aux_loss: Tensor | None = None  # models with a router's loss keep TRL's head


@dataclass
class Request:
    """What the head computes in addition to log-probabilities; may change between passes."""

    entropy: bool = False
    mean: bool = False  # `trustclip.head.Scores.mean`, also where no gradient needs it
    scores: list[Scores] | None = None  # collects those of each pass. [batch, time - 1, ...]
    shares: bool = False  # each prompt of a batch passes the model once
    further: Query | None = None  # further tokens whose log-probabilities are requested


def use_head(model: nn.Module, temperature: float) -> Request:
    """Make ``model(..., labels=labels, fused_lm_head=True)`` return `Scored` by trustclip's head.

    Only positions with a label enter the head: neither prompts nor padding. Every other call goes
    to the forward pass that was there before. The head's module itself is called, with labels, so
    that whatever shards its weight (FSDP2, DeepSpeed ZeRO-3) gathers it as for any module's pass
    and hands the gradient on.

    Returns:
      The request that it answers, which the caller may change between passes.
    """
    request = Request()
    inner = language_model(model)
    before, linear = inner.forward, inner.get_output_embeddings()

    @functools.wraps(type(inner).forward)  # `generate` checks its arguments against the signature
    def forward(
        self: Any, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any
    ) -> Any:
        if not fused_lm_head:
            return before(*args, **(kwargs if labels is None else {**kwargs, "labels": labels}))
        arguments = {name for name, value in kwargs.items() if value is not None}
        packed = None
        # Hooks that read states, for an exact divergence, expect one row for each completion.
        observed = request.scores is not None or bool(self.base_model._forward_hooks)
        shares = request.shares and not observed and addition(self) is None
        if shares and not args and arguments <= _PACKED:
            packed = sharing.Packed.of(kwargs["input_ids"], kwargs["attention_mask"], labels)
        if packed is None:
            outputs = self.base_model(*args, **{**kwargs, "use_cache": False})
            states = outputs.last_hidden_state[:, :-1]  # [batch, time - 1, H]
        else:
            states = sharing.states(self, packed)
        head = self.get_output_embeddings()
        labels = labels[:, 1:].to(head.weight.device)
        query = request.further
        # Somebody's hook on the head knows nothing of labels, and TRL would not call it here.
        score = head if addition(head) is None else types.MethodType(of_labels, head)
        flat = score(
            states.to(labels.device).flatten(0, 1),  # [batch * (time - 1), H]
            labels=labels.flatten(),
            plan=Plan(request.entropy, request.mean, collision=query is not None),
            further=None if query is None else query.of_pass(*labels.shape),
        )
        *flat, more = (None if x is None else x.unflatten(0, labels.shape) for x in flat)
        scores = Scores(*flat)  # type: ignore[arg-type]
        if query is not None and more is not None and scores.collision is not None:
            query.answers.append((more, scores.collision))
        if request.scores is not None:
            request.scores.append(scores)
        return Scored(scores.logp, scores.entropy)

    of_labels = _scoring_forward(temperature, *logit_changes(model))
    linear.forward = types.MethodType(of_labels, linear)
    inner.forward = types.MethodType(forward, inner)
    return request


def _scoring_forward(temperature: float, scale: float, cap: float | None) -> Callable[..., Any]:
    """The forward pass of an output head that scores labels where there are any."""

    def of_labels(
        self: Any,
        states: Tensor,
        labels: Tensor | None = None,
        plan: Plan | None = None,
        further: Tensor | None = None,
    ) -> Any:
        if labels is None or plan is None:
            return type(self).forward(self, states)
        head = Head.of(self.weight, self.bias, temperature=temperature, scale=scale, softcap=cap)
        scores = scored(head, states, labels, plan)
        more = None
        if further is not None:
            ids = further if further.shape[1] else None
            more = further_logps(states, head, labels, scores.logp, ids)
        return *scores, more  # a plain tuple, which hooks of modules (FSDP2) can traverse

    return of_labels
