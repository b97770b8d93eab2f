"""The Llama family: models of one architecture, and the weights they compute with."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trustclip.engines.trl.scoring.hidden import language_model

#: Classes of Transformers that differ in biases and in the norms of queries and keys alone.
DECODED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_BLOCK = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
_OPTIONAL = (
    *(f"self_attn.{name}_proj.bias" for name in "qkv"),
    *(f"self_attn.{name}_norm.weight" for name in "qk"),
)
_OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def unlike_llama(model: Any) -> str | None:
    """The reason why this model, or its adapter, is not a plain one of the family; None if it is.

    Plain are full attention, unscaled rotary positions, a gated SiLU, biases nowhere but at
    queries, keys and values, and LoRA on linear layers.
    """
    import transformers

    inner = language_model(model)
    if type(inner) not in [getattr(transformers, name) for name in DECODED]:
        return f"the model is a {type(inner).__name__}"
    config: Any = inner.config
    rope = config.rope_parameters["rope_type"]
    if rope != "default":
        return f"its positions are scaled (rope_type {rope!r})"
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or [window and "sliding_attention"]
    if set(kinds) - {"full_attention", None}:
        return f"its attention is {sorted(filter(None, set(kinds)))}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}"
    if reason := _odd_module(inner):
        return reason
    blocks = [f"model.layers.{i}." for i in range(config.num_hidden_layers)]
    required = {*_OUTSIDE, *(block + name for block in blocks for name in _BLOCK)}
    allowed = required | {block + name for block in blocks for name in _OPTIONAL}
    names = {name for name, *_ in parts(inner)}
    if odd := sorted((required - names) | (names - allowed)):
        return f"its weights are others ({odd[0]})"
    return None


def _odd_module(inner: nn.Module) -> str | None:
    """The first module that neither the architecture nor plain LoRA is made of, as a reason."""
    from transformers.activations import ACT2FN

    plain = {nn.Linear, nn.Embedding, nn.ModuleList, type(ACT2FN["silu"])}
    for name, module in inner.named_modules():
        if hasattr(module, "base_layer"):
            if not _plain_lora(module):
                return f"{name} has an adapter other than LoRA on a linear layer"
        elif ".lora_" in name:
            continue  # the layer above has it
        elif type(module) not in plain and type(module).__module__ != type(inner).__module__:
            return f"{name} is a {type(module).__name__}"
    return None


@torch.no_grad()
def merged(model: Any) -> dict[str, Tensor]:
    """The weights of a model by name, with LoRA added to a copy; tied ones under both names."""
    return {
        name: weight if module is None else _with_lora(weight, module)
        for name, weight, module in parts(language_model(model))
    }


def parts(inner: nn.Module) -> Iterator[tuple[str, Tensor, Any]]:
    """Name and value of each parameter without an adapter, and the LoRA layer around it if any."""
    for path, module in inner.named_modules():
        name = path.removesuffix(".base_layer")
        if any(part.startswith("lora_") for part in path.split(".")):
            continue  # the LoRA layer above adds it
        around = inner.get_submodule(name) if name != path else None
        for own, parameter in module.named_parameters(recurse=False):
            adapted = around if own == "weight" else None
            yield f"{name}.{own}".lstrip("."), parameter, adapted


def _plain_lora(module: Any) -> bool:
    from peft.tuners.lora.layer import Linear

    return (
        type(module) is Linear
        and not module.merged
        and not any(module.lora_variant.values())
        and not any(module.lora_bias.values())
        and not any(d.p for d in module.lora_dropout.modules() if isinstance(d, nn.Dropout))
    )


def _with_lora(weight: Tensor, module: Any) -> Tensor:
    """W + scale B A of the active adapters, added in float32. Shape [out, in]."""
    active = [] if module.disable_adapters else module.active_adapters
    changes = [module.get_delta_weight(name).float() for name in active if name in module.lora_A]
    return (weight.float() + sum(changes)).to(weight.dtype) if changes else weight
