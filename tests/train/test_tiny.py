"""The tiny model: any text survives its tokenizer, chats end, folders load, a step learns."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_folder import tiny_folder  # noqa: E402

from trustclip.train.files import Source, build, preset  # noqa: E402
from trustclip.train.models import check_model, check_tokenizer, load_model  # noqa: E402
from trustclip.train.rl import starting_model  # noqa: E402
from trustclip.train.runs.directory import RunDirectory  # noqa: E402
from trustclip.train.settings.stages import RLSettings  # noqa: E402
from trustclip.train.tiny import BUILT_IN, tiny_model, tiny_tokenizer  # noqa: E402

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 2"},
    {"role": "assistant", "content": "<SOLUTION>3</SOLUTION>"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture(scope="module")
def loaded(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_a_folder_that_is_not_a_whole_model_is_refused_before_it_loads(tmp_path, folder):
    bare = tmp_path / "bare"
    tiny_model(seed=3)[0].save_pretrained(bare)
    with pytest.raises(ValueError, match=r"has a model but no tokenizer .*tokenizer\.json"):
        check_model(str(bare))
    with pytest.raises(ValueError, match="does not hold a model"):
        check_model(str(tmp_path))
    check_model(str(folder))


def test_a_tokenizer_that_does_not_belong_to_its_model_is_refused(tmp_path, folder):
    model, tokenizer = load_model(str(folder), "plain")
    check_tokenizer(tokenizer, model.config, "tiny")
    model.config.vocab_size = 264
    with pytest.raises(ValueError, match="has 265 tokens, the model's vocabulary 264"):
        check_tokenizer(tokenizer, model.config, "tiny")
    bare = tmp_path / "bare"
    model.config.vocab_size = 265
    model.save_pretrained(bare)
    (bare / "tokenizer_config.json").write_text("{}")  # transformers makes one of a single token
    with pytest.raises(ValueError, match="encodes text as no tokens"):
        load_model(str(bare), "plain")


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_chat_is_rendered_with_every_role_and_closed_by_eos(tokenizer):
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert text == ("<|system|>Be brief.<|user|>1 + 2<|assistant|><SOLUTION>3</SOLUTION><|eos|>")
    prompt = tokenizer.apply_chat_template(CHAT[:2], tokenize=False, add_generation_prompt=True)
    assert text.startswith(prompt)
    assert prompt.endswith("<|assistant|>")


def test_the_assistant_mask_covers_the_answer_and_its_eos_only(tokenizer):
    encoded = tokenizer.apply_chat_template(
        CHAT, return_dict=True, return_assistant_tokens_mask=True
    )
    chosen = [
        token
        for token, keep in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
        if keep
    ]
    assert tokenizer.decode(chosen) == "<SOLUTION>3</SOLUTION><|eos|>"


def test_the_seed_decides_the_weights_and_leaves_the_random_state_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    weights = [tiny_model(seed, layers=1, hidden=64)[0].lm_head.weight for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_reinforcement_learning_primes_the_built_in_model_it_is_given(tmp_path, monkeypatch):
    def untuned(settings, _, part):
        return SimpleNamespace(final=settings.model)

    monkeypatch.setattr("trustclip.train.sft.sft", untuned)
    asked = build(RLSettings, preset("rl", "tiny"), Source(changes={"model": "small"}))
    run = RunDirectory(tmp_path, "rl", asked)
    config = starting_model(asked, run, Console(quiet=True))[0].config
    shape = {"layers": config.num_hidden_layers, "hidden": config.hidden_size}
    assert shape == BUILT_IN["small"]


def test_a_saved_folder_loads_with_the_auto_classes(folder, loaded):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    fresh, tokenizer = tiny_model(seed=3)
    for name, weight in fresh.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == loaded.eos_token_id
    assert loaded.pad_token == "<|pad|>"
    assert loaded.chat_template == tokenizer.chat_template
    assert loaded.padding_side == "left"
