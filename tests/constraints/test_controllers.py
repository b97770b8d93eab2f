"""Thresholds that adapt: bounded, pure, the same in YAML and Python, and at their target."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import random_batch

import trustclip as tc
from trustclip.constraints import adaptive, controllers, diagnostics
from trustclip.constraints.adaptive import Adaptive, adapts

GATE = {"controller": "target_gate", "share": 0.02, "initial": 0.07}


def atr(**settings) -> Adaptive:
    method = tc.method("atr", delta={**GATE, **settings})
    assert isinstance(method, Adaptive)
    return method


def delta(method: tc.Method) -> float:
    return method.inner.delta  # type: ignore[attr-defined]


# What it is --------------------------------------------------------------------------------------


def test_until_it_moves_it_is_the_method() -> None:
    plain = tc.method("atr", delta=0.07)
    batch = random_batch(plain)
    got, want = atr().surrogate(batch), plain.surrogate(batch)
    assert torch.equal(got.objective, want.objective) and torch.equal(got.kept, want.kept)
    assert tc.interval(atr()) == tc.interval(plain)
    metrics = tc.policy_loss(atr(), batch).metrics
    total, count = metrics["threshold/delta"]
    assert (total / count).item() == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("name", "hyperparameters", "words"),
    [
        ("atr", {"delta": {"controller": "target_gat"}}, "did you mean 'target_gate'"),
        ("atr", {"delta": {**GATE, "shre": 1}}, "'shre' of .* target_gate; did you mean 'share'"),
        ("atr", {"delta": {"controller": "target_gate"}}, "needs `share`"),
        ("atr", {"delta": {**GATE, "share": 1.5}}, r"`share` must be in \(0, 1\), got 1.5"),
        ("atr", {"delta": {**GATE, "rate": 0}}, "`rate` should be greater than 0"),
        ("atr", {"delta": {**GATE, "low": 0.1}}, r"0.07 is not within \[0.1, 0.28\]"),
        ("atr", {"detla": GATE}, "did you mean 'delta'"),
        ("atr", {"side": {"controller": "target_gate", "share": 0.1}}, "there is no default"),
        ("clip", {"epsilon": {**GATE, "initial": 0.5}}, "less than or equal to 1.*another `high`"),
        ("bandpo", {"dual_ceiling": {"controller": "per_token"}}, "needs `initial`"),
        ("gspo", {"low": {"controller": "per_token"}}, "one number for all tokens.*atr.delta"),
    ],
)
def test_what_cannot_be_is_refused_at_once(name: str, hyperparameters: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tc.method(name, **hyperparameters)


# By update ---------------------------------------------------------------------------------------

METRIC = st.floats(min_value=0) | st.just(math.nan)


@given(st.lists(METRIC, max_size=30), st.sampled_from(["rises", "falls"]), st.floats(0.01, 1))
@settings(deadline=None, max_examples=60)
def test_bounded_whatever_the_metric(metrics: list[float], response: str, rate: float) -> None:
    target = controllers.Target(metric="k3", target=0.01, response=response, rate=rate)  # type: ignore[arg-type]
    method: tc.Method = tc.method("atr", delta=target)
    for metric in metrics:
        after = method.after({"k3": metric})
        assert 0.07 / 4 <= delta(after) <= 0.07 * 4
        factor = delta(after) / delta(method)
        assert 0.5 - 1e-12 <= factor <= 2 + 1e-12
        if math.isfinite(metric):
            widened = (metric < 0.01) == (response == "rises")
            assert (factor >= 1) if widened or metric == 0.01 else (factor <= 1)
        else:
            assert factor == 1
        method = after


def test_a_step_by_hand() -> None:
    """Share 0.03 at target 0.02: half too many, so the threshold rises by e^(0.1 / 2)."""
    assert delta(atr().after({"gated": 0.03})) == pytest.approx(0.07 * math.exp(0.05), rel=1e-12)
    low = tc.method("ppo_penalty", beta=controllers.target_kl(kl=0.01, response="falls"))
    assert low.after({"k3": 0.02}).inner.beta == pytest.approx(math.exp(0.1))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="unknown metric for a controller 'gated'"):
        atr().after({"k3": 0.1})
    with pytest.raises(ValueError, match=r"`gated` is \(sum, count\): give the mean"):
        atr().after(tc.policy_loss("atr", random_batch(atr())).metrics)  # type: ignore[arg-type]


def test_after_changes_nothing_in_place_and_state_restores() -> None:
    before = atr()
    moved = before.after({"gated": 0.5}).after({"gated": 0.1})
    assert delta(before) == 0.07 and before == atr()
    state = json.loads(json.dumps(adaptive.state(moved)))
    assert adaptive.restored(before, state) == moved != before
    assert tc.method("clip").after({"gated": 1.0}) == tc.method("clip")
    # The bounds stay those of the start, however far it has gone.
    for _ in range(200):
        moved = moved.after({"gated": 1.0})
    assert delta(moved) == pytest.approx(0.28)


def test_parts_adapt_by_the_metrics_of_the_whole() -> None:
    spec = {"name": "both", "first": {"name": "atr", "delta": GATE}, "second": "clip"}
    joined = tc.as_method(spec)
    moved = joined.after({"gated": 0.1})
    assert adapts(joined) and delta(moved.first) > 0.07  # type: ignore[attr-defined]
    assert adaptive.restored(joined, adaptive.state(moved)) == moved
    assert tc.method(**joined.to_dict()) == joined


def test_the_gate_share_reaches_its_target() -> None:
    """Ratios of another width each generation, and at 1 in its first update, as in training."""
    generator = torch.Generator().manual_seed(0)
    method: tc.Method = atr(rate=0.2, low=1e-4, high=1.0)
    shares = []
    for update in range(250):
        spread = 0.0 if update % 4 == 0 else 0.1 + 0.05 * math.sin(update / 40)
        x = spread * torch.randn(8, 100, generator=generator)
        advantages = torch.randn(8, 1, generator=generator).expand(8, 100)
        mask = torch.ones(8, 100, dtype=torch.bool)
        batch = tc.TokenBatch(x - 3, torch.full_like(x, -3.0), advantages, mask)
        window = diagnostics.Window()
        window.add(batch, method.surrogate(batch))
        shares.append(window.read()["gated"])
        method = method.after(window.read())
    assert sum(shares[100:]) / 150 == pytest.approx(0.02, rel=0.1)
    assert delta(method) < 0.03


def test_the_divergence_reaches_its_target() -> None:
    """A bandit of 8 actions, 8 updates a generation, of which the first alone stays below it."""
    torch.manual_seed(0)
    hold = controllers.target_kl(kl=0.01, rate=0.05, low=1e-5, high=1.0)
    method: tc.Method = tc.method("atr", delta=hold)
    logits, seen = torch.zeros(8, requires_grad=True), []
    for generation in range(70):
        reward = torch.randn(8)  # another task each time, so that it never settles
        old = logits.detach().log_softmax(0)
        actions = torch.multinomial(old.exp(), 256, replacement=True)
        advantages = (reward[actions] - reward[actions].mean())[:, None]
        for _ in range(8):
            logp = logits.log_softmax(0)[actions][:, None]
            batch = tc.TokenBatch(logp, old[actions][:, None], advantages, advantages < 9)
            loss = tc.policy_loss(method, batch)
            (gradient,) = torch.autograd.grad(loss.value, logits)
            logits.data -= gradient
            means = {name: (total / count).item() for name, (total, count) in loss.metrics.items()}
            method = method.after(means)
            seen += [means["k3"]] * (generation >= 30)
        logits.data *= 0.7  # and never runs into a corner
    assert sum(seen) / len(seen) == pytest.approx(0.01, rel=0.15)


# By token ----------------------------------------------------------------------------------------

PER_TOKEN = [
    (name, field) for name, cls in tc.methods().items() for field in adaptive.by_token(cls)
]


@pytest.mark.parametrize(("name", "field"), PER_TOKEN)
def test_a_threshold_for_each_token_is_each_tokens_threshold(name: str, field: str) -> None:
    """By the number for all tokens that `low` = `high` makes of it, and column by column."""
    start = {"dppo": 0.1}.get(name, 0.15)
    plain = tc.method(name, **{field: start})
    batch = random_batch(plain)
    batch = dataclasses.replace(batch, entropy=torch.rand_like(batch.logp))
    same = controllers.per_token(initial=start, low=start, high=start)
    want = tc.coefficient(plain, batch)
    assert torch.equal(tc.coefficient(tc.method(name, **{field: same}), batch), want)
    varied = controllers.per_token(by="entropy", initial=start, low=start / 3, high=start * 3)
    got = tc.coefficient(tc.method(name, **{field: varied}), batch)
    thresholds = varied.thresholds(start, batch)
    differs = 0
    for row, column in torch.nonzero(batch.mask).tolist():
        one = tc.method(name, **{field: thresholds[row, column].item()})
        alone = tc.coefficient(one, batch)[row, column]
        assert got[row, column] == alone
        differs += int(alone != want[row, column])
    assert differs, "no token's gate depends on its threshold: the comparison is empty"


def test_by_old_probability_it_is_the_limit_of_a_kl_threshold() -> None:
    p, budget = 1e-4, 2e-5  # delta / p = 0.2
    x = torch.linspace(-0.9, 0.9, 181, dtype=torch.float64)[None]
    old = torch.full_like(x, math.log(p))
    batch = tc.TokenBatch(old + x, old, x.sign(), x.isfinite())
    scaled = controllers.per_token(initial=budget, high=1.0)
    exact = tc.method("bandpo", ceiling=None, delta=budget)
    got = tc.method("atr", delta=scaled).surrogate(batch).kept
    assert torch.equal(got, exact.surrogate(batch).kept) and not got.all() and got.any()


@pytest.mark.parametrize("right", [1, 3, 7])
def test_by_difficulty_the_threshold_follows_the_share_of_wrong_answers(right: int) -> None:
    rewards = (torch.arange(8) < right).double()
    a = (rewards - rewards.mean()) / rewards.std(correction=0)
    old = torch.full((8, 2), -1.0)
    batch = tc.TokenBatch(old, old, a[:, None].expand(8, 2), old < 0)
    by = controllers.per_token(by="difficulty", scale=0.5)
    want = torch.full((8, 2), 0.1 * (1 - right / 8) / 0.5, dtype=torch.float64)
    torch.testing.assert_close(by.thresholds(0.1, batch), want, rtol=1e-12, atol=0)
    method = tc.method("atr", delta=by)
    assert tc.check(method) and method.requires == ()


def test_what_it_looks_at_must_be_there() -> None:
    method = tc.method("atr", delta=controllers.per_token(by="entropy"))
    assert method.requires == ("entropy",)
    with pytest.raises(ValueError, match="`entropy`"):
        tc.coefficient(method, random_batch(tc.method("atr")))
    with pytest.raises(ValueError, match="differs from token to token"):
        tc.interval(method)


# In TRL ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    pytest.importorskip("trl")
    from durable_runs import grpo

    settings = {
        "method": {
            "name": "atr",
            "delta": {"controller": "target_kl", "kl": 1e-3, "rate": 0.5},
        },
        "steps_per_generation": 4,
        "num_iterations": 2,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "max_steps": 8,
    }
    folder = tmp_path_factory.mktemp("adaptive")
    trainer = grpo(folder / "whole", **settings)
    assert trainer.train_durably()
    return folder, settings, trainer


def test_an_update_moves_the_threshold_by_its_own_metrics(runs) -> None:
    _, _, trainer = runs
    rows = [row for row in trainer.state.log_history if "trustclip/threshold/delta" in row]
    assert len(rows) == 8
    method = trainer.args.constraint()
    for row in rows:
        assert row["trustclip/threshold/delta"] == pytest.approx(delta(method), rel=1e-5)
        method = method.after({"k3": row["trustclip/k3"]})
    assert delta(trainer.method) == pytest.approx(delta(method), rel=1e-9) != 0.07


@pytest.mark.parametrize("forgotten", [False, True])
def test_it_continues_where_it_was(runs, monkeypatch, forgotten: bool) -> None:
    from durable_runs import cut, differences, grpo

    from trustclip.train.trainers import DurableGRPOTrainer

    folder, options, _ = runs
    if forgotten:
        restore = DurableGRPOTrainer._restore
        monkeypatch.setattr(
            DurableGRPOTrainer,
            "_restore",
            lambda self, p: restore(self, p | {"method": adaptive.state(self.method)}),
        )
    there = cut(folder / "whole", folder / f"cut-{forgotten}", 3)
    assert grpo(there, **options).train_durably()
    same = differences(folder / "whole", there, after=3) == []
    assert same != forgotten


@pytest.mark.parametrize(("divergence", "delta"), [("binary_tv", 0.15), ("binary_kl", 0.05)])
def test_a_default_that_goes_by_another_setting_is_the_controllers(
    divergence: str, delta: float
) -> None:
    """`dppo` has no number in `delta`, and the paper's for each divergence."""
    adaptive = tc.method("dppo", divergence=divergence, delta={"controller": "per_token"})
    named = tc.method("dppo", divergence=divergence, delta=controllers.per_token(initial=delta))
    batch = random_batch(named)
    assert torch.equal(tc.coefficient(adaptive, batch), tc.coefficient(named, batch))
    assert adaptive.to_dict()["delta"] == {"controller": "per_token", "by": "p_old", "scale": 1.0}


def test_a_controller_at_its_limit_is_logged() -> None:
    method = atr()
    shares = []
    for _ in range(40):
        total, count = tc.policy_loss(method, random_batch(method)).metrics[
            "threshold/delta/at_limit"
        ]
        shares.append((total / count).item())
        method = method.after({"gated": 0.0})  # nothing is ever gated: down to a quarter
    assert shares[0] == 0 and shares[-1] == 1 and sorted(shares) == shares
    assert method.inner.delta == pytest.approx(0.07 / 4)  # type: ignore[attr-defined]


def test_a_threshold_of_each_token_says_how_many_are_at_a_limit() -> None:
    method = tc.method("atr", delta=controllers.per_token())
    batch = random_batch(method)
    total, count = tc.policy_loss(method, batch).metrics["threshold/delta/at_limit"]
    wide = (batch.p_old[batch.mask] <= 0.25).double().mean().item()
    assert (total / count).item() == pytest.approx(wide)
