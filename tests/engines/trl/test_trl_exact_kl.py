"""The exact KL divergence in the TRL engine: for free where the head is frozen, or only watched."""

import pytest
import torch
import trl_runs
from test_trl_fast import reward_of_half
from trl_runs import constrained, needs

from trustclip.engines.trl import ConstrainedGRPOConfig
from trustclip.engines.trl.passthrough import complaints
from trustclip.engines.trl.scoring import exact_kl as exact

#: Nothing is cut, and everything is known.
ALL_KNOWN = {"name": "both", "first": "atr", "second": {"name": "full_kl", "delta": 1000}}


def watched(tmp_path, **settings):
    return constrained(tmp_path, "atr", {"delta": 0.001}, **settings)


@needs("trl>=1.15")
@pytest.mark.parametrize("order", ["old_new", "new_old"])
def test_a_frozen_head_makes_no_logits_again(tmp_path, monkeypatch, order):
    seen = []
    kept = exact.bregman_kl

    def spy(*args, **options):
        seen.append(kept(*args, **options))
        return seen[-1]

    monkeypatch.setattr(exact, "bregman_kl", spy)
    monkeypatch.setattr(exact, "exact_kl", None)
    run = constrained(tmp_path, "full_kl", {"order": order, "delta": 1e-3}, lora=True)
    assert len(seen) == 4  # two generations of three updates, the first of each on-policy
    assert max(run.column(f"trustclip/kl_{order}")) > 1e-3
    assert max(run.column("trustclip/gated")) > 0
    inputs = run.trainer._buffered_inputs[0]
    assert ("old_mean" in inputs) == (order == "old_new")


def test_a_trained_head_makes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "bregman_kl", None)
    run = constrained(tmp_path, "full_kl", {"delta": 1e-3})
    assert max(run.column("trustclip/kl_old_new")) > 1e-3


@pytest.mark.parametrize("decoder", ["auto", "transformers"])
@pytest.mark.parametrize(
    "lora", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["full", "lora"]
)
def test_watching_changes_no_bit_of_the_training(tmp_path, monkeypatch, decoder, lora):
    monkeypatch.setattr(trl_runs, "share_of_even_digits", reward_of_half)
    settings = {"decoder": decoder, "lora": lora, "learning_rate": 1e-2, "share_prompts": False}
    blind = watched(tmp_path / "a", **settings)
    seeing = watched(tmp_path / "b", exact_kl_every=1, **settings)
    assert seeing.grad_norms == blind.grad_norms
    assert torch.equal(seeing.parameters, blind.parameters)
    assert not blind.column("trustclip/kl_old_new")
    assert seeing.column("trustclip/kl_old_new")[::3] == [0, 0]  # on-policy
    assert min(seeing.column("trustclip/kl_old_new")[1:3]) > 0
    for name in ("precision", "recall"):
        assert not blind.column(f"trustclip/agreement/{name}")
        assert 0 < max(seeing.column(f"trustclip/agreement/{name}")) <= 1


def test_it_is_watched_in_every_second_generation_of_two_updates(tmp_path):
    run = watched(tmp_path, exact_kl_every=2, num_iterations=2)
    seen = ["trustclip/kl_old_new" in row for row in run.history]
    assert seen == [True, True, False, False, True, True]


def test_what_is_watched_is_what_a_method_would_have_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(trl_runs, "share_of_even_digits", reward_of_half)
    args = {"first": {"name": "atr", "delta": 0.001}, "second": ALL_KNOWN["second"]}
    a = watched(tmp_path / "a", exact_kl_every=1)
    b = constrained(tmp_path / "b", "both", args)
    assert a.grad_norms == pytest.approx(b.grad_norms, rel=1e-5)
    for name in ("kl_old_new", "agreement/precision", "agreement/recall"):
        want = b.column(f"trustclip/{name}")
        assert len(want) >= 2
        assert a.column(f"trustclip/{name}") == pytest.approx(want, rel=1e-4, abs=1e-7)


def test_every_second_generation(tmp_path):
    run = watched(tmp_path, exact_kl_every=2, max_steps=9)
    known = ["trustclip/kl_old_new" in row for row in run.history]
    assert known == [True] * 3 + [False] * 3 + [True] * 3


def test_less_than_never_is_refused(tmp_path):
    with pytest.raises(ValueError, match="exact_kl_every must be at least 0, got -1"):
        ConstrainedGRPOConfig(str(tmp_path), num_iterations=2, use_cpu=True, exact_kl_every=-1)
    wrong = [("exact_kl_every", "`trl.exact_kl_every` must be at least 0, got -1.")]
    assert list(complaints({"exact_kl_every": -1}, ())) == wrong  # before a recipe's fine-tuning


@needs("trl>=1.15")
@pytest.mark.parametrize(("delta", "fine"), [(1e-4, True), (9e-5, False)])
def test_a_threshold_below_the_noise_is_decided_by_the_exact_sum_and_this_is_said_once(
    tmp_path, recwarn, delta, fine
):
    run = constrained(tmp_path, "full_kl", {"delta": delta}, lora=True)
    said = [str(w.message) for w in recwarn if "below what a KL divergence" in str(w.message)]
    assert len(said) == (not fine)
    assert (run.trainer._watch._request is not None) == fine
    if not fine:
        assert "'full_kl', 9e-05 nats" in said[0] and "float32 (0.0001)" in said[0]
