"""Prompts that pass the model once for all of their completions, against a pass for each."""

from typing import Any

import pytest
import torch
from llamas import KINDS, small_llama
from trl_runs import assert_same_weights, constrained, needs

from trustclip.engines.trl.scoring.forward import use_head
from trustclip.engines.trl.scoring.sharing import regroup, share_prompts

pytestmark = needs("trl>=1.15")

#: Ten tokens of room; prompts of three lengths, one of them for three rows apart from each other.
PROMPTS = [[5, 9, 17], [4, 3, 8, 7, 12, 5], [5, 9, 17], [9], [5, 9, 17], [4, 3, 8, 7, 12, 5]]
LENGTHS = [4, 7, 1, 5, 7, 0]


def batch():
    torch.manual_seed(0)
    rows = len(PROMPTS)
    ids, mask = torch.zeros(rows, 13, dtype=torch.long), torch.zeros(rows, 13, dtype=torch.long)
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        ids[row, 6 - len(prompt) : 6] = torch.tensor(prompt)
        ids[row, 6 : 6 + length] = torch.randint(1, 30, (length,))
        mask[row, 6 - len(prompt) : 6 + length] = 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :6] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def scores(model, shares, given):
    request = use_head(model, 0.7)
    request.entropy = True
    if shares:
        share_prompts(inner(model))
        request.shares = True
    out = model(**given, fused_lm_head=True)
    weights = torch.linspace(-1, 2, out.log_probs.numel()).view_as(out.log_probs)
    (out.log_probs * weights).sum().backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    return out, {n: p.grad for n, p in trained.items()}


def inner(model):
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_gradients_are_the_same(kind, adapter):
    given = batch()
    want, wanted = scores(small_llama(kind, adapter), False, given)
    got, found = scores(small_llama(kind, adapter), True, given)
    torch.testing.assert_close(got.log_probs, want.log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.entropy, want.entropy, atol=1e-5, rtol=0)
    assert wanted.keys() == found.keys()
    for name, gradient in wanted.items():
        assert gradient is not None and gradient.norm() > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_each_prompt_passes_once_and_padding_never(monkeypatch):
    model: Any = small_llama("Llama")
    seen, forward = [], type(model.model).forward

    def counted(self, **inputs):
        seen.append(tuple(inputs["input_ids"].shape))
        return forward(self, **inputs)

    monkeypatch.setattr(type(model.model), "forward", counted)
    scores(model, True, batch())
    assert seen == [(1, (3 + 6 + 1) + sum(max(n - 1, 0) for n in LENGTHS))]


@pytest.mark.parametrize("changes", [{}, {"lora": True}, {"gradient_checkpointing": True}], ids=str)
def test_training_is_the_same_with_shared_prompts(tmp_path, changes):
    alone = constrained(tmp_path / "a", "atr", share_prompts=False, **changes)
    shared = constrained(tmp_path / "b", "atr", share_prompts=True, **changes)
    assert shared.trainer._request.shares
    assert shared.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
    assert_same_weights(shared.parameters, alone.parameters)
    for name in ("loss", "entropy", "trustclip/k3", "trustclip/gated", "trustclip/skipped"):
        assert shared.column(name) == pytest.approx(alone.column(name), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    "loss_type", ["dapo", *(pytest.param(a, marks=pytest.mark.slow) for a in ("dr_grpo", "bnpo"))]
)
def test_a_reference_and_half_the_update_accumulated_are_the_same(tmp_path, loss_type):
    changes = {
        "lora": True, "beta": 0.05, "loss_type": loss_type,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
    }  # fmt: skip
    alone = constrained(tmp_path / "a", "clip", share_prompts=False, **changes)
    shared = constrained(tmp_path / "b", "clip", share_prompts=True, **changes)
    assert shared.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
    assert_same_weights(shared.parameters, alone.parameters)


def test_completions_of_a_prompt_come_together_within_an_update():
    prompts = torch.tensor([[3], [4], [3], [5], [4], [3], [3], [5]])
    rows = [
        {"prompt_ids": part, "n": [int(x) for x in part], "all": 7} for part in prompts.split(2)
    ]
    found = regroup(rows, 2)
    assert [part["prompt_ids"][:, 0].tolist() for part in found] == [[3, 3], [4, 5], [4, 3], [3, 5]]
    assert [part["n"] for part in found] == [[3, 3], [4, 5], [4, 3], [3, 5]]
    assert {part["all"] for part in found} == {7}


def test_a_tensor_without_a_row_for_each_completion_is_refused():
    prompts = torch.tensor([[3], [4], [3], [4]])
    parts = [{"prompt_ids": p, "pixel_values": torch.ones(6, 2)} for p in prompts.split(2)]
    with pytest.raises(ValueError, match="'pixel_values' has 6 rows for 2 completions"):
        regroup(parts, 2)


def test_exact_divergences_are_measured_in_passes_of_their_own(tmp_path):
    alone = constrained(tmp_path / "a", "full_kl", share_prompts=False)
    shared = constrained(tmp_path / "b", "full_kl", share_prompts=True)
    assert shared.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)


def test_what_cannot_share_prompts_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"share_prompts needs trustclip's head, and head='trl'"):
        constrained(tmp_path, "atr", share_prompts=True, head="trl")
    with pytest.raises(ValueError, match=r"share_prompts cannot serve this model: cast_lm_head"):
        constrained(tmp_path, "atr", share_prompts=True, cast_lm_head_to_fp32=True)


def test_whole_groups_give_an_update_all_completions_of_its_prompts(tmp_path):
    changes = {"per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 8}

    def prompts_of_updates(**more) -> list[int]:
        run = constrained(tmp_path / str(len(more)), "clip", **changes, **more)
        parts = run.trainer._buffered_inputs
        # the padding of prompts is part of what tells them apart
        return [len(part["prompt_ids"].unique(dim=0)) for part in parts]

    assert sum(prompts_of_updates()) > 4
    assert prompts_of_updates(whole_groups=True) == [1, 1, 1, 1]


FEW = {"transformers_continuous_batching_config": {"num_blocks": 64}}  # not half the memory


@pytest.mark.parametrize(
    ("changes", "shares", "said"),
    [
        ({}, True, "Prompts are shared: with prompts of 4 tokens and completions of up to 10 that"),
        ({"max_completion_length": 60}, False, "that would save 4.7%."),
        ({"head": "trl"}, False, "Prompts are not shared: head='trl'."),
        ({"share_prompts": False}, False, ""),
        ({"use_transformers_continuous_batching": True, **FEW}, False, "an attention of its own."),
    ],
    ids=str,
)
def test_lengths_decide_whether_prompts_are_shared(tmp_path, capsys, changes, shares, said):
    trainer = constrained(tmp_path, "atr", max_steps=1, **changes).trainer
    lines = [line for line in capsys.readouterr().out.splitlines() if "rompts are" in line]
    assert trainer.args.share_prompts is shares
    assert len(lines) == bool(said) and all(said in line for line in lines)
    assert trainer._request is None or trainer._request.shares is shares
