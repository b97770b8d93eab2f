"""Last hidden states of a Hugging Face causal language model, without a second forward pass."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

#: Settings by which some architectures change logits after the head; exact KL would need each.
_LOGIT_CHANGES = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


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

    The state at a position predicts the token after it, so the completion's start one earlier.
    """
    return torch.cat([chunk[:, -length - 1 : -1] for chunk in states])


def trained_head(model: nn.Module) -> Tensor | None:
    """A copy of the head's weight if training will change it; None if it is frozen."""
    weight = head(model).weight
    return whole(weight).detach().clone() if weight.requires_grad else None


def whole(parameter: Any) -> Any:
    """A parameter, gathered if FSDP2 or DeepSpeed ZeRO-3 shards it; call it on every rank."""
    if isinstance(parameter, DTensor):
        return parameter.full_tensor()
    if not hasattr(parameter, "ds_id"):
        return parameter
    import deepspeed  # type: ignore[import-not-found]

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def unusual(model: nn.Module) -> str | None:
    """The reason why this model's logits are not its head times its hidden states, or None."""
    config = language_model(model).config.get_text_config()
    for name in _LOGIT_CHANGES:
        if getattr(config, name, None) not in (None, 1, 1.0):
            return f"it changes its logits by {name}={getattr(config, name)!r}"
    return None


def check_head(model: nn.Module) -> None:
    """Raise a ValueError where exact KL from hidden states would be wrong for this model."""
    if reason := unusual(model):
        raise ValueError(
            f"exact KL is not available for this model: {reason}. Choose a method on the ratio, "
            "e.g. 'atr'."
        )
