"""`generate` of Transformers or of TRL's vLLM, replaced for a while.

So it ends at the next token, or hands on the likeliest tokens of vLLM, which TRL drops.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from trustclip.engines.trl.scoring import hidden
from trustclip.engines.trl.scoring.candidates import Likeliest

#: What vLLM's server writes for the logarithm of 0.
_NEVER = -9999.0


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


def allow_logprobs(generation: Any, k: int) -> None:
    """Let TRL's colocated vLLM return k tokens at a position; a server has its own limits."""
    if generation.mode == "colocate":
        config = generation.llm.llm_engine.model_config
        if 0 <= config.max_logprobs < k:
            config.max_logprobs = k


@contextmanager
def with_likeliest(generation: Any, k: int, all_drawn: bool) -> Iterator[list[Likeliest]]:
    """Context in which TRL's `VLLMGeneration` asks for the k likeliest tokens of each position.

    `generate` returns the sampled tokens' log-probabilities as before; the list that the context
    yields gets the likeliest tokens of each completion. vLLM adds the sampled token where it is
    none of the k. ``all_drawn``: sampling is cut to k tokens or fewer (top-k).
    """
    likeliest: list[Likeliest] = []
    original, before = generation.generate, generation.logprobs

    def generate(*args: Any, **kwargs: Any) -> Any:
        prompts, tokens, logps, ids = original(*args, **kwargs)
        likeliest.extend(_likeliest(*one, k, all_drawn) for one in zip(logps, ids, strict=True))
        own = [
            [[values[names.index(token)]] for token, values, names in zip(*row, strict=True)]
            for row in zip(tokens, logps, ids, strict=True)
        ]
        return prompts, tokens, own, ids

    generation.logprobs = k
    try:
        with replaced(generation, generate):
            yield likeliest
    finally:
        generation.logprobs = before


def _likeliest(
    logps: Sequence[Sequence[float | None]], ids: Sequence[Sequence[int]], k: int, all_drawn: bool
) -> Likeliest:
    """Those of one completion, in order; a sampled token of lower rank comes after the k."""
    table = torch.full((len(logps), k), -torch.inf)
    names = torch.zeros(len(logps), k, dtype=torch.int32)
    for place, (values, own) in enumerate(zip(logps, ids, strict=True)):
        first = [math.nan if value is None else value for value in values[:k]]
        table[place, : len(first)] = torch.tensor(first)
        names[place, : len(first)] = torch.tensor(own[:k], dtype=torch.int32)
    table[table <= _NEVER] = -torch.inf
    complete = table.isneginf().any(dim=1) | all_drawn
    return Likeliest(names, table, complete)
