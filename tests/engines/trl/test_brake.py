"""VCPO's brake: the factor by hand, and in TRL's loop."""

import math
from typing import Any

import pytest
import torch
import trl_runs

from trustclip.constraints.brake import Brake, as_brake
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

SQRT = {"rule": "sqrt"}


@pytest.mark.parametrize(
    ("weights", "share"),
    [
        ([2.0, 2.0, 2.0], 1.0),
        ([1.0, 3.0], 16 / 20),
        ([1.0, 1.0, 1.0, 9.0], 3 / 7),
        ([1e-8, 1.0], 0.5),
    ],
)
def test_the_effective_sample_size_by_hand(weights: list[float], share: float) -> None:
    logs = torch.tensor(weights, dtype=torch.float64).log()
    for shift in (0.0, 900.0, -900.0):  # its exponential is no number; the share does not change
        moved = logs + shift
        assert Brake(rule="linear").factor(moved) == pytest.approx(share, abs=1e-7)
        assert Brake(rule="sqrt").factor(moved) == pytest.approx(math.sqrt(share), abs=1e-7)
        assert Brake().factor(moved) == 1
        half = Brake(rule="linear", reference=0.5).factor(moved)
        assert half == pytest.approx(min(1, 2 * share), abs=1e-7)


def test_completions_without_a_weight_are_left_out() -> None:
    logs = torch.tensor([0.0, math.nan, math.log(3)])
    assert Brake(rule="linear").factor(logs) == pytest.approx(16 / 20)
    with pytest.raises(ValueError, match="no completion of this update"):
        Brake(rule="sqrt").factor(torch.tensor([math.nan]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rule": "root"}, "`rule`.*'off', 'sqrt' or 'linear'"),
        ({"reference": 1.5}, "`reference`"),
        ({"rules": "sqrt"}, "rules"),
    ],
)
def test_a_mistake_is_one_clear_error(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_brake(given)


# TRL -------------------------------------------------------------------------------------------


def run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Any, list[float]]:
    """A run, and the learning rate that the optimizer makes each of its steps with."""
    rates: list[float] = []
    build = ConstrainedGRPOTrainer.create_optimizer

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = build(self, *args, **kwargs)
        optimizer.register_step_pre_hook(lambda opt, *_: rates.append(opt.param_groups[0]["lr"]))
        return optimizer

    given = {"decoder": "auto", "lr_scheduler_type": "linear", **settings}
    with monkeypatch.context() as patch:
        patch.setattr(ConstrainedGRPOTrainer, "create_optimizer", watched)
        return trl_runs.constrained(tmp_path, "clip", **given), rates


def test_the_step_has_the_rate_of_the_metric_and_the_schedule_keeps_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every update's factor is the root of the effective sample size the metrics report."""
    lag = {"sampler": {"lag": 1}, "per_device_train_batch_size": 8, "max_steps": 8}
    lag |= {"gradient_accumulation_steps": 2, "steps_per_generation": 2}
    free, planned = run(tmp_path / "free", monkeypatch, **lag)
    held, rates = run(tmp_path / "held", monkeypatch, brake=SQRT, **lag)
    assert rates != planned and planned == pytest.approx(rates_of(8))
    shares = held.column("trustclip/sampler/current/sequence_ess")
    factors = held.column("trustclip/brake")
    assert factors == pytest.approx([math.sqrt(s) for s in shares], rel=1e-5)
    assert min(factors) < 0.99
    assert rates == pytest.approx([r * f for r, f in zip(planned, factors, strict=True)])
    assert held.column("learning_rate") == free.column("learning_rate")
    assert (
        held.trainer.optimizer.param_groups[0]["lr"] == free.trainer.optimizer.param_groups[0]["lr"]
    )


def rates_of(steps: int) -> list[float]:
    return [trl_runs.COMMON["learning_rate"] * (1 - i / steps) for i in range(steps)]


def test_on_samples_of_its_own_it_does_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num_iterations": 1, "allow_inert": True, "max_steps": 3}
    free, _ = run(tmp_path / "free", monkeypatch, **settings)
    held, _ = run(tmp_path / "held", monkeypatch, brake=SQRT, **settings)
    assert held.column("trustclip/brake") == pytest.approx([1.0] * 3, abs=1e-5)
    torch.testing.assert_close(held.parameters, free.parameters, rtol=1e-4, atol=1e-6)


def test_it_needs_the_samplers_log_probabilities(tmp_path: Any) -> None:
    common = {**trl_runs.COMMON, "use_transformers_continuous_batching": True}
    with pytest.raises(ValueError, match="`brake` weighs completions by the sampler, and"):
        ConstrainedGRPOConfig(str(tmp_path), brake=SQRT, **common)


def test_a_config_keeps_its_brake(tmp_path: Any) -> None:
    args = ConstrainedGRPOConfig(str(tmp_path), brake='{"rule": "linear"}', **trl_runs.COMMON)
    again = ConstrainedGRPOConfig(
        **{**trl_runs.COMMON, "output_dir": str(tmp_path), "brake": args.to_dict()["brake"]}
    )
    assert again.braking() == args.braking() == Brake(rule="linear")


def test_the_recipe_hands_it_on(tmp_path: Any) -> None:
    from trustclip.train.configs import grpo_config
    from trustclip.train.settings.stages import RLStage

    stage = RLStage(dataset="gsm8k", brake={"rule": "sqrt", "reference": 0.9}, num_iterations=2)  # type: ignore[arg-type]
    assert grpo_config(stage, tmp_path).braking() == Brake(rule="sqrt", reference=0.9)
