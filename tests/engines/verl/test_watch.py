# pyright: reportMissingImports=false
"""``loss_mode=trustclip_watch``: the configured loss to the last bit, and what its gate did."""

import dataclasses
from typing import Any

import engine_cases
import pytest
import torch

import trustclip as tc

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import PolicyLossConfig
from verl_calls import actor, called, settings_of

from trustclip.engines.verl import TrustclipLossConfig
from trustclip.engines.verl.checks import Installed, remarks
from trustclip.engines.verl.limits import TARGET, WATCH

#: verl's own losses that gate, settings under which they do, and the method with their gate.
GATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vanilla": (
        {"clip_ratio_low": 0.1, "clip_ratio_high": 0.15, "clip_ratio_c": 1.3},
        {"name": "dual_clip", "low": 0.1, "high": 0.15, "ceiling": 1.3},
    ),
    "gspo": (
        {"clip_ratio_low": 0.02, "clip_ratio_high": 0.03},
        {"name": "gspo", "low": 0.02, "high": 0.03},
    ),
    "dppo_tv": (
        {"clip_ratio_low": 0.02, "clip_ratio_high": 0.02, "clip_ratio_c": 20.0},
        {"name": "dppo", "delta": 0.02},
    ),
}


def watching(watched: str, **settings: Any) -> Any:
    config = actor(TrustclipLossConfig(loss_mode=WATCH, watched=watched, **settings))
    return dataclasses.replace(config, **GATES.get(watched, ({}, {}))[0])


@pytest.mark.parametrize("watched", ["vanilla", "dppo_kl", "gspo", "sapo", "geo_mean", "cispo",
                                     "clip_cov", "kl_cov"])  # fmt: skip
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_gradient_and_random_state_are_those_of_the_watched_loss(watched, weighted) -> None:
    batch = engine_cases.batch_for(tc.method("clip"))
    weights = torch.linspace(0.2, 2.0, batch.logp.numel()).view_as(batch.logp) if weighted else None
    mode = "seq-mean-token-mean"
    torch.manual_seed(0)
    plain = dataclasses.replace(watching(watched), policy_loss=PolicyLossConfig(loss_mode=watched))
    want = called(batch, plain, mode, weights)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    got = called(batch, watching(watched, shadows=["atr", "kl2"]), mode, weights)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert {k: got[2][k] for k in want[2] if "trustclip" not in k} == {
        k: v for k, v in want[2].items() if "trustclip" not in k
    }


@pytest.mark.parametrize("watched", GATES)
def test_the_gate_is_read_off_the_gradient_of_the_loss(watched) -> None:
    method = tc.as_method(GATES[watched][1])
    batch = engine_cases.batch_for(method)
    # A token that verl's correction drops, here every one that the gate keeps, is not cut by it.
    drops = (~method.surrogate(batch).kept).float()
    _, _, metrics = called(batch, watching(watched, shadows=[method, "cispo"]), is_weights=drops)
    _, _, ours = called(batch, actor(settings_of(method)))
    assert ours["trustclip/gated"] > 0.05, "the comparison would be empty"
    for name, value in ours.items():
        if name.startswith("trustclip/"):
            assert metrics[name] == pytest.approx(value, abs=1e-6), name
    (own,) = {k.split("/")[2] for k in metrics if k.startswith(f"trustclip/shadow/{method.name}")}
    for key in ("gated", "both"):
        value = metrics[f"trustclip/shadow/{own}/{key}"]
        assert value == pytest.approx(ours["trustclip/gated"])
    assert metrics["trustclip/shadow/cispo/gated"] == 0
    assert not any("cosine" in name or "precision" in name for name in metrics)


def test_shadows_beside_a_method_of_trustclip() -> None:
    batch = engine_cases.batch_for(tc.method("atr"))
    alone = called(batch, actor(TrustclipLossConfig(method="atr")))
    config = actor(TrustclipLossConfig(method="atr", shadows=[{"name": "clip", "epsilon": 0.1}]))
    loss, gradient, metrics = called(batch, config)
    assert torch.equal(loss, alone[0]) and torch.equal(gradient, alone[1])
    want = tc.policy_loss(tc.method("clip", epsilon=0.1), batch).metrics["gated"]
    gated = metrics["trustclip/shadow/clip(epsilon=0.1)/gated"]
    assert gated == pytest.approx((want[0] / want[1]).item()) and gated > 0


def test_no_gradient_no_metrics() -> None:
    batch = engine_cases.batch_for(tc.method("clip"))
    with torch.no_grad():
        _, metrics = POLICY_LOSS_REGISTRY[WATCH](
            old_log_prob=batch.logp_old,
            log_prob=batch.logp,
            advantages=batch.advantages,
            response_mask=batch.mask,
            config=watching("vanilla"),
        )
    assert not any(name.startswith("trustclip") for name in metrics)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"watched": "vanila"}, "did you mean 'vanilla'"),
        ({"watched": "trustclip_atr"}, "unknown loss mode to watch"),
        ({"method": "atr"}, "ignores `method`"),
        ({"shadows": ["full_kl"]}, "'full_kl' cannot be a shadow in verl"),
        ({"shadows": ["atrr"]}, "did you mean 'atr'"),
    ],
)
def test_wrong_settings_are_refused_by_verl_and_by_doctor(settings, words) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        TrustclipLossConfig(loss_mode=WATCH, **settings)
    assert words in str(error.value)
    policy = {"loss_mode": WATCH, "_target_": TARGET, **settings}
    config = {"actor_rollout_ref": {"actor": {"policy_loss": policy}}}
    found = [f.text for f in remarks(config, Installed("0.9.1", tuple(POLICY_LOSS_REGISTRY)))]
    assert any(words in text for text in found)


def test_doctor_says_what_is_trained_with() -> None:
    policy = {"loss_mode": WATCH, "_target_": TARGET, "watched": "gspo"}
    config = {"actor_rollout_ref": {"actor": {"policy_loss": policy, "clip_ratio": 0.3}}}
    found = list(remarks(config, Installed("0.9.1", tuple(POLICY_LOSS_REGISTRY))))
    assert [f.level for f in found] == ["note"] and "trains with 'gspo'" in found[0].text
