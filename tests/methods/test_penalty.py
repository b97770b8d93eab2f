"""A penalty on any method: by hand, against what it stands for, and in both spellings."""

import math
from typing import Any

import pytest
import torch
import trl_runs
from method_cases import random_batch

import trustclip as tc

OLD, ROLLOUT = -2.0, -2.3


def token(x: float, advantage: float) -> tc.TokenBatch:
    """One token whose log-ratio to the old policy is ``x``; the sampler was 0.3 nats below it."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return tc.TokenBatch(
        (OLD + x) * one, OLD * one, advantage * one, one > 0, logp_rollout=ROLLOUT * one
    )


def coefficient(method: tc.Method, batch: tc.TokenBatch) -> float:
    return tc.coefficient(method, batch)[0, 0].item()


@pytest.mark.parametrize(
    ("penalty", "x", "price"),
    [
        (tc.penalty("k2", 0.1), 0.5, 0.1 * 0.5),
        (tc.penalty("k2", 0.1), -0.5, 0.1 * -0.5),
        (tc.penalty("k3", 0.1), 0.5, 0.1 * (math.exp(0.5) - 1)),
        (tc.penalty("k3_reverse", 0.1), 0.5, 0.1 * (1 - math.exp(-0.5))),
        (tc.penalty("abs", 0.1), -0.5, -0.1),
        (tc.penalty("k2", 0.1, anchor="rollout"), 0.5, 0.1 * 0.8),
        (tc.penalty("k3", 0.1, anchor="rollout"), 0.5, 0.1 * (math.exp(0.8) - 1)),
    ],
)
@pytest.mark.parametrize("advantage", [0.0, 2.0, -2.0])
def test_by_hand(penalty: Any, x: float, price: float, advantage: float) -> None:
    free = tc.method("clip_higher", low=1.0, high=1e9)
    got = coefficient(free + penalty, token(x, advantage))
    assert got == pytest.approx(math.exp(x) * advantage - price, rel=1e-12)


def test_a_cut_token_pays_unless_only_the_kept_ones_do() -> None:
    """At w = e^0.5 and A = 2 the clip cuts; at A = -2 it keeps: w A = -2 e^0.5."""
    cut, kept = token(0.5, 2.0), token(0.5, -2.0)
    rest = -2 * math.exp(0.5)
    found = {
        on: (coefficient(m, cut), coefficient(m, kept))
        for on in ("all", "kept", "cut")
        for m in [tc.method("clip") + tc.penalty("k2", 0.1, on=on)]
    }
    assert found == {
        "all": pytest.approx((-0.05, rest - 0.05)),
        "kept": pytest.approx((0.0, rest - 0.05)),
        "cut": pytest.approx((-0.05, rest)),
    }
    assert not (tc.method("clip") + tc.penalty()).surrogate(cut).kept.any()


def test_a_sequence_pays_once_for_the_sum_of_its_log_ratios() -> None:
    batch = random_batch(tc.method("clip"))
    method = tc.method("reinforce") + tc.penalty("k2", 0.2, level="sequence")
    total = batch.log_ratio.sum(dim=1)
    price = method.surrogate(batch).extras["penalty"].sum(dim=1)
    torch.testing.assert_close(price, 0.2 * total.square() / 2 * batch.mask.any(dim=1))
    want = torch.where(batch.mask, batch.advantages - 0.2 * total[:, None], 0.0)
    torch.testing.assert_close(tc.coefficient(method, batch), want)


def test_what_it_stands_for() -> None:
    """PPO's penalty is k3 on an open clip; a rollback pulls only where its gate is closed."""
    batch = random_batch(tc.method("clip"))
    free = tc.method("clip_higher", low=1.0, high=1e9)
    same = tc.coefficient(free + tc.penalty("k3", 0.7), batch)
    torch.testing.assert_close(same, tc.coefficient(tc.method("ppo_penalty", beta=0.7), batch))


def test_penalties_add_up() -> None:
    batch = random_batch(tc.method("clip"))
    once = tc.method("atr") + tc.penalty("k2", 0.5)
    twice = tc.method("atr") + tc.penalty("k2", 0.2) + tc.penalty("k2", 0.3)
    torch.testing.assert_close(tc.coefficient(twice, batch), tc.coefficient(once, batch))
    paid = twice.surrogate(batch).extras["penalty"]
    torch.testing.assert_close(paid, once.surrogate(batch).extras["penalty"])


def test_its_price_adapts_and_the_inner_threshold_too() -> None:
    hold = tc.controllers.target_kl(kl=0.01, initial=0.1, response="falls")
    inner = tc.method("atr", delta=tc.controllers.target_gate(share=0.02))
    method: Any = inner + tc.penalty("k3", hold)
    after = method.after({"k3": 0.05, "gated": 0.1})
    start, now = method.inner, after.inner
    assert now.beta > start.beta and now.inner.inner.delta > start.inner.inner.delta
    assert method.restored(after.state()) == after
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
