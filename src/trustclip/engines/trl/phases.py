"""The phases of TRL's training loop, each with the state that belongs to it alone."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.engines.trl.scoring.candidates import Likeliest, padded
from trustclip.engines.trl.scoring.exact_kl import Evidence


@dataclass(frozen=True)
class PassResult:
    """Results of a pass over the completions."""

    logps: Tensor | None  # as returned to TRL. [batch, time]
    evidence: Evidence | None = None  # for exact divergences, if requested
    entropies: Tensor | None = None  # if the method requires them. [batch, time]
    further: Tensor | None = None  # of the sampler's likeliest tokens, if kept. [batch, time, k]


@dataclass
class Generating:
    """Completions are sampled, scored under the sampling policy, and rewarded."""

    #: Log-probabilities that our decoder sampled with, by its calls and completions.
    sampled: list[list[list[float]]] = field(default_factory=list)
    passes: list[PassResult] = field(default_factory=list)
    #: The sampler's likeliest tokens by completions, where they are kept.
    likeliest: list[Likeliest] = field(default_factory=list)

    def result_of(self, logps: Tensor | None) -> "PassResult":
        """Results of the pass that returned this very tensor; empty ones if there was none."""
        return next((result for result in self.passes if result.logps is logps), PassResult(None))

    def further(self, length: int, device: torch.device) -> Likeliest | None:
        """The sampler's likeliest tokens, of completions padded to a length, where they are kept.

        A trainer with tools, by which a generation takes several calls of the sampler, keeps none.
        """
        return padded(self.likeliest, length, device) if self.likeliest else None

    def decoder_logps(self, attention_mask: Tensor, length: int) -> Tensor | None:
        """Log-probabilities of the completions, if the decoder sampled them from this policy.

        ``attention_mask`` is that of prompts and completions, [batch, prompt + length].
        """
        if len(self.sampled) != 1:
            return None
        rows = self.sampled[0]
        if list(map(len, rows)) != attention_mask[:, -length:].sum(dim=1).tolist():
            return None  # tools have added tokens, or a truncated completion is masked
        rows = [row + [0.0] * (length - len(row)) for row in rows]
        return torch.tensor(rows, device=attention_mask.device)  # [batch, length]


@dataclass
class Training:
    """The loss of a micro-batch is computed; the gate is set once TRL asks for its scores."""

    inputs: dict[str, Any]  # a copy of TRL's
    logps: Tensor | None = None  # as returned to TRL, with their graph. [batch, time]
    #: The method's, and its gradient in each log-probability. [batch, time]
    gate: tuple[TokenBatch, Surrogate, Tensor] | None = None
