# pyright: reportMissingImports=false
"""verl's policy losses called as its actor calls them, on tensors: shared by the tests of verl."""

import math
from typing import Any

import engine_cases
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

import trustclip as tc
from trustclip.engines.verl import TrustclipLossConfig

#: verl's correction whose weights are old / sampler probability of each token.
CARRIED = {"rollout_is": "token", "rollout_is_threshold": math.inf}


def composed(*overrides: str, folder: str = "") -> dict[str, Any]:
    """verl's configuration under overrides of its entry script; ``folder`` is that of another's."""
    from hydra import compose, initialize_config_dir, initialize_config_module
    from omegaconf import OmegaConf

    home = "verl.trainer.config"
    name = "fully_async_ppo_trainer" if folder else "ppo_trainer"
    search = [f"hydra.searchpath=[pkg://{home}]"] if folder else []
    with (
        initialize_config_dir(folder, version_base=None)
        if folder
        else initialize_config_module(home, version_base=None)
    ):
        config = compose(name, overrides=[*search, *overrides])
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=False)  # type: ignore[return-value]


def settings_of(method: tc.Method, **correction: Any) -> TrustclipLossConfig:
    given = CARRIED if "logp_rollout" in method.requires else {}
    return TrustclipLossConfig(method=method.to_dict(), rollout_correction={**given, **correction})


def actor(policy_loss: PolicyLossConfig, **global_batch: Any) -> FSDPActorConfig:
    """verl's configuration of the actor, with what `ppo_loss` writes into it before every call."""
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=2, policy_loss=policy_loss
    )
    config.global_batch_info.update(
        {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None, **global_batch},
        loss_scale_factor=engine_cases.MAX_LENGTH,
    )
    return config


def called(
    batch: tc.TokenBatch,
    config: FSDPActorConfig,
    mode: str = "token-mean",
    is_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """(loss, its gradient in the log-probabilities, metrics), through the registry."""
    logp = batch.logp.detach().clone().requires_grad_()
    if batch.logp_rollout is not None:
        is_weights = corrected(batch, CARRIED)[0]
    loss, metrics = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=batch.logp_old,
        log_prob=logp,
        advantages=batch.advantages,
        response_mask=batch.mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=is_weights,
    )
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.detach(), gradient, metrics


def corrected(batch: tc.TokenBatch, settings: Any) -> tuple[Tensor, Tensor]:
    """(weights, mask) that verl's trainers make of a batch, with verl's own function."""
    assert batch.logp_rollout is not None
    weights, mask, _ = compute_rollout_correction_and_rejection_mask(
        batch.logp_old, batch.logp_rollout, batch.mask, **settings
    )
    return weights.batch["rollout_is_weights"], mask
