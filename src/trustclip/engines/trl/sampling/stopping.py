"""Ending `generate` of Transformers at the next token."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from trustclip.engines.trl.scoring import hidden


class Stop(StoppingCriteria):
    """Ends all completions once a function, called after every token, returns True.

    Example:
      >>> Stop(lambda: True)(torch.zeros(2, 5), None)
      tensor([True, True])
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # type: ignore[override]
        return input_ids.new_full((len(input_ids),), self._asked(), dtype=torch.bool)


def criteria(asked: Callable[[], bool]) -> StoppingCriteriaList:
    """`Stop`, as ``generate`` takes it."""
    return StoppingCriteriaList([Stop(asked)])


def stoppable(model: Any, asked: Callable[[], bool], turn: Callable[[], Any]) -> Callable[[], Any]:
    """``turn``, in which ``model.generate`` ends once a function returns True.

    The same ``turn`` where the model's `generate` takes no criteria.
    """
    inner = hidden.language_model(model)
    if "stopping_criteria" not in inspect.signature(inner.generate).parameters:
        return turn

    def ended() -> Any:
        original, own = model.generate, vars(model).get("generate")
        model.generate = partial(original, stopping_criteria=criteria(asked))
        try:
            return turn()
        finally:
            if own is None:
                del model.generate
            else:
                model.generate = own

    return ended
