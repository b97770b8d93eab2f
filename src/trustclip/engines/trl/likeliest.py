"""The likeliest tokens of a sampler at each position: what `centered` needs beside the sample."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class Likeliest(NamedTuple):
    """The likeliest tokens of some distributions.

    Args:
      ids: int32; no columns where all tokens are meant, in the order of the vocabulary.
        Shape [..., k] or [..., 0].
      logps: their log-probabilities, nats; -inf for tokens that cannot be drawn. Shape [..., k].
      complete: whether no other token can be drawn. bool, shape [...].
    """

    ids: Tensor
    logps: Tensor
    complete: Tensor

    def first(self, tokens: int) -> "Likeliest":
        """Those of the first positions."""
        return Likeliest(*(part[:tokens] for part in self))


def likeliest(logps: Tensor, k: int) -> Likeliest:
    """The k likeliest tokens of each row, or all.

    Args:
      logps: normalised; -inf where cut off. Shape [rows, vocabulary].
      k: how many; all of them, in their order, where k is the vocabulary's size or more.

    Example:
      >>> found = likeliest(torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]]).log(), 2)
      >>> found.ids[0].tolist(), found.complete.tolist()
      ([1, 2], [False, True])
    """
    if k >= logps.shape[1]:
        none = logps.new_empty(len(logps), 0, dtype=torch.int32)
        return Likeliest(none, logps, torch.ones_like(logps[:, 0], dtype=torch.bool))
    top, ids = logps.topk(k, dim=1)
    return Likeliest(ids.int(), top, logps.isfinite().sum(dim=1) <= k)


def padded(rows: Sequence[Likeliest], length: int, device: torch.device) -> Likeliest:
    """Completions of different lengths as [batch, length, ...]; behind the end is no candidate."""
    fills = (0, -torch.inf, True)
    found = []
    for parts, fill in zip(zip(*rows, strict=True), fills, strict=True):
        whole = pad_sequence(list(parts), batch_first=True, padding_value=fill)
        more = whole.new_full((len(whole), length - whole.shape[1], *whole.shape[2:]), fill)
        found.append(torch.cat([whole, more], dim=1).to(device))
    return Likeliest(*found)
