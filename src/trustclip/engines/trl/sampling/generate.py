"""`generate` of Transformers or of TRL, replaced for a while; ending it at the next token."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from trustclip.engines.trl.scoring import hidden


@contextmanager
def replaced(owner: Any, generate: Callable[..., Any]) -> Iterator[None]:
    """Context in which a model, or TRL's vLLM, has another `generate`."""
    own = vars(owner).get("generate")
    owner.generate = generate
    try:
        yield
    finally:
        if own is None:
            del owner.generate
        else:
            owner.generate = own


def criteria(should_stop: Callable[[], bool]) -> StoppingCriteriaList:
    """Criteria that end all completions of `generate` once a function is True after a token.

    Example:
      >>> criteria(lambda: True)(torch.zeros(2, 5), None)
      tensor([True, True])
    """

    def stop(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return input_ids.new_full((len(input_ids),), should_stop(), dtype=torch.bool)

    return StoppingCriteriaList([stop])


@contextmanager
def stoppable(model: Any, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Context in which ``model.generate``, if it takes criteria, ends once a function is True."""
    inner = hidden.language_model(model)
    if "stopping_criteria" not in inspect.signature(inner.generate).parameters:
        yield
        return
    with replaced(model, partial(model.generate, stopping_criteria=criteria(should_stop))):
        yield
