# pyright: reportMissingImports=false
"""A twin in verl has its method's gradient: verl's own losses, under overrides that Hydra takes."""

from functools import cache
from typing import Any

import engine_cases
import pytest
import torch
import twin_cases
from torch import Tensor

import trustclip as tc

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")

from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils.config import omega_conf_to_dataclass
from verl_calls import composed as configuration

from trustclip.constraints.twins import ACTOR

#: What verl's settings of the aggregation are called in TRL.
AGGREGATED = {mode: loss_type for loss_type, mode in engine_cases.VERL_MODES.items()}
#: Losses that aggregate by themselves, by the mean over sequences.
BY_SEQUENCE = ("sapo", "geo_mean")

of_verl = pytest.mark.parametrize(
    ("method", "trainer"), twin_cases.of_trainers("verl"), ids=twin_cases.label
)


def composed(settings: dict[str, Any]) -> tuple[Any, Any]:
    return _composed(tuple(settings.items()))


@cache
def _composed(settings: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    """verl's configurations of the actor and of the sampler's correction, with its defaults."""
    given = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1, f"{ACTOR}.rollout_n": 4, **dict(settings)}
    container = configuration(*(f"{key}={value}" for key, value in given.items()))
    config = omega_conf_to_dataclass(container["actor_rollout_ref"]["actor"])
    config.global_batch_info.update(dp_size=1, batch_num_tokens=None, global_batch_size=None)
    return config, container["algorithm"]["rollout_correction"]


def gradient_of(settings: dict[str, Any], batch: tc.TokenBatch) -> Tensor:
    """Gradient of the loss that the settings choose, in the log-probabilities."""
    config, correction = composed(settings)
    logp = batch.logp.clone().requires_grad_()
    weights = None
    if correction["rollout_is"] is not None:
        assert batch.logp_rollout is not None
        found, *_ = compute_rollout_correction_and_rejection_mask(
            batch.logp_old,
            batch.logp_rollout,
            batch.mask,
            correction["rollout_is"],
            correction["rollout_is_threshold"],
        )
        weights = found.batch["rollout_is_weights"]
    given = batch.logp_old, batch.advantages, batch.mask
    return torch.autograd.grad(loss_of(config, logp, *given, weights), logp)[0]


def loss_of(
    config: Any,
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """The loss that a configuration chooses."""
    return get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=logp_old,
        log_prob=logp,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights,
    )[0]


def aggregation(config: Any) -> str:
    if config.policy_loss.loss_mode in BY_SEQUENCE:
        return "grpo"
    return AGGREGATED[config.loss_agg_mode]


@of_verl
def test_verl_has_the_same_gradient(method: tc.Method, trainer: str) -> None:
    settings, batch = method.twins[trainer], twin_cases.batch_for(method)
    want = twin_cases.wanted(method, batch, aggregation(composed(settings)[0]))
    torch.testing.assert_close(gradient_of(settings, batch), want, rtol=1e-6, atol=1e-12)
