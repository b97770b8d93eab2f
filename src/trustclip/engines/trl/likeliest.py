"""The likeliest tokens of a sampler at each position: what `centered` needs beside the sample."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

#: vLLM is asked for at most so many tokens at a position: each is a Python object there.
MOST = 1024

#: This stands in place of a number and means all tokens that can be drawn.
DRAWABLE = -1


class Likeliest(NamedTuple):
    """The likeliest tokens of some distributions; of no ids, all in the vocabulary's order."""

    ids: Tensor  # int32. [..., k] or [..., 0]
    logps: Tensor  # nats; -inf for tokens that cannot be drawn. [..., k]
    complete: Tensor  # whether no other token can be drawn. bool [...]

    def first(self, tokens: int) -> "Likeliest":
        """Those of the first positions."""
        return Likeliest(*(part[:tokens] for part in self))


def likeliest(logps: Tensor, k: int) -> Likeliest:
    """The k likeliest tokens of each row of normalised log-probabilities [rows, vocabulary].

    All of them, in their order, where k is the vocabulary's size or more; with `DRAWABLE` those
    that can be drawn (the others are -inf), as many as the row with the most has.

    Example:
      >>> top = likeliest(torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]]).log(), 2)
      >>> top.ids[0].tolist(), top.complete.tolist()
      ([1, 2], [False, True])
    """
    drawable = logps.isfinite().sum(dim=1)  # [rows]
    if k == DRAWABLE:
        k = int(drawable.max())
    elif k >= logps.shape[1]:
        none = logps.new_empty(len(logps), 0, dtype=torch.int32)
        return Likeliest(none, logps, torch.ones_like(logps[:, 0], dtype=torch.bool))
    top, ids = logps.topk(k, dim=1)
    return Likeliest(ids.int(), top, drawable <= k)


def join(steps: Sequence[Likeliest]) -> Likeliest:
    """Concatenate positions, padding those with fewer tokens."""
    fields = []
    for parts, fill in zip(zip(*steps, strict=True), (0, -torch.inf, True), strict=True):
        if parts[0].dim() > 1:
            most = max(part.shape[1] for part in parts)
            parts = [F.pad(part, (0, most - part.shape[1]), value=fill) for part in parts]
        fields.append(torch.cat(list(parts)))
    return Likeliest(*fields)


def pad(rows: Sequence[Likeliest], length: int, device: torch.device) -> Likeliest:
    """Completions of different lengths as [batch, length, ...]; no candidates after the end."""
    whole = join(rows)
    lengths = [len(row.complete) for row in rows]
    fields = []
    for part, fill in zip(whole, (0, -torch.inf, True), strict=True):
        batch = pad_sequence([*part.split(lengths)], batch_first=True, padding_value=fill)
        more = batch.new_full((len(batch), length - batch.shape[1], *batch.shape[2:]), fill)
        fields.append(torch.cat([batch, more], dim=1).to(device))
    return Likeliest(*fields)
