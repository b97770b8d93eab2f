"""Gradients that leave out a part of the vocabulary, in the TRL engine."""

import pytest
import test_trl_heads
from test_trl_engine import gradient_of, one_batch
from test_trl_heads import build, model_of

from trustclip.engines.trl import ConstrainedGRPOConfig
from trustclip.head import product


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setitem(product.NARROW, "cpu", 4)


@pytest.mark.parametrize("kind", ["untied", "gemma2"])
def test_the_gradient_is_near_and_what_was_left_out_is_logged(tmp_path, kind):
    inputs = one_batch(build(tmp_path, kind, head="trl"))
    whole, near, far = (build(tmp_path, kind, head_skip=skip) for skip in (0.0, 1e-5, 1e-2))
    for trainer in (whole, near, far):  # peaked, so that blocks are next to nothing
        trainer.model.get_output_embeddings().weight.data.mul_(6)
    want, almost, rough = (gradient_of(trainer, inputs) for trainer in (whole, near, far))
    gap = {name: (x - y).norm() for name, x, y in (("near", almost, want), ("far", rough, want))}
    assert 0 < gap["far"] < 0.05 * want.norm() and gap["near"] < 0.1 * gap["far"]
    (logged,) = far._metrics["train"]["trustclip/head_dropped"]
    assert 0 < logged <= 1e-2
    assert "trustclip/head_dropped" not in whole._metrics["train"]
    assert not far._request.dropped


def test_where_it_cannot_hold_it_is_refused(tmp_path):
    def of(**given):
        return ConstrainedGRPOConfig(str(tmp_path), num_iterations=2, use_cpu=True, **given)

    with pytest.raises(ValueError, match=r"head_skip must be from 0 to 0\.01, got 0\.5"):
        of(head_skip=0.5)
    with pytest.raises(ValueError, match="head='trl' asks for TRL's"):
        of(head_skip=1e-3, head="trl")
    with pytest.raises(ValueError, match="head_skip needs trustclip's head: cast_lm_head"):
        build(tmp_path, "untied", head_skip=1e-3, cast_lm_head_to_fp32=True)


def test_an_exact_kl_from_statistics_needs_the_whole_vocabulary(tmp_path, monkeypatch):
    def frozen(kind):
        model, tokenizer = model_of(kind)
        model.get_output_embeddings().weight.requires_grad_(False)
        return model, tokenizer

    monkeypatch.setattr(test_trl_heads, "model_of", frozen)
    with pytest.raises(ValueError, match="means over the whole vocabulary"):
        build(tmp_path, "untied", head_skip=1e-3, method="full_kl")
    assert build(tmp_path, "untied", head_skip=1e-3, method="atr")._request.skip == 1e-3


def test_a_trained_head_keeps_its_exact_kl(tmp_path):
    trainer = build(tmp_path, "untied", head_skip=1e-3, method="full_kl")
    assert gradient_of(trainer, one_batch(trainer)).isfinite().all()
