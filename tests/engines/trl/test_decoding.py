"""The decoding loop against `generate` of Transformers and against the model's own distribution."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from llamas import KINDS, small_llama
from peft import LoraConfig, get_peft_model

from trustclip.engines.trl.sampling import decoding
from trustclip.engines.trl.sampling.decoding import Decoder, unsupported
from trustclip.train.tiny import tiny_model

PROMPTS = [[5, 9, 17], [5, 9, 17], [40, 3, 8, 77, 12, 5], [9], [5, 9, 17], [40, 3, 8, 77, 12, 5]]


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3)[0]


def ended(rows, prompt_length, end):
    """New tokens of `generate`, cut after the end mark."""
    new = [row[prompt_length:] for row in rows.tolist()]
    return [row[: row.index(end) + 1] if end in row else row for row in new]


def greedy(model, limit, end):
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in PROMPTS])
    rows = model.generate(
        ids, attention_mask=mask, max_new_tokens=limit, do_sample=False, eos_token_id=end,
        pad_token_id=0,
    )  # fmt: skip
    return ended(rows, longest, end)


def test_greedy_tokens_are_those_of_generate(model):
    free = Decoder(model).decode(PROMPTS, 24, [], temperature=0)
    assert [c.tokens for c in free] == greedy(model, 24, 10**6)
    end = free[0].tokens[6]  # ends some rows early, so that the batch is packed
    some = Decoder(model).decode(PROMPTS, 24, [end], temperature=0)
    assert [c.tokens for c in some] == greedy(model, 24, end)
    assert {len(c.tokens) for c in some} != {24}


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probabilities_are_those_of_a_forward_pass(model, temperature):
    torch.manual_seed(0)
    ends = list(range(100, 130))
    for prompt, done in zip(
        PROMPTS, Decoder(model).decode(PROMPTS, 20, ends, temperature), strict=True
    ):
        assert len(done.tokens) == len(done.logps)
        assert not set(done.tokens[:-1]) & set(ends)
        assert len(done.tokens) == 20 or done.tokens[-1] in ends
        with torch.no_grad():
            logits = model(torch.tensor([prompt + done.tokens])).logits[0, len(prompt) - 1 : -1]
        want = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(done.tokens)[:, None])
        torch.testing.assert_close(torch.tensor(done.logps), want[:, 0], atol=2e-5, rtol=0)


def test_tokens_are_drawn_from_the_models_distribution(model):
    torch.manual_seed(1)
    drawn = Decoder(model).decode([PROMPTS[0]] * 20_000, 2, [], 1.0)
    pairs = [c.tokens for c in drawn]
    with torch.no_grad():
        first = model(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1)
        likeliest = int(first.argmax())
        second = model(torch.tensor([[*PROMPTS[0], likeliest]])).logits[0, -1].softmax(-1)
    assert_drawn_from([a for a, _ in pairs], first)
    assert_drawn_from([b for a, b in pairs if a == likeliest], second)


def assert_drawn_from(tokens, probabilities):
    """Pearson's test, with rare tokens taken together."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    often = expected >= 5
    seen = torch.cat([counts[often], counts[~often].sum()[None]])
    wanted = torch.cat([expected[often], expected[~often].sum()[None]])
    statistic = ((seen - wanted).square() / wanted.clamp(min=1e-9)).sum().item()
    freedom = len(seen) - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_it_draws_from_the_global_random_state(model):
    runs = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        runs.append([c.tokens for c in Decoder(model).decode(PROMPTS, 12, [], 1.0)])
    assert runs[0] == runs[1] != runs[2]


def test_equal_prompts_are_read_once(model, monkeypatch):
    seen = []
    kept = decoding.Decoder._states
    monkeypatch.setattr(
        decoding.Decoder,
        "_states",
        lambda self, ids, c: seen.append(ids.shape) or kept(self, ids, c),
    )
    Decoder(model).decode(PROMPTS, 3, [], 1.0)
    assert [tuple(shape) for shape in seen] == [(3, 6), (6, 1), (6, 1)]


def test_weights_are_those_of_the_moment():
    model, _ = tiny_model(seed=3)
    before = Decoder(model).decode(PROMPTS, 8, [], 0)
    torch.manual_seed(4)
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(torch.randn_like(model.model.embed_tokens.weight))
    after = Decoder(model).decode(PROMPTS, 8, [], 0)
    assert [c.tokens for c in before] != [c.tokens for c in after]


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_llama_family_has_the_log_probabilities_of_its_forward_pass(kind, adapter):
    model = small_llama(kind, adapter)
    assert unsupported(model) is None
    prompts = [[5, 9, 17], [5, 9, 17], [40, 3, 8, 7, 12, 5], [9]]
    torch.manual_seed(0)
    for prompt, done in zip(prompts, Decoder(model).decode(prompts, 12, [1], 0.8), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + done.tokens])).logits[0, len(prompt) - 1 : -1]
        want = (logits / 0.8).log_softmax(-1).gather(1, torch.tensor(done.tokens)[:, None])
        torch.testing.assert_close(torch.tensor(done.logps), want[:, 0], atol=1e-5, rtol=0)


def test_an_adapter_that_is_off_is_not_merged():
    model = small_llama("Llama", adapter=True)
    on = Decoder(model).decode([[5, 9]], 8, [], 0)
    with model.disable_adapter():
        off = Decoder(model).decode([[5, 9]], 8, [], 0)
    assert on[0].logps != off[0].logps
    assert off[0].logps == Decoder(model.unload()).decode([[5, 9]], 8, [], 0)[0].logps


def test_bfloat16_weights_and_products_stay_near_the_forward_pass():
    model = small_llama("Llama").bfloat16()
    assert unsupported(model) is None
    [done] = Decoder(model).decode([[5, 9, 17]], 12, [], 0)
    with torch.no_grad():
        logits = model(torch.tensor([[5, 9, 17, *done.tokens]])).logits[0, 2:-1].float()
    want = logits.log_softmax(-1).gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(done.logps), want, atol=0.1, rtol=0)


def test_a_large_vocabulary_is_drawn_from_its_distribution(monkeypatch):
    monkeypatch.setattr(decoding, "_MANY", 1)
    model = small_llama("Qwen2")
    torch.manual_seed(1)
    drawn = Decoder(model).decode([PROMPTS[0]] * 20_000, 1, [], 1.0)
    with torch.no_grad():
        first = model(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1)
    assert_drawn_from([c.tokens[0] for c in drawn], first)
    impossible = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(1000, 3)
    assert (decoding._draw(impossible) == 1).all()


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("Llama", {"attention_bias": True}, "o_proj.bias"),
        ("Llama", {"mlp_bias": True}, "proj.bias"),
        ("Llama", {"hidden_act": "gelu"}, "activation is 'gelu'"),
        ("Mistral", {"sliding_window": 4}, "sliding_attention"),
        ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
         "rope_type 'linear'"),
    ],
)  # fmt: skip
def test_it_declines_what_it_does_not_know(kind, changes, reason):
    assert reason in str(unsupported(small_llama(kind, **changes)))


def test_it_declines_other_models_adapters_and_types(model):
    assert "SimpleNamespace" in str(unsupported(SimpleNamespace(base_model=model)))
    assert "float32 and bfloat16" in str(unsupported(tiny_model()[0].half()))
    dropping = tiny_model()[0].train()
    dropping.config.attention_dropout = 0.1
    assert "dropout" in str(unsupported(dropping))
    changes: list[dict[str, Any]] = [{"use_dora": True}, {"lora_bias": True}, {"lora_dropout": 0.1}]
    for change in changes:
        adapted = get_peft_model(tiny_model()[0], LoraConfig(target_modules="all-linear", **change))
        assert "adapter other than LoRA" in str(unsupported(adapted)), change
