r"""A sampler that really differs from the trainer: a rounded, quantised or old copy of the policy.

The copy samples and reports its own log-probabilities, $\log\pi_b$; the trainer scores the same
tokens with the policy in training, $\log\pi_{old}$. So the mismatch between the two is real, and
its cause is known.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trustclip.engines.rounding import converted
from trustclip.engines.sampler import Sampler
from trustclip.engines.trl.sampling.decoding import Decoder
from trustclip.engines.trl.sampling.llama import merged

Weights = dict[str, Tensor]


class Copies:
    r"""Copies of a policy that sample in its place, one for each generation.

    With ``lag`` $n$, generation $g$ is sampled by the policy of generation $\max(g - n, 0)$: the
    policies of the last $n$ generations are kept, and are part of a checkpoint.

    Args:
      sampler: in what the copy differs; nothing by default, and the policy itself samples.
      likeliest: how many of the likeliest tokens the decoders report.
    """

    def __init__(self, sampler: Sampler | None = None, likeliest: int = 0) -> None:
        self._sampler, self.likeliest = sampler or Sampler(), likeliest
        self.exact = self._sampler.exact
        self.cut_off: dict[str, Any] = {"top_p": self._sampler.top_p, "top_k": self._sampler.top_k}
        self._kept: list[tuple[int, Weights]] = []  # (updates done, weights), oldest first

    @torch.no_grad()
    def next(
        self, model: nn.Module, step: int, dtype: torch.dtype | None = None
    ) -> tuple[Decoder, int]:
        """The decoder for the next generation, and the updates that its weights have seen.

        Args:
          model: the policy in training; see `trustclip.engines.trl.sampling.decoding.unsupported`.
          step: updates done.
          dtype: of the products of the policy itself; that of its weights when None.
        """
        if self.exact:
            return Decoder(model, dtype=dtype, likeliest=self.likeliest), step
        now = merged(model)
        version, weights = self._kept[0] if self._kept else (step, now)
        if lag := self._sampler.lag:
            if len(self._kept) == lag:
                self._kept.pop(0)
            self._kept.append((step, {name: weight.clone() for name, weight in now.items()}))
        rounded = {name: converted(weight, self._sampler.dtype) for name, weight in weights.items()}
        return Decoder(model, rounded, likeliest=self.likeliest), version

    def state(self) -> list[Any]:
        """The kept policies, for a checkpoint: ``[updates done, weights]`` of each."""
        return [[step, weights] for step, weights in self._kept]

    def restore(self, state: list[Any]) -> None:
        """Continue from `state`."""
        self._kept = [(step, weights) for step, weights in state]
