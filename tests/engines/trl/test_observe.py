"""The observer of a stock GRPOTrainer: the training to the last bit, and the gate of TRL's loss."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import twin_cases
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import build, constrained, plain, share_of_even_digits, train

import trustclip as tc
from trustclip.engines.trl import observe
from trustclip.engines.trl.observer import stock_method

CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": "none"}
NARROW: dict[str, Any] = {"epsilon": 0.02, "epsilon_high": 0.03}
OWN = {"name": "clip_higher", "low": 0.02, "high": 0.03}


def observed(shadows: list[Any]) -> Any:
    """A constructor of an observed stock trainer."""
    return lambda **given: observe(GRPOTrainer(**given), shadows, "full")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NARROW, marks=pytest.mark.slow),
        {"beta": 0.1, "gradient_accumulation_steps": 2, "num_iterations": 2, "lora": True},
        {"loss_type": "cispo", "epsilon_high": 1.5, "entropy_coef": 0.01},
        pytest.param(
            {"importance_sampling_level": "sequence", "loss_type": "grpo", "logging_steps": 2},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda s: "-".join(s),
)
def test_the_training_is_that_of_stock_trl_to_the_last_bit(tmp_path, settings):
    alone = plain(tmp_path / "a", **settings)
    seen = train(tmp_path / "b", GRPOConfig, observed(["atr", OWN, "gspo"]), **settings)
    assert torch.equal(alone.parameters, seen.parameters)
    assert alone.grad_norms == seen.grad_norms
    for theirs, ours in zip(alone.history, seen.history, strict=True):
        assert {k: v for k, v in ours.items() if k in theirs and "time" not in k} == {
            k: v for k, v in theirs.items() if "time" not in k
        }
    assert len(seen.column("trustclip/gated")) == len(seen.history)
    assert seen.column("trustclip/shadow/gspo/gated")


def test_its_metrics_are_those_of_our_trainer_with_the_same_clip(tmp_path):
    """A twin of our own trainer makes the same updates, so it logs the same shares."""
    name, arguments = "clip_higher", {"low": 0.02, "high": 0.03}
    watched = ["atr", "gspo"]
    ours = constrained(
        tmp_path / "a", name, arguments, shadows=watched, skip_zero_advantage=False, head="trl"
    )
    theirs = train(tmp_path / "b", GRPOConfig, observed(watched), **NARROW)
    assert max(ours.column("trustclip/gated")) > 0.05, "the comparison would be empty"
    own, seen = (
        {key for row in run.history for key in row if key.startswith("trustclip/")}
        for run in (ours, theirs)
    )
    assert seen <= own and "trustclip/shadow/gspo/cosine" in seen
    # What stock TRL has no means to know: its sampler's numbers, and when a sample was drawn.
    unknown = ("trustclip/skipped", "trustclip/sampl", "trustclip/k3/lag_")
    assert all(key.startswith(unknown) for key in own - seen)
    for key in seen:
        assert theirs.column(key) == pytest.approx(ours.column(key), rel=1e-3, abs=1e-3), key


def test_the_acting_clip_as_a_shadow_agrees_with_itself(tmp_path):
    run = train(tmp_path, GRPOConfig, observed([OWN]), **NARROW)
    name = "trustclip/shadow/clip_higher(low=0.02,high=0.03)"
    assert run.column(f"{name}/gated") == pytest.approx(run.column("trustclip/gated"))
    assert set(run.column(f"{name}/jaccard")) == {1.0}
    # TRL's own count of the same, over tokens below and above ratio 1.
    region = run.column("clip_ratio/region_mean")
    assert run.column("trustclip/gated") == pytest.approx(region, abs=1e-6)


def test_the_recorded_reward_is_the_one_that_trl_trains_on(tmp_path):
    def second(completions, **_):
        return [2.0 if place % 2 else None for place in range(len(completions))]

    both = {"reward_funcs": [share_of_even_digits, second]}
    trainer = build(tmp_path, given=both, reward_weights=[1.0, 0.25], max_steps=1)
    told: list[Any] = []
    trainer.recorder = SimpleNamespace(generation=told.append, gates=lambda _: None)
    trainer.train()
    assert sum(told[0].total) / 16 == pytest.approx(trainer.state.log_history[0]["reward"])


@pytest.mark.parametrize(("method", "trainer"), twin_cases.of_trainers("TRL"), ids=twin_cases.label)
def test_the_method_of_a_configuration_has_its_gradient(method, trainer, tmp_path):
    """Every twin in TRL, whose gradient other tests prove, is read back from its settings."""
    args = GRPOConfig(str(tmp_path), **CPU, **method.twins[trainer])
    if method.name == "vespo" and method.anchor == "rollout":
        with pytest.raises(ValueError, match="with a correction of the sampler"):
            stock_method(args)
        return
    found, batch = stock_method(args), twin_cases.batch_for(method)
    want = tc.coefficient(method, batch)
    if found.name == "luspo" and method.name != "luspo":
        pytest.fail(f"{method} became {found}")
    torch.testing.assert_close(tc.coefficient(found, batch), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2 drops tokens"),
        ({"loss_type": "cispo"}, "loss_type='cispo' with epsilon_high=0.2"),
        ({"delta": 1.1}, "delta=1.1 cuts"),
        ({"delta": 2.0, "importance_sampling_level": "sequence"}, "at sequence level"),
        ({"loss_type": "luspo"}, "'luspo' at token level"),
    ],
)
def test_settings_that_no_method_states_are_refused(settings, words, tmp_path):
    with pytest.raises(ValueError, match="no method has the gradient of these settings") as error:
        stock_method(GRPOConfig(str(tmp_path), **CPU, **settings))
    assert words in str(error.value)


def test_what_cannot_be_observed_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has `shadows` in its config"):
        observe(build(tmp_path))
    stock = build(tmp_path, GRPOConfig, GRPOTrainer)
    for shadow, words in (("full_kl", "`kl_old_new`"), ("tis", "`logp_rollout`"), ("x", "unknown")):
        with pytest.raises(ValueError, match=words):
            observe(stock, [shadow])
    assert type(stock) is GRPOTrainer  # as it was
    observe(stock)
    with pytest.raises(ValueError, match="observed already"):
        observe(stock)
