"""Last hidden states of a Hugging Face causal language model, without a second forward pass."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trustclip.head import Head
from trustclip.support.sharded import whole

#: Settings by which architectures multiply logits after the head, and those that divide by one.
_MULTIPLIES = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_DIVIDES = ("logits_scaling",)
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")

#: Architectures that multiply by a setting that others divide by.
_MULTIPLYING = ("hyperclovax",)

#: Largest difference, relative to the largest, of two ways to the same logits; bfloat16 has 2^-8.
_ROUNDING = 0.02

#: Tokens of the vocabulary whose logits are compared, at least.
_TOKENS = 256


def language_model(model: nn.Module) -> Any:
    """The causal language model inside an adapter wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def head(model: nn.Module) -> nn.Linear:
    """Output head of the model: its weight is [vocabulary, hidden]."""
    return language_model(model).get_output_embeddings()


@contextlib.contextmanager
def captured(model: nn.Module, states: list[Tensor]) -> Iterator[None]:
    """Append the backbone's last hidden states of every forward pass in the block to a list."""
    handle = language_model(model).base_model.register_forward_hook(
        lambda module, args, output: states.append(output.last_hidden_state.detach())
    )
    try:
        yield
    finally:
        handle.remove()


def of_completions(states: list[Tensor], length: int) -> Tensor:
    """Hidden states that predict the last ``length`` tokens. Shape [batch, length, hidden].

    The state at a position predicts the next token, so those of a completion start one earlier.
    """
    return torch.cat([chunk[:, -length - 1 : -1] for chunk in states])


def trained_head(model: nn.Module) -> Tensor | None:
    """A copy of the head's weight if training will change it; None if it is frozen."""
    weight = head(model).weight
    return whole(weight).clone() if weight.requires_grad else None


def head_of(model: nn.Module, temperature: float) -> Head:
    """The model's output head, gathered where it is sharded, with its scale and soft-cap."""
    linear, (scale, cap) = head(model), logit_changes(model)
    bias = None if linear.bias is None else whole(linear.bias)
    return Head.of(whole(linear.weight), bias, temperature=temperature, scale=scale, softcap=cap)


def logit_changes(model: nn.Module) -> tuple[float, float | None]:
    """Factor and soft-cap of a model's logits, as its configuration has them."""
    config = language_model(model).config.get_text_config()
    turned = _DIVIDES if config.model_type in _MULTIPLYING else ()
    scale = 1.0
    for name in (*_MULTIPLIES, *turned):
        scale *= getattr(config, name, None) or 1.0
    for name in set(_DIVIDES) - set(turned):
        scale /= getattr(config, name, None) or 1.0
    return scale, next((cap for name in _CAPS if (cap := getattr(config, name, None))), None)


@torch.no_grad()
def unusual(model: nn.Module) -> str | None:
    """The reason why this model's logits are not those of `head_of`, or None.

    Two tokens are run through the model, since no list of settings is complete. Where its weights
    are sharded already, the settings are trusted.
    """
    inner = language_model(model)
    linear = inner.get_output_embeddings()
    if (getattr(inner, "tp_size", None) or 1) > 1:
        return f"its output head is shared out over {inner.tp_size} ranks (tensor parallelism)"
    if type(linear) is not nn.Linear or linear.weight.is_meta:
        return None
    if isinstance(linear.weight, DTensor) or hasattr(linear.weight, "ds_id"):
        return None
    states: list[Tensor] = []
    was_training, ids = inner.training, torch.arange(2, device=linear.weight.device)[None]
    inner.eval()
    try:
        with captured(model, states):
            # [1, 2, vocabulary]
            z = inner(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    finally:
        inner.train(was_training)
    own = head_of(model, 1.0)
    tokens = z.shape[-1]
    some = torch.arange(0, tokens, max(1, tokens // _TOKENS), device=z.device)  # of all parts
    # Both [2, tokens compared].
    original, rebuilt = z[0, :, some].float(), own.logits_of(states[0][0], some.expand(2, -1))
    error = (original - rebuilt).abs().max()
    if tokens == own.vocabulary and error <= _ROUNDING * original.abs().max():
        return None
    return (
        f"the logits of {type(inner).__name__} are not its head times its last hidden states, "
        "scaled and soft-capped as its configuration says"
    )


def check_head(model: nn.Module) -> None:
    """Raise a ValueError where exact KL from hidden states would be wrong for this model."""
    if reason := unusual(model):
        raise ValueError(
            f"exact KL is not available for this model: {reason}. Choose a method on the ratio, "
            "e.g. 'atr'."
        )
