"""Candidates of every position in TRL: the sampler's likeliest tokens, under all three policies.

A TRL input dictionary carries those of the sampler and of the old policy under the names of
`CANDIDATES`, row by row, so that they are split, shuffled and checkpointed like any other input.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trustclip.constraints.candidates import Candidates
from trustclip.engines.trl.scoring.skipping import spread

#: vLLM is asked for at most so many tokens at a position: each is a Python object there.
MOST = 1024

#: This stands in place of a number and means all tokens that can be drawn.
DRAWABLE = -1

#: Names among TRL's inputs: ids (int32, no columns for the whole vocabulary), log-probabilities
#: under the sampler, whether it could draw no others, and log-probabilities under the old policy.
CANDIDATES = ("further_ids", "further_logp_rollout", "further_complete", "further_logp_old")


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
      >>> top = likeliest(torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.4, 0.6]]).log(), 2)
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


def padded(rows: Sequence[Likeliest], length: int, device: torch.device) -> Likeliest:
    """Completions of different lengths as [batch, length, ...]; no candidates after the end."""
    lengths = torch.tensor([len(row.complete) for row in rows])
    there = torch.arange(length) < lengths[:, None]  # [batch, length]
    fields = []
    for part, fill in zip(join(rows), (0, -torch.inf, True), strict=True):
        whole = part.new_full((*there.shape, *part.shape[1:]), fill)
        whole[there] = part
        fields.append(whole.to(device))
    return Likeliest(*fields)


@dataclass
class Query:
    """Further tokens, and their log-probabilities as the passes compute them."""

    ids: Tensor  # as in `Likeliest`, in the order of the passes. [batch, time, k]
    #: By pass: nats [rows, positions, k], and `Scores.collision` [rows, positions].
    answers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _row: int = 0

    def of_pass(self, rows: int, width: int) -> Tensor:
        """Those of the next rows, at the last positions of a pass. Shape [rows * width, k]."""
        chosen = self.ids[self._row : self._row + rows]
        self._row += rows
        return F.pad(chosen, (0, 0, width - chosen.shape[1], 0)).flatten(0, 1)

    @property
    def of_completions(self) -> tuple[Tensor, Tensor]:
        """The answers of all passes. Shapes [batch, time, k] and [batch, time]."""
        time = self.ids.shape[1]
        parts = zip(*self.answers, strict=True)
        logps, collision = (torch.cat([x[:, -time:] for x in part]) for part in parts)
        return logps, collision


@contextmanager
def querying(request: Any, ids: Tensor | None) -> Iterator[Query | None]:
    """Request log-probabilities of further tokens from the head, for the passes of the block."""
    if ids is None or request is None:
        yield None
        return
    request.further = query = Query(ids)
    try:
        yield query
    finally:
        request.further = None


def of_inputs(
    inputs: Mapping[str, Any], further: tuple[Tensor, Tensor], rows: Tensor | None, on_policy: bool
) -> Candidates:
    """The candidates of a micro-batch, from TRL's inputs with the entries `CANDIDATES`.

    ``further`` are log-probabilities, which carry the gradient, and collisions, as in
    `Query.of_completions`; ``rows`` are the completions that were scored.
    """
    logps, collision = further
    _, rollout, complete, old = (inputs.get(name) for name in CANDIDATES)
    assert rollout is not None and complete is not None
    if rows is not None:  # the others have no advantage: their values here are multiplied by 0
        logps = spread(logps, rows, rollout.clamp(min=-100))
        collision = spread(collision, rows, collision.new_zeros(rollout.shape[:2]))
    old = logps.detach() if on_policy or old is None else old
    return Candidates(logps, old, rollout, ~complete, collision)


def pull(gradient: Tensor, logps: Tensor) -> Tensor:
    """A sum over candidates of value 0, with this gradient in each log-probability. [batch, time]

    Both arguments are [batch, time, k]; the gradient is 0 where there is no candidate.
    """
    with torch.enable_grad():
        moved = torch.where(gradient == 0, 0.0, logps - logps.detach())
        return (gradient.to(logps.dtype) * moved).sum(dim=2)


def replay(logps: Tensor, further: Tensor, rollout: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log-probabilities over the set that the sampler kept, $z_y - \log\sum_{v \in S} e^{z_v}$.

    Args:
      logps: of the sampled tokens over the whole vocabulary, nats. Shape [batch, time].
      further: of the kept tokens. Shape [batch, time, k].
      rollout: those under the sampler; -inf where there are fewer. Shape [batch, time, k].

    Returns:
      The first two over the kept set; unchanged where that is unknown.
    """
    kept = rollout.isfinite()
    among = torch.where(kept, further, -torch.inf)
    nonempty = kept.any(dim=2)  # [batch, time]
    # A double where: the logsumexp of nothing but -inf has NaN for its gradient.
    mass = torch.where(nonempty[..., None], among, 0.0).logsumexp(dim=2)  # [batch, time]
    mass = torch.where(nonempty, mass, 0.0)
    return logps - mass, further - mass[..., None]
