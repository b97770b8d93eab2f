"""Full fine-tuning in TRL: the head's gradient is made in the forward pass, and is TRL's."""

import pytest
import torch
from test_head_foreseen import again as again
from test_trl_engine import gradient_of, one_batch
from test_trl_fast import BUILT, LOSS_TYPES, build, with_zeros
from trl_runs import assert_same_weights, constrained

from trustclip.engines.trl import fast_paths
from trustclip.engines.trl.scoring import foresight


def both(tmp_path, **settings):
    """The gradient of one batch with TRL's head, and with ours; and the trainer of the latter."""
    theirs = build(tmp_path, *BUILT, **settings, head="trl")
    ours = build(tmp_path, *BUILT, **settings)
    inputs = with_zeros(one_batch(theirs))
    return gradient_of(theirs, inputs), gradient_of(ours, inputs), ours


def assert_alike(got, want):
    assert want.norm() > 1e-4
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-6 * want.norm().item())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("method", ["atr", "soft_gate", "cispo", "dual_clip"])
def test_no_tile_is_made_again(tmp_path, loss_type, method, again):
    want, got, ours = both(tmp_path, method=method, loss_type=loss_type)
    assert fast_paths.obstacle("foresight", ours) is None
    assert_alike(got, want)
    assert again == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "gspo"}, "depends on other tokens in 'gspo'"),
        ({"method": "trpo"}, "depends on other tokens in 'trpo'"),
        ({"method": "full_kl"}, "`kl_old_new`, which is measured after the pass"),
        ({"method": "clip", "entropy_coef": 0.1}, "entropy bonus"),
        ({"method": "clip", "top_entropy_quantile": 0.5}, "leaves out tokens"),
        ({"method": "clip", "head": "trl"}, "TRL's output head is used"),
    ],
    ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else "",
)
def test_what_cannot_be_foreseen_is_declined_with_a_reason(tmp_path, settings, reason, again):
    ours = build(tmp_path, *BUILT, **settings)
    assert reason in (fast_paths.obstacle("foresight", ours) or "")
    gradient_of(ours, with_zeros(one_batch(ours)))
    assert len(again) == (settings.get("head") != "trl")


def test_a_frozen_head_is_declined(tmp_path):
    ours = build(tmp_path, *BUILT, method="atr")
    ours.model.get_output_embeddings().weight.requires_grad_(False)
    assert "frozen" in (fast_paths.obstacle("foresight", ours) or "")


def test_a_wrong_expectation_makes_the_tiles_again_and_nothing_wrong(tmp_path, monkeypatch, again):
    kept = foresight.weights

    def wrong(*given):
        found = kept(*given)
        found[0] *= 2  # a completion that the loss does not weigh so
        return found

    monkeypatch.setattr(foresight, "weights", wrong)
    want, got, _ = both(tmp_path, method="atr", loss_type="grpo")
    assert_alike(got, want)
    assert len(again) == 1


def test_a_penalty_set_later_is_seen(tmp_path, again):
    trainer = build(tmp_path, *BUILT, method="clip")
    trainer.beta = 0.1
    assert "KL penalty" in (fast_paths.obstacle("foresight", trainer) or "")


@pytest.mark.parametrize("method", ["atr", "clip_higher"])
def test_training_is_that_of_trl_s_head_step_by_step(tmp_path, method, again):
    ours = constrained(tmp_path / "a", method, head="trustclip")
    assert again == []
    theirs = constrained(tmp_path / "b", method, head="trl")
    assert ours.grad_norms == pytest.approx(theirs.grad_norms, rel=1e-4)
    assert_same_weights(ours.parameters, theirs.parameters)
