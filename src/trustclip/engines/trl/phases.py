"""The phases of TRL's training loop, each with the state that belongs to it alone."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.engines.trl.scoring.exact_kl import Evidence


@dataclass
class Rewarded:
    """The completions and rewards passed to TRL's reward computation.

    Args:
      rows: of the data set.
      completions: as reward functions get them.
      tokens: ids of each completion.
      rewards: of this rank. Shape [batch, functions].
    """

    rows: list[Any]
    completions: list[Any]
    tokens: list[list[int]]
    rewards: Tensor


@dataclass
class Generating:
    """Completions are sampled, scored under the sampling policy, and rewarded.

    Args:
      sampled: log-probabilities that our decoder sampled with, by its calls and completions.
      passes: log-probabilities that TRL got of each pass, the evidence the pass left, and its
        entropies if the method requires them.
      rewarded: what has been rewarded.
      lag: updates since the weights of the sampler, where it is an older copy of the policy.
    """

    sampled: list[list[list[float]]] = field(default_factory=list)
    passes: list[tuple[Tensor, Evidence | None, Tensor | None]] = field(default_factory=list)
    rewarded: Rewarded | None = None
    lag: int = 0

    def seen(self, logps: Tensor | None) -> tuple[Evidence | None, Tensor | None]:
        """Evidence and entropies of the pass that gave these very log-probabilities."""
        return next((seen for own, *seen in self.passes if own is logps), (None, None))  # type: ignore[return-value]

    def known(self, attention_mask: Tensor, length: int) -> Tensor | None:
        """Log-probabilities of the completions, if the decoder sampled them from this policy.

        Args:
          attention_mask: of prompts and completions. Shape [batch, prompt + length].
          length: of the longest completion, tokens.
        """
        if len(self.sampled) != 1:
            return None
        rows = self.sampled[0]
        if list(map(len, rows)) != attention_mask[:, -length:].sum(dim=1).tolist():
            return None  # tools have added tokens, or a truncated completion is masked
        padded = [row + [0.0] * (length - len(row)) for row in rows]
        return torch.tensor(padded, device=attention_mask.device)  # [batch, length]


@dataclass
class Training:
    """The loss of a micro-batch is computed.

    Args:
      inputs: TRL's dictionary, of which this is a copy.
      gate: the tokens and what the method made of them, once TRL has asked for log-probabilities.
      coefficient: gradient of the objective in each log-probability, by then. Shape [batch, time].
    """

    inputs: dict[str, Any]
    gate: tuple[TokenBatch, Surrogate] | None = None
    coefficient: Tensor | None = None
