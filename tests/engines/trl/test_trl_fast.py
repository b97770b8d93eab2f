"""What the TRL engine does not compute: prompts in the head, completions that cannot matter."""

import pytest
import torch
from test_trl_engine import gradient_of, one_batch
from trl_runs import assert_same_weights, build, constrained, needs

from trustclip.engines.trl.scoring import forward
from trustclip.engines.trl.scoring.skipping import widen

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def rows_of_passes(trainer):
    """Number of rows of every forward pass from here on."""
    rows, score = [], trainer._score

    def counted(policy, model, ids, *rest, **more):
        rows.append(len(ids))
        return score(policy, model, ids, *rest, **more)

    trainer._score = counted
    return rows


def with_zeros(inputs, advantages=(1.0, 0.0, 0.25, 0.0, 0.0, 0.0)):
    return {**inputs, "advantages": torch.tensor(advantages)}


@pytest.mark.parametrize(
    ("method", "loss_type"),
    [
        *(("atr", loss_type) for loss_type in LOSS_TYPES),
        *((method, "dapo") for method in ("clip_higher", "gspo", "soft_gate", "cispo")),
    ],
)
def test_the_gradient_is_the_same_without_what_cannot_matter(tmp_path, method, loss_type):
    settings = {"method": method, "loss_type": loss_type}
    whole = build(tmp_path, **settings, skip_zero_advantage=False)
    fast = build(tmp_path, **settings)
    inputs = with_zeros(one_batch(whole))
    all_rows, some_rows = rows_of_passes(whole), rows_of_passes(fast)
    want, got = gradient_of(whole, inputs), gradient_of(fast, inputs)
    assert want.norm() > 1e-4
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-6 * want.norm().item())
    assert (all_rows, some_rows) == ([6], [2])
    assert fast._metrics["train"]["trustclip/skipped"] == [pytest.approx(2 / 3)]
    assert whole._metrics["train"]["trustclip/skipped"] == [0.0]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ppo_penalty"},
        {"method": "trpo"},
        {"method": "clip", "entropy_coef": 0.1},
        {"method": "clip", "top_entropy_quantile": 0.5},
        {"method": "clip", "skip_zero_advantage": False},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_nothing_is_left_out_where_it_could_matter(tmp_path, settings):
    trainer = build(tmp_path, **settings)
    inputs = with_zeros(one_batch(trainer))
    rows = rows_of_passes(trainer)
    gradient_of(trainer, inputs)
    assert rows == [6]


def test_a_batch_without_advantage_still_takes_part(tmp_path):
    trainer = build(tmp_path, method="atr")
    inputs = with_zeros(one_batch(trainer), [0.0] * 6)
    rows = rows_of_passes(trainer)
    gradient = gradient_of(trainer, inputs)
    assert rows == [1] and not gradient.any()
    assert trainer._windows["train"].read() == {}  # the row that took part is no measurement


@pytest.mark.parametrize("method", ["full_kl", "clip_cov", "atr"])
def test_training_is_the_same_without_what_cannot_matter(tmp_path, monkeypatch, method):
    import trl_runs

    monkeypatch.setattr(trl_runs, "share_of_even_digits", reward_of_half)
    whole = constrained(tmp_path / "a", method, skip_zero_advantage=False)
    fast = constrained(tmp_path / "b", method)
    assert fast.grad_norms == pytest.approx(whole.grad_norms, rel=1e-4)
    assert_same_weights(fast.parameters, whole.parameters)
    skipped = fast.column("trustclip/skipped")
    assert 0.2 < sum(skipped) / len(skipped) < 0.9
    for name in ("trustclip/gated/positive_above", "entropy"):
        assert fast.column(name) != whole.column(name)  # of the tokens that can matter


def reward_of_half(prompts, completions, **_):
    """Half of the prompts give every completion the same reward."""
    import trl_runs

    dense = [sum(ch in "02468abcdefgh" for ch in text) / max(len(text), 1) for text in completions]
    half = set(trl_runs.PROMPTS[::2])
    return [0.5 if p in half else r for p, r in zip(prompts, dense, strict=True)]


@needs("trl>=1.15")
def test_only_completion_tokens_enter_the_head(tmp_path, monkeypatch):
    trainer = build(tmp_path, method="atr")
    seen = []
    kept = forward.scored

    def spy(head, hidden, ids, plan):
        seen.append((len(ids), int((ids >= 0).sum())))
        return kept(head, hidden, ids, plan)

    inputs = one_batch(trainer)
    monkeypatch.setattr(forward, "scored", spy)
    gradient_of(trainer, inputs)
    scored = inputs["completion_mask"][inputs["advantages"] != 0]
    assert seen == [(5 * 12, int(scored.sum()))]


def test_the_entropy_beside_skipped_completions_is_over_tokens_and_not_padding() -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]])
    entropies = torch.tensor([[2.0, 2.0, 2.0, 2.0], [7.0, 50.0, 50.0, 50.0]])
    inputs = {"completion_mask": mask, "old_per_token_logps": None}
    _, wide = widen(inputs, torch.tensor([0, 1]), -torch.ones(2, 4), entropies)
    assert (wide * mask).sum() / mask.sum() == pytest.approx((2.0 * 4 + 7.0) / 5)
