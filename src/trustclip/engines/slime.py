"""slime and miles: what ``--custom-loss-function-path`` and ``--custom-tis-function-path`` load.

In a module of yours, which every worker can import::

    loss = custom_loss("atr", delta=0.07)

and on the command line: ``--loss-type custom_loss --custom-loss-function-path my_module.loss``.
"""

from collections.abc import Callable, Sequence
from importlib import import_module, util
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trustclip.constraints.base import Trait
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.gradients import gradient
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import per_token_loss

Loss = Callable[[Any, dict[str, Any], Tensor, Callable[[Tensor], Tensor]], Any]


def custom_loss(method: str = "atr", **method_args: Any) -> Loss:
    """Policy loss of a micro-batch, reduced by the function that slime passes.

    slime's entropy bonus and its KL to the reference policy stay. ``eps_clip*`` and the other
    arguments of the term that is replaced act no longer.

    Args:
      method: name of the constraint.
      **method_args: its hyper-parameters.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that needs more than this; when the
        loss is called, a setting of slime that it cannot honour.
    """
    chosen = check(named(method, **method_args), "slime")

    def loss(
        args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Callable[..., Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        _refuse(args)
        theirs, passed = _forward(args, batch, logits)
        logp, entropy = passed["log_probs"], torch.cat(passed["entropy"])
        rollout = batch.get("rollout_log_probs")
        old = rollout if args.use_rollout_logprobs else batch.get("log_probs")
        old = [x.detach() for x in logp] if old is None else old
        tokens = _tokens(logp, old, batch["advantages"], batch["loss_masks"], rollout)
        per_token, surrogate = per_token_loss(chosen, tokens)
        policy = sum_of_sample_mean(_flat(per_token, logp))
        total = policy - args.entropy_coef * sum_of_sample_mean(entropy)
        new, before = torch.cat(logp), torch.cat(old)
        metrics = {
            "pg_loss": policy,
            "entropy_loss": sum_of_sample_mean(entropy),
            "pg_clipfrac": sum_of_sample_mean(_flat((~surrogate.kept).to(new), logp)),
            "ppo_kl": sum_of_sample_mean(before - new),
        }
        if rollout is not None:
            gap = (before - torch.cat(rollout)).abs()
            metrics["train_rollout_logprob_abs_diff"] = sum_of_sample_mean(gap)
        if args.use_kl_loss:
            weight = (new - before).exp() if args.use_unbiased_kl else None
            reference = torch.cat(batch["ref_log_probs"])
            kl = theirs.compute_approx_kl(
                new, reference, kl_loss_type=args.kl_loss_type, importance_ratio=weight
            )
            metrics["kl_loss"] = sum_of_sample_mean(kl)
            total = total + args.kl_loss_coef * metrics["kl_loss"]
        metrics["loss"] = total
        return total, {name: value.detach() for name, value in metrics.items()}

    return loss


def custom_tis(method: str = "tis", **method_args: Any) -> Callable[..., Any]:
    """Correction for the sampler, on top of slime's own policy loss.

    Args:
      method: name of a method that weighs or drops tokens by old / sampler, such as ``tis``,
        ``icepop`` and ``sampler``. Only the weight is taken, not its inner method.
      **method_args: its hyper-parameters.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that is no such correction.
    """
    chosen = check(named(method, **method_args), "slime")
    if Trait.WEIGHS_OLD_POLICY not in chosen.traits:
        raise ValueError(
            f"{method!r} does not correct for the sampler, and slime's --custom-tis-function-path "
            f"takes such a correction: tis, icepop or sampler. Use custom_loss({method!r})."
        )
    if getattr(chosen, "only", "all") != "all":
        raise ValueError(
            "`only` 'negative' reads advantages, and slime passes none to a correction; use 'all'."
        )

    def correction(
        args: Any,
        *,
        pg_loss: Tensor,
        train_log_probs: Sequence[Tensor],
        rollout_log_probs: Sequence[Tensor],
        loss_masks: Sequence[Tensor],
        **_: Any,
    ) -> tuple[Tensor, Sequence[Tensor], dict[str, Tensor]]:
        old = [x.detach() for x in train_log_probs]
        tokens = _tokens(old, old, [torch.ones_like(x) for x in old], loss_masks, rollout_log_probs)
        weight = _flat(gradient(chosen, tokens)[0], old)
        ratio = (torch.cat(old) - torch.cat(list(rollout_log_probs))).exp()
        metrics = {
            "tis": ratio,
            "tis_clipfrac": (weight != ratio).float(),
            "tis_abs": (ratio - 1).abs(),
        }
        return pg_loss * weight, loss_masks, metrics

    return correction


def _forward(args: Any, batch: dict[str, Any], logits: Tensor) -> tuple[Any, dict[str, Any]]:
    """The engine's module of losses, and what it computes from logits: lists of tensors."""
    names = ("unconcat_tokens", "total_lengths", "response_lengths")
    given = {name: batch[name] for name in names}
    if util.find_spec("slime"):
        theirs = import_module("slime.backends.megatron_utils.loss")
        if hasattr(theirs, "get_rollout_top_p_logprob_kwargs"):
            given |= theirs.get_rollout_top_p_logprob_kwargs(args, batch)
    else:
        theirs = import_module("miles.backends.training_utils.loss_hub.losses")
        given["max_seq_lens"] = batch.get("max_seq_lens")
    passed = theirs.get_log_probs_and_entropy(logits, args=args, with_entropy=True, **given)
    return theirs, passed[1] if isinstance(passed, tuple) else passed  # slime's, or miles'


def _refuse(args: Any) -> None:
    """Raise where a setting of slime would be lost with its own policy loss."""
    for name, instead in _LOST.items():
        if getattr(args, name, False):
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"{option} belongs to the policy loss that the custom loss replaces; leave it out "
                f"and {instead}."
            )


#: Settings of slime's own policy loss, with what does the same here.
_LOST = {
    "use_tis": "name the correction as a method: custom_loss('tis', inner=...)",
    "use_opsm": "name it as a method: custom_loss('opsm', inner=...)",
    "use_score_centering": "train `centered` with trustclip.engines.prime_rl or .trl",
    "custom_pg_loss_reducer_function_path": "choose slime's --calculate-per-token-loss or none",
}


def _tokens(
    logp: Sequence[Tensor],
    old: Sequence[Tensor],
    advantages: Sequence[Tensor],
    masks: Sequence[Tensor],
    rollout: Sequence[Tensor] | None,
) -> TokenBatch:
    """A batch of slime's lists, a tensor for each response."""
    if [len(x) for x in logp] != [len(x) for x in masks]:
        raise ValueError(
            "slime splits sequences over ranks here, and a method needs whole ones: set "
            "--context-parallel-size 1."
        )

    def padded(rows: Sequence[Tensor]) -> Tensor:
        return pad_sequence([row.to(logp[0]) for row in rows], True)

    sampler = None if rollout is None else padded(rollout)
    mask = padded(masks) != 0
    return TokenBatch(padded(logp), padded(old), padded(advantages), mask, logp_rollout=sampler)


def _flat(x: Tensor, like: Sequence[Tensor]) -> Tensor:
    """The rows of a padded tensor one after another, without the padding."""
    return torch.cat([row[: len(own)] for row, own in zip(x, like, strict=True)])
