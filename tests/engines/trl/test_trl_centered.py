"""Score centering in TRL: candidates of the sampler, and the gradient of dense autograd."""

import math

import pytest
import torch
from trl_runs import build, constrained, fresh_model, needs

import trustclip as tc

pytestmark = needs("trl>=1.15")

LOW, HIGH = tc.interval("atr", delta=0.07)


def dense(model, inputs, temperature):
    """Log-probabilities of every token at every position of the completions. [batch, time, V]"""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=mask).logits
    time = inputs["completion_ids"].shape[1]
    return (logits[:, -time - 1 : -1].float() / temperature).log_softmax(dim=2)


def atr(p, old, advantages):
    """Coefficient of each token; no gradient."""
    w = (p - old).exp().detach()
    return torch.where(torch.where(advantages > 0, w <= HIGH, w >= LOW), w, 0.0)


def expected_loss(p, old, modelled, q, inputs, limit):
    """Minus the mean of A (c_y log p_y - sum_v q_v c_v log p_v), term by term. `p` has a graph.

    `modelled` is the old policy as it is taken to be where a token was not sampled.
    """
    y = inputs["completion_ids"][..., None]
    a = inputs["advantages"][:, None, None]
    own = (atr(p, old, a) * p).gather(2, y)
    drift = (q.exp() * atr(p, modelled, a) * p).sum(dim=2, keepdim=True)
    per_token = (a * (own - drift)).squeeze(2) * inputs["completion_mask"]
    return -per_token.sum() / (len(y) * limit)


def drift_size(p, modelled, q, inputs):
    """Mean square of A sum_v q_v c_v (e_v - p), over the whole vocabulary, where A is not 0."""
    a = inputs["advantages"][:, None, None]
    tokens = inputs["completion_mask"].bool() & (a.squeeze(2) != 0)
    mean = a * q * atr(p, modelled, a)
    mean = mean - mean.sum(dim=2, keepdim=True) * p.exp()
    return mean.square().sum(dim=2)[tokens].mean().item()


def rest_modelled(p, old, q, k):
    """The old policy and the sampler as they are taken to be where only k tokens are known."""
    top = q.topk(k).indices
    inside = torch.zeros_like(q, dtype=torch.bool).scatter(2, top, True)

    def mass(x):
        return (1 - (x.exp() * inside).sum(dim=2, keepdim=True)).clamp(min=1e-6)

    tail = p.detach() - mass(p.detach()).log()
    return tuple(torch.where(inside, x, tail + mass(x).log()) for x in (old, q))


CASES = [
    ({"candidates": 10_000}, "whole"),
    ({"candidates": 8}, "partial"),
    ({"candidates": 10_000, "decoder": "transformers"}, "whole"),
    ({"candidates": 8, "decoder": "transformers"}, "partial"),
    ({"candidates": 16, "decoder": "transformers", "top_k": 12}, "kept"),
    ({"candidates": 8, "share_prompts": True, "loss_type": "dr_grpo"}, "partial"),
]


def second_update(trainer, prompts, seed, noise):
    """Inputs of a generation, and the gradients of its update after the policy has moved."""
    model = trainer.model
    torch.manual_seed(seed)
    model.train()
    inputs = trainer._generate_and_score_completions([{"prompt": text} for text in prompts])
    generator = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    trainer.state.global_step += 1
    trainer.current_gradient_accumulation_steps = 1
    trainer.compute_loss(model, inputs).backward()
    got = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.zero_grad()
    return inputs, got


@pytest.mark.parametrize(("settings", "kind"), CASES, ids=str)
def test_an_update_has_the_gradient_of_dense_autograd(tmp_path, settings, kind):
    """In the second update of a generation, where the ratios have moved and the gate closes."""
    method = {"name": "centered", "inner": "atr"}
    trainer = build(tmp_path, method=method, num_iterations=2, metrics="full", **settings)
    model = trainer.model
    before, _ = fresh_model()
    inputs, got = second_update(trainer, ["1+2="] * 8 + ["3+1="] * 8, seed=3, noise=0)
    p = dense(model, inputs, trainer.temperature)
    with torch.no_grad():
        old = dense(before, inputs, trainer.temperature)
        q = old
    if kind == "kept":
        least = q.topk(12).values[..., -1:]
        q = q.masked_fill(q < least, -torch.inf).log_softmax(dim=2)
    modelled = old
    if kind == "partial":
        modelled, q = rest_modelled(p, old, q, 8)
    expected_loss(p, old, modelled, q, inputs, trainer.max_completion_length).backward()
    want = {name: x.grad for name, x in model.named_parameters()}
    size = math.sqrt(sum((x**2).sum().item() for x in want.values()))
    assert size > 1e-4
    for name, x in want.items():
        torch.testing.assert_close(got[name] / size, x / size, rtol=1e-4, atol=1e-6, msg=name)
    history = {}
    trainer.log(history)
    assert 0 < history["trustclip/gated"] < 1
    size = drift_size(p.detach(), modelled, q.exp(), inputs)
    assert history["trustclip/drift/size"] == pytest.approx(size, rel=1e-3)
    assert history["trustclip/drift/covered"] == pytest.approx(1, abs=1e-5) or kind == "partial"


def test_adapters_train_with_a_frozen_head(tmp_path):
    """Whose gradient in the hidden states is made in the forward pass."""
    run = constrained(
        tmp_path,
        "centered",
        {"inner": {"name": "atr", "delta": 0.001}},
        lora=True,
        max_steps=3,
        candidates=8,
    )
    assert all(math.isfinite(g) and g > 0 for g in run.grad_norms)
    assert max(run.column("trustclip/gated")) > 0


def test_importance_weights_from_the_sampler_leave_nothing_to_center(tmp_path):
    """Then the drift is that of rounding, and the update is the plain one."""
    plain = constrained(tmp_path / "a", "importance_sampling", max_steps=2, decoder="auto")
    run = constrained(tmp_path / "b", "centered", max_steps=2, candidates=10_000, decoder="auto")
    torch.testing.assert_close(
        torch.tensor(run.grad_norms), torch.tensor(plain.grad_norms), rtol=1e-4, atol=1e-7
    )
    assert max(run.column("trustclip/drift/share")) < 1e-8


def test_the_ledger_of_a_method_that_is_not_centered_changes_nothing(tmp_path):
    bare = constrained(tmp_path / "a", "atr", max_steps=4)
    seen = constrained(tmp_path / "b", "atr", max_steps=4, candidates=8)
    assert torch.equal(seen.parameters, bare.parameters)
    assert max(seen.column("trustclip/drift/size")) > 0
    assert not any(name.startswith("trustclip/drift") for name in bare.history[-1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"head": "trl"}, "head='trl'"),
        ({"candidates": 0}, "`candidates` is 0"),
        ({"candidates": -1}, "candidates must be at least 0, got -1"),
        ({"use_transformers_continuous_batching": True}, "continuous batching"),
        ({"use_vllm": True, "candidates": 2000}, "vLLM is asked for 1024 tokens at most"),
        ({"generation_kwargs": {"num_beams": 2}}, "num_beams=2"),
        ({"cast_lm_head_to_fp32": True}, "cast_lm_head_to_fp32"),
    ],
    ids=str,
)
def test_what_cannot_give_candidates_is_refused_in_one_sentence(tmp_path, settings, words):
    with pytest.raises(ValueError, match="candidates") as error:
        build(tmp_path, method="centered", **settings)
    assert words in str(error.value)


CUTS = [
    {"decoder": "transformers", "top_p": 0.9},
    {"decoder": "transformers", "top_k": 5, "min_p": 0.05, "lora": True},
]


@pytest.mark.parametrize("settings", CUTS, ids=str)
def test_a_cut_that_is_replayed_leaves_ratios_of_one(tmp_path, settings):
    """Trainer against sampler on fresh samples; without it the kept mass is the ratio."""
    settings = {"max_steps": 3, "num_iterations": 1, "allow_inert": True, **settings}
    torch.manual_seed(0)
    plain = constrained(tmp_path / "a", "icepop", **settings)
    run = constrained(tmp_path / "b", "icepop", replay=True, **settings)
    assert max(run.column("trustclip/sampler/abs")) < 1e-5
    assert min(plain.column("trustclip/sampler/abs")) > 2e-2
    assert all(math.isfinite(norm) and norm > 0 for norm in run.grad_norms)


def test_a_replayed_update_has_the_gradient_over_the_kept_tokens(tmp_path):
    """Of importance weights within the kept sets, in the second update of a generation."""
    cut = {"decoder": "transformers", "top_k": 12, "replay": True}
    trainer = build(tmp_path, method="importance_sampling", num_iterations=2, **cut)
    model = trainer.model
    before, _ = fresh_model()
    inputs, got = second_update(trainer, ["1+2="] * 16, seed=4, noise=1)
    with torch.no_grad():
        old = dense(before, inputs, trainer.temperature)
        outside = old < old.topk(12).values[..., -1:]
    p, old = (
        x.masked_fill(outside, -torch.inf).log_softmax(dim=2)
        for x in (dense(model, inputs, trainer.temperature), old)
    )
    y = inputs["completion_ids"][..., None]
    w = (p.gather(2, y) - old.gather(2, y)).squeeze(2).exp()
    loss = -(w * inputs["advantages"][:, None] * inputs["completion_mask"])
    (loss.sum() / (len(y) * trainer.max_completion_length)).backward()
    want = {name: x.grad for name, x in model.named_parameters()}
    size = math.sqrt(sum((x**2).sum().item() for x in want.values()))
    for name, x in want.items():
        torch.testing.assert_close(got[name] / size, x / size, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "nothing to replay"),
        ({"top_p": 0.9, "beta": 0.1}, "`replay` and `beta`"),
        ({"top_p": 0.9, "method": "full_kl"}, "'full_kl' is over all tokens"),
        ({"top_p": 0.9, "candidates": 8}, "leave `candidates` out"),
        ({"top_p": 0.9, "use_vllm": True}, "`replay` asks vLLM for the tokens that top_k leaves"),
        ({"top_p": 0.9, "head": "trl"}, "`replay` needs what the sampler could draw: head="),
    ],
    ids=str,
)
def test_what_cannot_be_replayed_is_refused_in_one_sentence(tmp_path, settings, words):
    with pytest.raises(ValueError) as error:
        build(tmp_path, **{"method": "atr", "replay": True, **settings})
    assert words in str(error.value)


def test_a_trainer_with_tools_keeps_no_candidates(tmp_path):
    """They are those of one call of the sampler, and tools make it several."""
    from trl.chat_template_utils import qwen3_chat_template

    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one.
            b: the other.

        Returns:
            The sum.
        """
        return a + b

    model, tokenizer = fresh_model()
    tokenizer.chat_template = qwen3_chat_template
    given = {"tools": [add], "processing_class": tokenizer}
    with pytest.raises(ValueError, match="tools make completions of several turns"):
        build(tmp_path, model=model, given=given, candidates=8)
