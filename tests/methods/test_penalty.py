"""A penalty on any method: its price over a sequence, its traits, and in both spellings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import trl_runs
from method_cases import random_batch

import trustclip as tc
from trustclip.constraints import adaptive
from trustclip.engines.limits import ENGINES, refusal


def test_a_sequence_pays_once_for_the_sum_of_its_log_ratios() -> None:
    batch = random_batch(tc.method("clip"))
    method = tc.method("reinforce") + tc.penalty("k2", 0.2, level="sequence")
    total = batch.log_ratio.sum(dim=1)
    price = method.surrogate(batch).extras["penalty"].sum(dim=1)
    torch.testing.assert_close(price, 0.2 * total.square() / 2 * batch.mask.any(dim=1))


def test_its_price_adapts_and_the_inner_threshold_too() -> None:
    hold = tc.controllers.target_kl(kl=0.01, initial=0.1, response="falls")
    inner = tc.method("atr", delta=tc.controllers.target_gate(share=0.02))
    method: Any = inner + tc.penalty("k3", hold)
    after = method.after({"k3": 0.05, "gated": 0.1})
    start, now = method.inner, after.inner
    assert now.beta > start.beta and now.inner.inner.delta > start.inner.inner.delta
    assert adaptive.restored(method, adaptive.state(after)) == after
    assert tc.as_method(method.to_dict()) == method


def test_traits_are_joined_and_no_trainer_is_its_twin() -> None:
    method = tc.method("clip") + tc.penalty("k2", 1e-3)
    assert method.twins == {}
    assert tc.Trait.CUTS in method.traits and tc.Trait.CLIPS not in method.traits
    assert tc.Trait.MOVES_WITHOUT_ADVANTAGE | tc.Trait.REVERSES in method.traits
    assert tc.interval(method) == tc.interval("clip")
    assert method.requires == ()
    sampler = tc.method("clip") + tc.penalty("k2", 1e-3, anchor="rollout")
    assert sampler.requires == ("logp_rollout",)
    assert tc.Trait.ACTS_ON_POLICY in sampler.traits
    assert tc.Trait.ACTS_ON_POLICY not in method.traits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("k4", 0.1), ["`divergence`", "'k4'", "'k2'"]),
        (("k1", 0.1), ["'k1' needs `anchor` 'ref'", "'old'"]),
        (("k2", -1.0), ["`beta`", "greater than 0", "-1.0"]),
        (("k2", 0.1, "old"), ["positional"]),
    ],
)
def test_a_mistake_is_reported_where_it_is_made(arguments: tuple, words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        tc.penalty(*arguments)
    assert all(word in str(caught.value) for word in words), caught.value


def test_only_a_method_takes_a_penalty() -> None:
    with pytest.raises(TypeError):
        1 + tc.penalty()  # type: ignore[operator]
    with pytest.raises(TypeError):
        tc.method("clip") + 0.1  # type: ignore[operator]
    with pytest.raises(ValueError, match="the method before the"):
        tc.penalty(inner="atr")


def test_completions_without_an_advantage_pay_in_trl(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's engine leaves such completions out of its passes, but not under a penalty."""

    def half_flat(completions: Any, **_: Any) -> list[float]:
        rewards = graded(completions)
        return [1.0] * (len(rewards) // 2) + rewards[len(rewards) // 2 :]

    graded = trl_runs.share_of_even_digits
    monkeypatch.setattr(trl_runs, "share_of_even_digits", half_flat)
    price = {"inner": "clip", "divergence": "k2", "beta": 3.0}
    runs = [
        trl_runs.constrained(tmp_path / name, "penalty", price, skip_zero_advantage=skip)
        for name, skip in (("asked", True), ("never", False))
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].history[-1]["trustclip/zero_advantage"] > 0
    assert runs[0].history[-1]["trustclip/penalty"] > 0
    free = trl_runs.constrained(tmp_path / "free", "clip")
    assert runs[0].history[-1]["trustclip/k2"] < free.history[-1]["trustclip/k2"]


# Against a reference model -----------------------------------------------------------------------

IN_ADVANTAGE = tc.penalty("k1", 0.3, anchor="ref")


def test_k1_takes_from_the_advantage_what_a_part_measures_and_weighs() -> None:
    """Clip-Cov draws by the covariance of the advantages that have paid."""
    inner = tc.method("clip_cov", share=0.2, cov_low=0.05)
    method = inner + IN_ADVANTAGE
    batch = random_batch(method, seed=2)
    mask = batch.mask.numpy()
    k = (batch.logp_old - batch.given("logp_ref")).numpy()
    paid = batch.advantages.numpy() + 0.3 * (k[mask].mean() - k)
    by_hand = replace(batch, advantages=torch.from_numpy(np.where(mask, paid, 0.0)))
    want = tc.coefficient(inner, by_hand)
    assert not torch.equal(want == 0, tc.coefficient(inner, batch) == 0), "the same tokens are cut"
    torch.testing.assert_close(tc.coefficient(method, batch), want)


@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in ("TRL", "your loop")])
def test_an_engine_without_the_reference_models_numbers_refuses(engine: str) -> None:
    reason = refusal(tc.method("clip") + IN_ADVANTAGE, ENGINES[engine])
    assert reason is not None and "needs `logp_ref`" in reason and "reference model" in reason
    assert "trustclip.engines.trl" in reason and reason.count(". ") == 0


def test_a_price_against_the_reference_model_is_trls_own(tmp_path: Any) -> None:
    """Its ``beta``, which TRL adds to the loss; here the method has it, and TRL only the model."""
    price = {"inner": "clip", "divergence": "k3_reverse", "beta": 0.5, "anchor": "ref"}
    ours = trl_runs.constrained(tmp_path / "ours", "penalty", price, lora=True)
    stock = {"beta": 0.5, "use_bias_correction_kl": False, "epsilon": 0.2}
    theirs = trl_runs.plain(tmp_path / "theirs", lora=True, **stock)
    assert ours.trainer.beta == 0
    np.testing.assert_allclose(ours.grad_norms, theirs.grad_norms, rtol=1e-4)
    free = trl_runs.plain(tmp_path / "free", lora=True, epsilon=0.2)
    assert abs(free.grad_norms[-1] / theirs.grad_norms[-1] - 1) > 1e-3


def test_k1_in_trl_is_over_the_generation(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trustclip.engines.trl import ConstrainedGRPOTrainer

    seen: list[tc.TokenBatch] = []
    inner = ConstrainedGRPOTrainer._constrain

    def recorded(self: Any, *given: Any) -> Any:
        gate = inner(self, *given)
        seen.append(gate[0])
        return gate

    monkeypatch.setattr(ConstrainedGRPOTrainer, "_constrain", recorded)
    price = {"inner": "clip", "divergence": "k1", "beta": 5.0, "anchor": "ref"}
    two = {"steps_per_generation": 2, "num_iterations": 1, "max_steps": 6}
    trl_runs.constrained(tmp_path, "penalty", price, lora=True, **two)
    k: list[torch.Tensor] = []
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        k = [(b.logp_old - b.given("logp_ref"))[b.mask] for b in (first, second)]
        for batch in (first, second):
            found = (batch.statistics or {})["mean_k1"]
            torch.testing.assert_close(found, torch.cat(k).mean(), rtol=1e-4, atol=1e-6)
    assert k[0].abs().max() > 1e-3 and k[0].mean() != k[1].mean()
