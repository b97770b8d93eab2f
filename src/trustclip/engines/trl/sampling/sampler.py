r"""A sampler that really differs from the trainer: a rounded, quantised or old copy of the policy.

The copy samples and reports its own log-probabilities, $\log\pi_b$; the trainer scores the same
tokens with the policy in training, $\log\pi_{old}$. So the mismatch between the two is real, and
its cause is known.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from trustclip.engines.rounding import round_trip
from trustclip.engines.sampler import Sampler
from trustclip.engines.trl.additions import addition
from trustclip.engines.trl.sampling.decoding import Decoded, Decoder, unsupported
from trustclip.engines.trl.sampling.generate import criteria
from trustclip.engines.trl.sampling.llama import merged, odd_adapter, parts
from trustclip.engines.trl.sampling.sampled import with_logps
from trustclip.engines.trl.scoring.hidden import language_model

Weights = dict[str, Tensor]


def uncopied(model: Any) -> str | None:
    """The reason why no copy of a model can be made; None if one can."""
    inner = language_model(model)
    with torch.device("meta"):
        plain = type(inner)(copy.deepcopy(inner.config))
    names = {name for name, _ in plain.named_parameters(remove_duplicate=False)}
    if odd := sorted(names ^ {name for name, *_ in parts(inner)}):
        return f"its weights are others than those of a {type(inner).__name__} ({odd[0]})"
    return odd_adapter(inner) or addition(model)


class Twin:
    """A second model of any architecture, not `uncopied`, that samples by `generate`."""

    def __init__(self, model: Any) -> None:
        inner = language_model(model)
        config, self.dtype = copy.deepcopy(inner.config), inner.dtype
        with torch.random.fork_rng(), inner.device:  # its initial weights are drawn, then replaced
            self._model = type(inner)._from_config(config, dtype=self.dtype).eval()
        self._model.generation_config = copy.deepcopy(inner.generation_config)

    def of(self, weights: Weights, likeliest: int) -> "Twin":
        """The twin with these weights, which reports so many of the likeliest tokens."""
        self._model.load_state_dict(weights, strict=False)  # buffers are the configuration's
        self._likeliest = likeliest
        return self

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        limit: int,
        ends: Collection[int],
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Decoded]:
        """As `Decoder.decode`."""
        longest = max(map(len, prompts))
        rows = [[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
        mask = [[int(i >= longest - len(p)) for i in range(longest)] for p in prompts]
        config = GenerationConfig(
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_new_tokens=limit,
            eos_token_id=sorted(ends) or None,
            pad_token_id=min(ends, default=0),
        )

        def turn() -> tuple[list[list[int]], None]:
            ids, real = torch.tensor([rows, mask], device=self._model.device)
            output = self._model.generate(
                ids, attention_mask=real, generation_config=config, stopping_criteria=criteria(stop)
            )
            return [_truncate(row, ends) for row in output[:, longest:].tolist()], None

        tokens, logps, further = with_logps(self._model, turn, self._likeliest)
        return [
            Decoded(row, values, further[i] if further else None)
            for i, (row, values) in enumerate(zip(tokens, logps, strict=True))
        ]


def _truncate(tokens: list[int], ends: Collection[int]) -> list[int]:
    """Tokens up to the first that ends them."""
    return tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), None)]


class Copies:
    r"""Copies of a policy that sample in its place, one for each generation; the policy by default.

    With ``lag`` $n$, generation $g$ is sampled by the policy of generation $\max(g - n, 0)$: the
    policies of the last $n$ generations are kept, and are part of a checkpoint.
    """

    def __init__(self, sampler: Sampler | None = None, likeliest: int = 0) -> None:
        self._sampler, self.likeliest = sampler or Sampler(), likeliest
        self.exact = self._sampler.exact
        self.cut_off: dict[str, Any] = {"top_p": self._sampler.top_p, "top_k": self._sampler.top_k}
        self._kept: list[tuple[int, Weights]] = []  # (updates done, weights), oldest first
        self._twin: Twin | None = None

    @torch.no_grad()
    def next(
        self, model: nn.Module, step: int, dtype: torch.dtype | None = None
    ) -> tuple[Decoder | Twin, int]:
        """The sampler of the next generation, and the number of updates that its weights include.

        ``step`` is the updates done; ``dtype`` that of the products of the policy itself.
        """
        if self.exact:
            return Decoder(model, dtype=dtype, likeliest=self.likeliest), step
        current = merged(model)
        version, weights = self._kept[0] if self._kept else (step, current)
        if lag := self._sampler.lag:
            if len(self._kept) == lag:
                self._kept.pop(0)
            self._kept.append((step, {name: weight.clone() for name, weight in current.items()}))
        rounded = {
            name: round_trip(weight, self._sampler.dtype) for name, weight in weights.items()
        }
        if unsupported(model) is None:
            return Decoder(model, rounded, likeliest=self.likeliest), version
        self._twin = self._twin or Twin(model)
        return self._twin.of(rounded, self.likeliest), version

    def state(self) -> list[Any]:
        """The kept policies, for a checkpoint: ``[updates done, weights]`` of each."""
        return [[step, weights] for step, weights in self._kept]

    def restore(self, state: list[Any]) -> None:
        """Continue from `state`."""
        self._kept = [(step, weights) for step, weights in state]
