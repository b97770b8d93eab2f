"""Heads whose rows several ranks share, weights gathered whole, sequences that ranks share."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trustclip.head.softmax import Running


@dataclass(frozen=True)
class Shard:
    """Rows of a vocabulary that the ranks of a group share."""

    group: Any
    first: int  # number of this rank's first token
    tokens: int  # size of the vocabulary

    def add(self, x: Tensor) -> Tensor:
        """Sum over the group, in place."""
        dist.all_reduce(x, group=self.group)
        return x

    def combine(self, running: Running, mean: Tensor | None, squares: Tensor | None) -> None:
        """Make statistics of each rank's tokens those of the vocabulary, in place.

        With the peak $m$ of all ranks, sums shrink by $e^{m_r - m}$, sums of squares by its square,
        and moments about $m_r$ become moments about $m$; then they add up: two exchanges of a few
        numbers a token, and one of the mean, a weighted sum of this rank's rows about its own peak.
        [rows, H]
        """
        gap = running.max.clone()  # [rows]
        dist.all_reduce(running.max, dist.ReduceOp.MAX, group=self.group)
        gap.sub_(running.max)
        shrink = gap.exp()
        if running.first_moment is not None:
            running.first_moment.addcmul_(running.sum, gap).mul_(shrink)
        sums = [running.sum.mul_(shrink)]
        if running.rounded_sum is not None:
            sums.append(running.rounded_sum.mul_(shrink))
        if squares is not None:
            sums.append(squares.mul_(shrink.square()))
        sums += [x for x in (running.first_moment, running.chosen) if x is not None]
        for x, total in zip(sums, self.add(torch.stack(sums)), strict=True):
            x.copy_(total)
        if mean is not None:
            self.add(mean.mul_(shrink[:, None]))

    def log_partition(self, own: Tensor) -> Tensor:
        """Log-partition over the group from that of this rank's tokens. Shape of ``own``."""
        top = own.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
        return self.add((own - top).exp()).log_().add_(top)


def shard_of(weight: Tensor, group: Any) -> Shard:
    """Which rows of a vocabulary the weight has; call it on every rank of the group."""
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=weight.device)
    rank = dist.get_rank(group)
    sizes[rank] = len(weight)
    dist.all_reduce(sizes, group=group)
    before = sizes.tolist()
    return Shard(group, sum(before[:rank]), sum(before))


def is_dtensor(x: object) -> bool:
    """Whether it is a DTensor; the module takes seconds to import, and a DTensor implies it."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(x, loaded.DTensor)


def gathered(weight: Any) -> Tensor:
    """A weight that FSDP2 shards, whole on every rank, for tokens that differ between ranks.

    Its gradient is the mean over ranks, sharded again, as FSDP2 computes it for a parameter within
    the forward pass of its module. There parameters are whole already, and nothing is gathered.

    Args:
      weight: a DTensor; any other tensor is returned unchanged.
    """
    if not is_dtensor(weight):
        return weight
    mesh, partial = weight.device_mesh, sys.modules["torch.distributed.tensor"].Partial
    whole = weight.full_tensor(grad_placements=[partial()] * mesh.ndim)
    ranks = mesh.size()
    if whole.requires_grad:
        whole.register_hook(lambda gradient: gradient / ranks)
    return whole


def whole_sequences(own: Tensor, group: Any) -> Tensor:
    """A number of each token, from ranks that have some tokens of every sequence each.

    For sequence parallelism (Ulysses, context parallelism): a rank scores its own tokens, and every
    rank then computes the whole loss, so that levels, aggregations and metrics are those of whole
    sequences. The gradient that arrives is that of all ranks' loss, and a rank keeps its tokens'
    share times the number of ranks: the mean of a weight's gradient over ranks, which DDP and FSDP2
    compute, is then that of the loss. Call it on every rank.

    Args:
      own: of this rank's tokens, log-probabilities say. Shape [batch, time of this rank].
      group: process group in which ranks are in the order of their tokens.

    Returns:
      Shape [batch, time].
    """
    return _WholeSequences.apply(own, group)  # type: ignore[no-any-return]


class _WholeSequences(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any) -> Tensor:
        part = shard_of(own.T, group)
        ctx.own, ctx.ranks = (
            slice(part.first, part.first + own.shape[1]),
            dist.get_world_size(group),
        )
        whole = own.new_zeros(len(own), part.tokens)
        whole[:, ctx.own] = own
        return part.add(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.ranks * grads[0][:, ctx.own], None
