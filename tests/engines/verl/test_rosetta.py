# pyright: reportMissingImports=false
"""verl's rows of the Rosetta table: its own losses, with its defaults but for what a row sets."""

import copy
import dataclasses
from importlib.metadata import version
from typing import Any

import engine_cases
import pytest
import rosetta_cases
import torch
from torch import Tensor

import trustclip as tc

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")

from engines.verl import test_twins
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from trustclip.constraints import rosetta
from trustclip.constraints.twins import ACTOR, CORRECTION

#: What is set for a row beyond verl's defaults; the loss mode is its name.
SETTINGS: dict[str, dict[str, Any]] = {
    "clip_cov": {f"{ACTOR}.policy_loss.clip_cov_ratio": 1.0},
    "dro": {f"{ACTOR}.policy_loss.dro_beta": 0.05},
    "rollout_is": {
        f"{ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{CORRECTION}.rollout_is": "token",
    },
}
#: A row's name of verl's aggregations.
AGGREGATIONS = {"grpo": "sequence_mean", "dapo": "token_mean"}


def penalised(kind: str, batch: tc.TokenBatch) -> tuple[Tensor, Any]:
    """Gradient of the vanilla loss and verl's KL loss."""
    config, _ = test_twins.composed({})
    logp = batch.logp.clone().requires_grad_()
    price = kl_penalty(logp, batch.given("logp_ref"), kind)
    loss = agg_loss(price, batch.mask, config.loss_agg_mode, **config.global_batch_info)
    (gradient,) = torch.autograd.grad(config.kl_loss_coef * loss, logp)
    return test_twins.gradient_of({}, batch) + gradient, config


def of_preset(name: str, batch: tc.TokenBatch) -> Tensor:
    """Gradient of a preset of rollout correction, by verl's own mask, weights and losses."""
    chosen = getattr(RolloutCorrectionConfig, name)()
    rollout = batch.given("logp_rollout")
    old = rollout if chosen.bypass_mode else batch.logp_old
    mode = "bypass_mode" if chosen.bypass_mode else "vanilla"
    config = copy.deepcopy(test_twins.composed({f"{ACTOR}.policy_loss.loss_mode": mode})[0])
    mask, weights = batch.mask, None
    if chosen.bypass_mode:
        object.__setattr__(config.policy_loss, "rollout_correction", chosen)
    else:
        found, mask, _ = compute_rollout_correction_and_rejection_mask(
            *(old, rollout, batch.mask, chosen.rollout_is, chosen.rollout_is_threshold),
            rollout_rs=chosen.rollout_rs,
            rollout_rs_threshold=chosen.rollout_rs_threshold,
        )
        weights = None if found is None else found.batch["rollout_is_weights"]
    logp = batch.logp.clone().requires_grad_()
    loss, _ = get_policy_loss_fn(mode)(
        old_log_prob=old,
        log_prob=logp,
        advantages=batch.advantages,
        response_mask=mask.bool(),
        loss_agg_mode="token-sum",
        config=config,
        rollout_is_weights=weights,
    )
    return -torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize(
    "case",
    [case for case in rosetta_cases.rows("package", "verl") if rosetta_cases.is_preset(case[1])],
    ids=rosetta_cases.label,
)
def test_a_preset_of_rollout_correction_has_the_same_gradient(case: rosetta_cases.Case) -> None:
    batch = rosetta_cases.near_tokens()
    got, want = (
        of_preset(case[1].name, batch),
        tc.coefficient(tc.preset(case[0], case[1].name), batch),
    )
    assert want.any()
    # A constant factor is verl's normalisation over the update.
    factor = (got * want).sum() / want.square().sum()
    torch.testing.assert_close(got, factor * want, rtol=1e-6, atol=1e-8)


def of_verl(name: str, batch: tc.TokenBatch) -> tuple[Tensor, Any]:
    """(gradient of the loss in the log-probabilities, verl's configuration of the actor)."""
    if name.startswith("kl_loss"):
        return penalised(name.split()[1], batch)
    if name == "bypass_mode":
        batch = dataclasses.replace(batch, logp_old=batch.logp_rollout)
    settings = {f"{ACTOR}.policy_loss.loss_mode": name} | SETTINGS.get(name, {})
    return test_twins.gradient_of(settings, batch), test_twins.composed(settings)[0]


@pytest.mark.parametrize(
    "case",
    [c for c in rosetta_cases.rows("package", "verl") if not rosetta_cases.is_preset(c[1])],
    ids=rosetta_cases.label,
)
def test_verl_has_the_same_gradient(case: rosetta_cases.Case) -> None:
    batch, method = rosetta_cases.tokens(), rosetta_cases.method_of(*case)
    if case[1].name == "kl_loss low_var_kl":  # verl clamps the estimate to 10
        near = batch.against("ref").log_ratio.abs() < 2
        batch = dataclasses.replace(batch, mask=batch.mask & near)
    got, config = of_verl(case[1].name, batch)
    loss_type = test_twins.aggregation(config)
    assert AGGREGATIONS[loss_type] == case[1].aggregation
    want = engine_cases.expected_gradient(method, batch, loss_type)
    assert want.any()
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-12)


def test_the_version_is_the_one_installed_and_every_loss_has_a_row() -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    assert rosetta.ENGINES["verl"].read == version("verl")
    own = {name for name in POLICY_LOSS_REGISTRY if not name.startswith("trustclip")}
    assert own <= {row.name for row in rosetta.ENGINES["verl"].rows}
