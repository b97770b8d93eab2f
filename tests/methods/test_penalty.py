"""A penalty on any method: its price over a sequence, its traits, and in both spellings."""

from typing import Any

import pytest
import torch
import trl_runs
from method_cases import random_batch

import trustclip as tc
from trustclip.constraints import adaptive


def test_a_sequence_pays_once_for_the_sum_of_its_log_ratios() -> None:
    batch = random_batch(tc.method("clip"))
    method = tc.method("reinforce") + tc.penalty("k2", 0.2, level="sequence")
    total = batch.log_ratio.sum(dim=1)
    price = method.surrogate(batch).extras["penalty"].sum(dim=1)
    torch.testing.assert_close(price, 0.2 * total.square() / 2 * batch.mask.any(dim=1))
    want = torch.where(batch.mask, batch.advantages - 0.2 * total[:, None], 0.0)
    torch.testing.assert_close(tc.coefficient(method, batch), want)


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
        (("k1", 0.1), ["`divergence`", "'k1'", "'k2'"]),
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
