"""SkyRL: a policy loss in its registry, from your own entry script.

::

    from trustclip.engines import skyrl

    skyrl.register("atr", delta=0.07)      # before validate_cfg; then
    cfg.trainer.algorithm.policy_loss_type = "trustclip"
"""

# pyright: reportMissingImports=false

from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.loss import coefficient
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import as_floats, means, per_token_loss


def register(method: str = "atr", policy_loss_type: str = "trustclip", **method_args: Any) -> None:
    """Register a method with SkyRL, whose registry makes it available on every worker.

    SkyRL scales advantages so that the loss is a masked sum, and its own correction for the sampler
    (``off_policy_correction``) is applied here as in its own losses.

    Args:
      method: name of the constraint.
      policy_loss_type: name in the registry.
      **method_args: hyper-parameters of the method.

    Raises:
      ValueError: unknown method or hyper-parameter; a method that needs more than SkyRL passes, or
        that scaled advantages would change; a name already in the registry.
    """
    from skyrl.backends.skyrl_train.utils import off_policy_correction_utils as correction
    from skyrl.backends.skyrl_train.utils import ppo_utils

    chosen = check(named(method, **method_args), "SkyRL")
    _check_proportional(chosen)

    def policy_loss(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        _check_once(chosen, config.off_policy_correction)
        mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
        batch = TokenBatch(
            log_probs, old_log_probs, advantages, mask.bool(), logp_rollout=rollout_logprobs
        )
        per_token, surrogate = per_token_loss(chosen, batch)
        per_token, kept, metrics = correction.apply_off_policy_correction(
            per_token, old_log_probs, rollout_logprobs, mask, config.off_policy_correction
        )
        loss = ppo_utils.reduce_loss(per_token, kept)
        logged = as_floats(means(batch, surrogate, method=chosen))
        return loss, {"clip_ratio": logged["trustclip/gated"], **logged, **metrics}

    ppo_utils.PolicyLossRegistry.register(policy_loss_type, policy_loss)


def _check_once(method: Method, theirs: Any) -> None:
    """Raise a ValueError where both SkyRL and the method weigh tokens for the sampler."""
    if Trait.CORRECTS_SAMPLER in method.traits and theirs.tis_ratio_type is not None:
        raise ValueError(
            f"{method.name!r} corrects for the sampler, and so does SkyRL: set "
            "trainer.algorithm.off_policy_correction.tis_ratio_type to null, or the correction is "
            "made twice."
        )


def _check_proportional(method: Method) -> None:
    """Raise a ValueError unless the method's gradient is proportional to the advantages."""
    old = torch.tensor([[-0.1, -0.5, -1.0, -2.0, -4.0, -8.0]], dtype=torch.float64)
    moved, mask = old + torch.tensor([0.05, -0.3, 0.3, -0.9, 0.9, 0.01]), old < 0
    whole, scaled = (
        coefficient(method, TokenBatch(moved, old, a, mask, logp_rollout=old))
        for a in (torch.cos(old), torch.cos(old) / 64)
    )
    if not torch.allclose(scaled * 64, whole):
        raise ValueError(
            f"{method.name!r} cannot be trained in SkyRL: its gradient is not proportional to the "
            "advantages, which SkyRL divides by the size of the batch; train it with "
            "trustclip.engines.trl."
        )
