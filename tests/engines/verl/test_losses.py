# pyright: reportMissingImports=false
"""Every method through verl's own registry, on tensors: loss, gradient, metrics, refusals."""

import dataclasses
import math
from typing import Any

import engine_cases
import method_cases
import pytest
import torch

import trustclip as tc

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import PolicyLossConfig
from verl_calls import CARRIED, actor, called, composed, corrected, settings_of

from trustclip.constraints import diagnostics
from trustclip.engines.verl import TrustclipLossConfig
from trustclip.engines.verl.limits import LOSS_MODES, TARGET

trained = pytest.mark.parametrize("method", engine_cases.TRAINED, ids=method_cases.label)
every_mode = pytest.mark.parametrize("loss_type", engine_cases.VERL_MODES)


# Loss and gradient -----------------------------------------------------------------------------


@every_mode
@trained
def test_verl_gives_the_gradient_of_both_engines(method: tc.Method, loss_type: str) -> None:
    batch = engine_cases.batch_for(method)
    config = actor(settings_of(method))
    loss, gradient, _ = called(batch, config, engine_cases.VERL_MODES[loss_type])
    want = engine_cases.expected_gradient(method, batch, loss_type)
    torch.testing.assert_close(gradient.double(), want, rtol=2e-6, atol=1e-9)
    per_token = tc.policy_loss(method, batch).per_token.double()
    total = (engine_cases.weights(loss_type, batch.mask) * per_token).sum()
    torch.testing.assert_close(loss.double(), total, rtol=1e-5, atol=1e-7)


@trained
def test_the_loss_is_that_of_policy_loss(method: tc.Method) -> None:
    batch = engine_cases.batch_for(method, torch.float64)
    leaf = batch.logp.clone().requires_grad_()
    ours = tc.policy_loss(method, dataclasses.replace(batch, logp=leaf), "token_mean")
    ours.value.backward()
    loss, gradient, metrics = called(batch, actor(settings_of(method)))
    torch.testing.assert_close(loss, ours.value.detach())
    torch.testing.assert_close(gradient, leaf.grad)
    # Over all tokens or all completions: a part of either has no mean that verl could average.
    whole = {
        k: total / count
        for k, (total, count) in ours.metrics.items()
        if count == tokens(batch) or "/sequence_" in k  # or over completions
    }
    assert ("sampler/k3" in whole) == (batch.logp_rollout is not None)
    logged = {name for name in metrics if name.startswith("trustclip/")}
    assert logged == {f"trustclip/{name}" for name in whole}
    for name, mean in whole.items():
        assert metrics[f"trustclip/{name}"] == pytest.approx(mean.item(), abs=1e-12)


def tokens(batch: tc.TokenBatch) -> int:
    """Unmasked ones: means over fewer cannot be averaged over micro-batches."""
    return int(batch.mask.sum())


@trained
def test_a_weight_of_verl_weighs_its_token_alone(method: tc.Method) -> None:
    if "logp_rollout" in method.requires:
        return  # its weights carry that field
    batch = engine_cases.batch_for(method)
    is_weights = torch.linspace(0.2, 2.0, batch.logp.numel()).view_as(batch.logp)
    is_weights = torch.where(batch.mask, is_weights, torch.nan)
    _, gradient, _ = called(batch, actor(settings_of(method)), "token-sum", is_weights)
    want = -tc.coefficient(method, batch) * torch.where(batch.mask, is_weights, 0.0)
    torch.testing.assert_close(gradient, want, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", [*engine_cases.VERL_MODES.values(), "token-sum"])
@pytest.mark.parametrize("name", ["atr", "gspo", "soft_gate"])
def test_micro_batches_and_ranks_add_up(name: str, mode: str, ranks: int, size: int) -> None:
    method = tc.method(name)
    whole = engine_cases.batch_for(method, torch.float64)
    info = {"batch_num_tokens": int(whole.mask.sum()), "global_batch_size": len(whole.logp)}
    want, gradient, _ = called(whole, actor(settings_of(method), **info), mode)
    config = actor(settings_of(method), dp_size=ranks, **info)
    parts = [called(rows(whole, i, i + size), config, mode) for i in range(0, 7, size)]
    # FSDP averages gradients over ranks, and accumulation adds them up.
    total = sum((loss for loss, *_ in parts), torch.tensor(0.0)).item()
    assert total / ranks == pytest.approx(want.item())
    width = whole.logp.shape[1]
    padded = [torch.nn.functional.pad(g, (0, width - g.shape[1])) for _, g, _ in parts]
    torch.testing.assert_close(torch.cat(padded) / ranks, gradient)


def rows(batch: tc.TokenBatch, start: int, stop: int) -> tc.TokenBatch:
    """Some rows, as short as their longest answer: what verl makes of a micro-batch."""
    length = int(batch.mask[start:stop].nonzero()[:, 1].max()) + 1
    return tc.TokenBatch(
        *(x[start:stop, :length] for x in method_cases.astuple(batch)),
    )


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -100.0])
def test_padding_never_matters(rubbish: float) -> None:
    clean = engine_cases.batch_for(tc.method("atr"))
    config = actor(settings_of(tc.method("atr")))
    raw = [torch.where(clean.mask, x, rubbish) for x in method_cases.astuple(clean)[:3]]
    logp = raw[0].clone().requires_grad_()
    loss, metrics = get_policy_loss_fn("trustclip")(
        old_log_prob=raw[1],
        log_prob=logp,
        advantages=raw[2],
        response_mask=clean.mask.float(),
        config=config,
    )
    want, gradient, same = called(clean, config)
    assert loss.item() == want.item() and metrics == same
    assert torch.equal(torch.autograd.grad(loss, logp)[0], gradient)


# Metrics ---------------------------------------------------------------------------------------


def test_metrics_are_python_floats_of_the_gate() -> None:
    batch = engine_cases.batch_for(tc.method("atr"))
    _, _, metrics = called(batch, actor(settings_of(tc.method("atr"))))
    assert {type(value) for value in metrics.values()} == {float}
    shares = [metrics[f"trustclip/gated/{name}"] for name in diagnostics.QUADRANTS]
    assert 0 < sum(shares) == pytest.approx(metrics["trustclip/gated"])
    assert metrics["actor/pg_clipfrac"] == metrics["trustclip/gated"]
    x = batch.log_ratio[batch.mask]
    assert metrics["actor/ppo_kl"] == pytest.approx(-x.mean().item(), rel=1e-5)
    assert metrics["trustclip/k3"] == pytest.approx((x.exp() - 1 - x).mean().item(), rel=1e-4)


def test_metrics_of_nothing_are_zero() -> None:
    mask = torch.zeros(1, 3, dtype=torch.bool)
    logp, old, advantages = torch.zeros(3, 1, 3)
    nothing = tc.TokenBatch(logp, old, advantages, mask)
    loss, gradient, metrics = called(nothing, actor(TrustclipLossConfig(), batch_num_tokens=5))
    assert loss.item() == 0 and not gradient.any() and set(metrics.values()) == {0.0}


# Configuration ---------------------------------------------------------------------------------


def test_every_loss_mode_is_registered_by_importing_verl() -> None:
    assert set(LOSS_MODES) <= set(POLICY_LOSS_REGISTRY)
    assert {f"trustclip_{name}" for name in tc.methods()} < set(LOSS_MODES)


def hydra(**policy_loss: Any) -> Any:
    """What verl does with the configuration of the actor, on the driver and in every worker."""
    return omega_conf_to_dataclass(
        {
            "_target_": "verl.workers.config.FSDPActorConfig",
            "strategy": "fsdp2",
            "rollout_n": 4,
            "ppo_micro_batch_size_per_gpu": 2,
            "policy_loss": {"_target_": TARGET, "loss_mode": "trustclip", **policy_loss},
        }
    )


def test_the_configuration_names_the_method() -> None:
    config = hydra(method={"name": "atr", "delta": 0.05})
    assert config.policy_loss.constraint() == tc.method("atr", delta=0.05)
    inner = {"name": "kl2", "delta": 0.01}
    both = hydra(method={"name": "both", "first": "atr", "second": inner})
    assert both.policy_loss.constraint() == tc.method("atr") & tc.method("kl2", delta=0.01)


@pytest.mark.parametrize(
    ("policy_loss", "said"),
    [
        ({"method": "art"}, "did you mean 'atr'"),
        ({"method": {"name": "atr", "dleta": 0.1}}, "did you mean 'delta'"),
        ({"method": {"name": "atr", "delta": -1}}, "greater than 0"),
        ({"metod": "atr"}, "metod"),
        ({"loss_mode": "vanilla", "method": "atr"}, "ignores the method"),
        ({"loss_mode": "trustclip_art"}, "did you mean 'trustclip_atr'"),
        ({"loss_mode": "trustclip_kl2", "method": "atr"}, "name two methods"),
        ({"method": "full_kl"}, "trustclip.engines.trl"),
        ({"method": "clip_cov"}, "trustclip.engines.trl"),
        ({"method": "trpo"}, "statistics over all ranks"),
        ({"method": "tis"}, "set algorithm.rollout_correction.rollout_is=token"),
        (
            {"method": {"name": "atr", "delta": {"controller": "target_gate", "share": 0.1}}},
            "adapts",
        ),
    ],
    ids=str,
)
def test_a_wrong_configuration_ends_at_once(policy_loss: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        hydra(**policy_loss)


@pytest.mark.parametrize("method", engine_cases.REFUSED, ids=method_cases.label)
def test_what_verl_cannot_supply_is_refused(method: tc.Method) -> None:
    with pytest.raises(ValueError, match=f"{method.name!r} cannot be trained in verl: it "):
        settings_of(method)


def test_a_refused_name_without_our_configuration_ends_at_the_first_call() -> None:
    batch = engine_cases.batch_for(tc.method("atr"))
    with pytest.raises(ValueError, match="'full_kl' cannot be trained in verl"):
        called(batch, actor(PolicyLossConfig(loss_mode="trustclip_full_kl")))


@pytest.mark.parametrize(
    "name",
    sorted(
        m.name
        for m in {tc.method(trained.name) for trained in engine_cases.TRAINED}
        if m.name != "truly_ppo" and "logp_rollout" not in m.requires
    ),
)
def test_a_name_alone_is_the_method_with_its_defaults(name: str) -> None:
    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    _, gradient, _ = called(batch, actor(PolicyLossConfig(loss_mode=f"trustclip_{name}")))
    torch.testing.assert_close(gradient, called(batch, actor(settings_of(method)))[1])


# The sampler's log-probabilities ---------------------------------------------------------------

ROLLOUT = [
    tc.method("tis"),
    tc.method("icepop", inner="clip"),
    tc.method("opsm", anchor="rollout", delta=0.01),
    tc.method("trm", anchor="rollout"),
    tc.method("dppo", anchor="rollout"),
    tc.method("vespo", anchor="rollout"),
]
of_rollout = pytest.mark.parametrize("method", ROLLOUT, ids=method_cases.label)


@of_rollout
@pytest.mark.parametrize(
    "correction",
    [
        {},
        {"rollout_is": "token", "rollout_is_threshold": 2.0},
        {"rollout_is": "token", "rollout_is_threshold": "0.5_inf"},
        {"rollout_is": "sequence", "rollout_is_threshold": math.inf},
        {**CARRIED, "rollout_is_batch_normalize": True},
    ],
    ids=str,
)
def test_weights_that_lose_the_ratio_are_refused(method: tc.Method, correction: Any) -> None:
    with pytest.raises(ValueError, match=r"set algorithm\.rollout_correction\.rollout_is=token"):
        TrustclipLossConfig(method=method, rollout_correction=correction)


def test_weights_that_do_not_come_are_an_error() -> None:
    batch = dataclasses.replace(engine_cases.batch_for(ROLLOUT[0]), logp_rollout=None)
    with pytest.raises(ValueError, match="calculate_log_probs=True"):
        called(batch, actor(settings_of(ROLLOUT[0])))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 1.3}, ("tis", {"ceiling": 1.3})),
        (
            {"rollout_is": "token", "rollout_is_threshold": "0.7_1.4"},
            ("icepop", {"floor": 0.7, "ceiling": 1.4}),
        ),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": 1.5},
            ("tis", {"ceiling": 1.5, "level": "sequence"}),
        ),
    ],
    ids=["tis", "icepop", "tis-sequence"],
)
def test_our_correction_is_verls_own(theirs: Any, ours: Any) -> None:
    """The inner method with verl's weights, and the method that corrects, on one batch."""
    name, arguments = ours
    method = tc.method(name, inner="clip", **arguments)
    batch = engine_cases.batch_for(method)
    weights, _ = corrected(batch, theirs)
    bare = dataclasses.replace(batch, logp_rollout=None)
    want = called(bare, actor(settings_of(tc.method("clip"))), "token-sum", weights)[1]
    assert (weights[batch.mask] != 1).any() and want.any()
    got = called(batch, actor(settings_of(method)), "token-sum")[1]
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6)


@of_rollout
def test_verls_rejection_masks_tokens_of_the_method(method: tc.Method) -> None:
    """`rollout_rs` composes: what it rejects is masked, and nothing is weighed twice."""
    batch = engine_cases.batch_for(method)
    rejecting = {**CARRIED, "rollout_rs": "token_k3", "rollout_rs_threshold": 0.2}
    _, mask = corrected(batch, rejecting)
    assert 0 < mask.sum() < batch.mask.sum()
    left = dataclasses.replace(batch, mask=mask.bool())
    config = actor(settings_of(method, rollout_rs="token_k3", rollout_rs_threshold=0.2))
    _, gradient, _ = called(left, config, "token-sum")
    torch.testing.assert_close(gradient, -tc.coefficient(method, left), rtol=2e-5, atol=1e-6)
    assert not gradient[batch.mask & ~mask.bool()].any()


def test_in_bypass_mode_the_old_policy_is_the_sampler() -> None:
    bypass = {"bypass_mode": True}
    for name in ("tis", "icepop"):
        with pytest.raises(ValueError, match=f"'{name}' would do nothing; name its inner method"):
            TrustclipLossConfig(method=name, rollout_correction=bypass)
    method = tc.method("dppo", anchor="rollout")
    batch = dataclasses.replace(engine_cases.batch_for(method), logp_rollout=None)
    config = actor(TrustclipLossConfig(method=method, rollout_correction=bypass))
    want = tc.coefficient(tc.method("dppo"), batch)
    torch.testing.assert_close(called(batch, config, "token-sum")[1], -want)


def test_hydra_hands_the_correction_on_to_the_loss() -> None:
    overrides = [
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_threshold=inf",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        f"actor_rollout_ref.actor.policy_loss._target_={TARGET}",
        "actor_rollout_ref.actor.policy_loss.loss_mode=trustclip",
        "+actor_rollout_ref.actor.policy_loss.method=icepop",
    ]
    forwarded = (
        "+actor_rollout_ref.actor.policy_loss.rollout_correction=${algorithm.rollout_correction}"
    )
    with pytest.raises(Exception, match="rollout_is=token"):
        omega_conf_to_dataclass(composed(*overrides)["actor_rollout_ref"]["actor"])
    config = omega_conf_to_dataclass(composed(*overrides, forwarded)["actor_rollout_ref"]["actor"])
    assert config.policy_loss.constraint() == tc.method("icepop")
