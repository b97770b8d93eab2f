"""The decoding loop against `generate` of Transformers and against the model's own distribution."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trustclip.engines.trl import decoding
from trustclip.engines.trl.decoding import Decoder, unsupported
from trustclip.recipes.tiny import tiny_model

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


def test_it_declines_what_it_does_not_know(model):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small: dict[str, Any] = dict(
        vocab_size=32, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    assert unsupported(Qwen2ForCausalLM(Qwen2Config(**small)))
    assert unsupported(tiny_model()[0].bfloat16())
    assert unsupported(SimpleNamespace(base_model=model))
    dropping = tiny_model()[0].train()
    dropping.config.attention_dropout = 0.1
    assert unsupported(dropping)
    stretched: Any = tiny_model()[0]
    stretched.config.rope_parameters = {**stretched.config.rope_parameters, "rope_type": "linear"}
    assert unsupported(stretched)
