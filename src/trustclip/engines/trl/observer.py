"""TRL: what the clip of a plain `GRPOTrainer` does, without touching its training.

`observe` puts an observer in front of a trainer's own methods. It reads the log-probabilities that
the loss was computed from and adds ``trustclip/*`` to the log; loss, gradients and random numbers
are TRL's, so the weights are the same to the last bit.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.loss import gradient
from trustclip.constraints.registry import method
from trustclip.constraints.shadow import shadow_methods
from trustclip.constraints.twins import NEVER
from trustclip.engines.trl.inputs import token_batch
from trustclip.engines.trl.recording.records import Recorded, attach_recorders
from trustclip.engines.trl.upstream import GRPOTrainer

_SAMPLER = "vllm_importance_sampling"


def observe(
    trainer: Any, shadows: Iterable[Any] = (), metrics: Literal["brief", "full"] = "brief"
) -> Any:
    """Log ``trustclip/*`` of a plain `trl.GRPOTrainer`: what its clip does, and what others would.

    Args:
      trainer: the trainer, before its training; the same object is returned, its loss untouched.
      shadows: methods to watch with: names, mappings of a ``name`` and hyper-parameters, or
        `trustclip.Method`; see `trustclip.constraints.shadow`.
      metrics: which of our metrics are logged; see `ConstrainedGRPOConfig`.

    Returns:
      The trainer.

    Raises:
      ValueError: not a plain `GRPOTrainer`, settings that no method states, or a shadow that needs
        what the trainer does not have.

    Example:
      ``observe(trainer, shadows=["atr", {"name": "clip", "epsilon": 0.1}]).train()``
    """
    cls = type(trainer)
    if isinstance(trainer, _Observed):
        raise ValueError("this trainer is observed already.")
    if not isinstance(trainer, GRPOTrainer) or cls._compute_loss is not GRPOTrainer._compute_loss:
        raise ValueError(
            f"observe takes a trl.GRPOTrainer with TRL's own loss, got a {cls.__name__}; "
            "a ConstrainedGRPOTrainer has `shadows` in its config."
        )
    acting = stock_method(trainer.args)
    sampler = ("logp_rollout",) if trainer.use_vllm or trainer.rollout_func else ()
    watched = shadow_methods(shadows, {"entropy", *sampler}, "this trainer")
    # A subclass created on the spot: `super()` is whatever class the trainer has.
    observed: Any = trainer
    observed.__class__ = type(f"Observed{cls.__name__}", (_Observed, cls), {})
    observed.method, observed.metrics = acting, metrics
    observed._watch_with(watched)
    attach_recorders(observed)
    return trainer


def stock_method(args: Any) -> Method:
    """The method with the gradient of TRL's own loss under a `trl.GRPOConfig`.

    Raises:
      ValueError: settings whose gradient is that of no method.

    Example:
      >>> from trustclip.engines.trl.upstream import GRPOConfig
      >>> args = GRPOConfig("out", epsilon=0.1, epsilon_high=0.3, use_cpu=True, bf16=False)
      >>> stock_method(args)
      ClipHigher(low=0.1, high=0.3, side='outward', level='token')
    """
    if problems := list(_inexpressible(args)):
        raise ValueError(f"no method has the gradient of these settings: {'; '.join(problems)}.")
    inner = _method_of_loss(args)
    if args.off_policy_mask_threshold is not None:
        anchor = "rollout" if args.use_vllm else "old"
        inner = method("opsm", inner=inner, delta=args.off_policy_mask_threshold, anchor=anchor)
    if _corrects_sampler(args) and args.loss_type != "vespo":
        level, _, how = getattr(args, f"{_SAMPLER}_mode").partition("_")
        bounds = {"ceiling": getattr(args, f"{_SAMPLER}_clip_max") or NEVER, "level": level}
        if how == "truncate":
            return method("tis", inner=inner, **bounds)
        return method("icepop", inner=inner, floor=getattr(args, f"{_SAMPLER}_clip_min"), **bounds)
    return inner


def _corrects_sampler(args: Any) -> bool:
    return args.use_vllm and getattr(args, f"{_SAMPLER}_correction")


def _inexpressible(args: Any) -> Iterator[str]:
    """Settings that change which tokens have a gradient in a way that no method does."""
    if args.top_entropy_quantile < 1:
        yield f"top_entropy_quantile={args.top_entropy_quantile:g} drops tokens by their entropy"
    if args.loss_type == "cispo" and _high(args) <= 1:
        yield f"loss_type='cispo' with epsilon_high={_high(args):g} weighs every token below 1"
    if args.delta is not None and (_by_sequence(args) or args.delta < 1 + _high(args)):
        yield f"delta={args.delta:g} cuts at sequence level, or below the clip's own upper bound"
    if args.loss_type == "luspo" and not _by_sequence(args):
        yield "loss_type='luspo' at token level"
    if _corrects_sampler(args) and args.loss_type == "vespo":
        yield "loss_type='vespo' with a correction of the sampler"
    truncates = getattr(args, f"{_SAMPLER}_mode").endswith("truncate")
    if _corrects_sampler(args) and truncates and getattr(args, f"{_SAMPLER}_clip_min") is not None:
        yield f"{_SAMPLER}_clip_min raises the weights of tokens"


def _high(args: Any) -> float:
    return args.epsilon if args.epsilon_high is None else args.epsilon_high


def _by_sequence(args: Any) -> bool:
    return args.importance_sampling_level == "sequence"


def _method_of_loss(args: Any) -> Method:
    """The method of the loss type alone."""
    if args.loss_type == "cispo":
        return method("cispo", high=_high(args) - 1)
    if args.loss_type == "sapo":
        return method(
            "soft_gate",
            temperature_positive=args.sapo_temperature_pos,
            temperature_negative=args.sapo_temperature_neg,
        )
    if args.loss_type == "vespo":
        return method(
            "vespo",
            k_positive=args.vespo_k_pos,
            lambda_positive=args.vespo_lambda_pos,
            k_negative=args.vespo_k_neg,
            lambda_negative=args.vespo_lambda_neg,
        )
    bounds = {"low": min(args.epsilon, 1.0), "high": _high(args)}
    if args.loss_type == "luspo":
        return method("luspo", **bounds)
    if args.delta is not None:
        return method("dual_clip", ceiling=args.delta, **bounds)
    return method("clip_higher", level=args.importance_sampling_level, **bounds)


class _Observed(Recorded, GRPOTrainer):
    """Mixin in front of a trainer's class; `observe` combines the two."""

    method: Method  # with the gradient of this trainer's loss
    #: What TRL's last pass over completions gave: log-probabilities and entropies first.
    _scored: Any

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self._number_completions(output)
        self._record_generation(output)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        self._scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return self._scored

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        (logp, entropy, *_), self._scored = self._scored, None
        self._watch(inputs, logp.detach(), entropy.detach())
        return loss

    @torch.no_grad()
    def _watch(self, inputs: dict[str, Any], logp: Tensor, entropy: Tensor) -> None:
        old = inputs.get("old_per_token_logps")
        batch = token_batch(inputs, logp, logp if old is None else old, 0, entropy=entropy)
        c, surrogate = gradient(self.method, batch)
        self._windows[self._mode].add(batch, surrogate, self.method, self._all_metrics, c)
        if self._mode == "train":
            self._record_loss(inputs, batch, surrogate, c, batch)
