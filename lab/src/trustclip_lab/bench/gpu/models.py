"""Models of published shapes with random weights, and inputs for them: no download."""

from typing import Any, NamedTuple

from trustclip.train.tiny import EOS, PAD, tiny_model, tiny_tokenizer
from trustclip_lab.bench.gpu.cases import Place


class Shape(NamedTuple):
    """A Qwen3 as its published configuration gives it; heads of 128, 8 of them for keys."""

    hidden: int
    intermediate: int
    layers: int = 28
    heads: int = 16
    vocabulary: int = 151_936


SHAPES = {"qwen3-0.6b": Shape(1024, 3072), "qwen3-1.7b": Shape(2048, 6144)}


def config_of(name: str) -> Any:
    """The configuration of a model in `SHAPES`, with the tokenizer's special tokens."""
    from transformers import Qwen3Config

    shape, vocabulary = SHAPES[name], tiny_tokenizer().get_vocab()
    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_id=vocabulary[EOS],
        pad_token_id=vocabulary[PAD],
    )


def random_model(name: str, place: Place, seed: int = 0) -> tuple[Any, Any]:
    """A model with random weights on the device, and a tokenizer of bytes.

    Args:
      name: of a shape in `SHAPES`; the tiny model stands in for it at tiny shapes.
      place: where.
      seed: of the weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    if place.tiny:
        return tiny_model(seed)
    config = config_of(name)
    torch.manual_seed(seed)
    with torch.device(place.device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    marks = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=True, **marks)
    return model, tiny_tokenizer()
