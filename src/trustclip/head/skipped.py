r"""Blocks of the vocabulary that a gradient leaves out, and what that can change: certified.

Of a loss with the coefficient $g_i$ at $\log\pi_i(y_i)$, $z = (W h + b)/T$, the gradient in the
logits is $g_i(1_{v = y_i} - \pi_{iv})$. Most of its entries are next to nothing, and they cost the
same products as the others. With ``skip`` a row $i$ leaves out blocks $D_i$ of the vocabulary, the
lightest ones, as long as their mass $m_i = \sum_{v\in D_i}\pi_{iv}$ is at most ``skip``; never the
block of its own token. Setting these entries to 0 changes

- the gradient in $h_i$ by $\frac{g_i}T\sum_{v\in D_i}\pi_{iv} W_v$, whose length is at most
  $\frac{|g_i|}T\, m_i \max_v\|W_v\|$, which is reached where these rows of $W$ are equal;
- the gradient in $W_v$ by $\sum_{i: v\in D_i}\frac{g_i}T\pi_{iv} h_i$: the lengths over all $v$ add
  up to at most $\frac1T\sum_i |g_i|\, m_i \|h_i\|$, which bounds the Frobenius norm, too;
- the gradient in $b$ by at most $\frac1T\sum_i |g_i|\, m_i$, summed over $v$.

A cap of the logits multiplies entries by at most 1 and leaves the bounds as they are.
`Scores.dropped` is $m_i$, and `error_bounds` has the three numbers. Log-probabilities and entropies
are not changed, and a gradient that arrives at an entropy leaves out nothing: its entries,
$\pi(\log\pi + H)$, are not bounded by $\pi$.

It is a bound of the gradient, not of a step: an optimizer that divides each entry by its size, as
Adam does, makes as much of an entry that is next to nothing as of any other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trustclip.head.product import Chunk, Head, add_to_rows
from trustclip.head.softmax import Running

#: What rounding may add to a sum of masses, relative to it.
_ROUNDING = 1e-5
#: Gap in nats between two maxima beyond which the smaller one counts as this far below: e^-40 times
#: anything is no digit of the sum, and stays a normal number of float32.
FAR = 40.0


class ErrorBounds(NamedTuple):
    """Largest change of gradients by what was left out of them.

    Args:
      hidden: length of the change in each row's hidden state. Shape [N].
      weight: sum over the vocabulary of lengths of changes of its rows. No dimension.
      bias: sum over the vocabulary of changes. No dimension.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor


@torch.no_grad()
def error_bounds(head: Head, hidden: Tensor, grad_logp: Tensor, dropped: Tensor) -> ErrorBounds:
    r"""The bounds at the top of this module.

    Args:
      head: $W$ and $T$.
      hidden: $h$. Shape [N, H].
      grad_logp: $g$, gradient of the loss in each log-probability. Shape [N].
      dropped: $m$, `Scores.dropped`. Shape [N].

    Example:
      >>> from trustclip.head import Head, score
      >>> head = Head(torch.eye(3).double(), skip=1e-3)
      >>> hidden = torch.tensor([[0.0, -9.0, -9.5]], dtype=torch.float64)
      >>> dropped = torch.tensor([2e-4], dtype=torch.float64)
      >>> bounds = error_bounds(head, hidden, torch.tensor([0.5]), dropped)
      >>> round(bounds.hidden.item(), 9), round(bounds.weight.item(), 9)
      (0.0001, 0.001308625)
    """
    moved = grad_logp.double().abs() * dropped.double() / head.temperature  # [N]
    tallest = torch.stack(
        [part.double().norm(dim=1).max() for part in head.weight.split(16_384)]
    ).max()
    return ErrorBounds(moved * tallest, moved @ hidden.double().norm(dim=1), moved.sum())


class Blocks:
    """Which blocks of the vocabulary each row keeps, found while the tiles come.

    Args:
      head: with a ``skip``.
      tokens: number of rows.
    """

    def __init__(self, head: Head, tokens: int) -> None:
        self._head = head
        count = sum(1 for _ in head.columns(0))
        #: Shape [N, blocks].
        self.kept: Tensor = head.weight.new_ones(tokens, count, dtype=torch.bool)
        #: Mass that each row leaves out. Shape [N].
        self.dropped: Tensor = head.weight.new_zeros(tokens, dtype=head.dtype)

    def close(
        self, block: slice, ids: Tensor, running: Running, tops: Tensor, masses: Tensor
    ) -> list[Tensor | slice]:
        """Choose, when the last tile of some rows has come.

        Args:
          block: the rows.
          ids: their tokens. Shape [rows].
          running: their statistics.
          tops: largest logit as of each tile. Shape [tiles, rows].
          masses: sum of the weights of each tile, about that. Shape [tiles, rows].

        Returns:
          For each tile, see `rows_kept`.
        """
        share = masses.double() * (tops.double() - running.max.double()).exp() / running.sum
        own = ids // next(self._head.columns(0)).stop  # [rows], a tile
        kept, dropped = lightest(share, own, self._head.skip)
        self.kept[block], self.dropped[block] = kept.T, dropped.to(self.dropped.dtype)
        return rows_kept(kept)

    def add_means(
        self,
        mean: Tensor,
        weights: Chunk,
        gap: Tensor,
        chosen: Sequence[Tensor | slice],
    ) -> None:
        """Add the products of the weights that are kept and the head's rows.

        Args:
          mean: of these rows, about their largest logit. Shape [rows, H].
          weights: of all tiles of them, as they came.
          gap: how far the largest logit as of each tile was below the last. Shape [tiles, rows].
          chosen: rows that keep each tile.
        """
        factors = gap.clamp(max=FAR).neg_().exp_()  # [tiles, rows]
        tiles = self._head.columns(len(mean))
        for columns, rows, factor in zip(tiles, chosen, factors, strict=True):
            if isinstance(rows, slice) or len(rows):
                e = weights.of(len(mean), columns)[rows]  # [rows kept, columns]
                add_to_rows(mean, rows, e, self._head.factor(columns), factor[rows])


def lightest(share: Tensor, own: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """The blocks that stay when each row leaves out its lightest ones, and the mass it leaves out.

    Args:
      share: probability mass of each block in each row. Shape [blocks, rows].
      own: the block that each row keeps in any case. Shape [rows].
      most: mass that a row may leave out.

    Returns:
      (kept, dropped): bool [blocks, rows], float64 [rows].

    Example:
      >>> share = torch.tensor([[0.90, 0.03, 0.06, 0.01], [0.50, 0.04, 0.40, 0.06]]).double()
      >>> kept, dropped = lightest(share.T, torch.tensor([0, 1]), most=0.11)
      >>> kept.T.tolist(), [round(x, 6) for x in dropped.tolist()]
      ([[True, False, False, False], [True, True, True, False]], [0.1, 0.06])
    """
    share = share.double()
    guarded = share.scatter(0, own[None], torch.inf)
    ordered, place = guarded.sort(dim=0)
    # A NaN is not at most anything, so such a row leaves out nothing.
    gone = ordered.cumsum(dim=0) * (1 + _ROUNDING) <= most * (1 + 2 * _ROUNDING)
    kept = torch.empty_like(gone).scatter_(0, place, ~gone)
    return kept, torch.where(kept, 0.0, share).sum(dim=0)


def rows_kept(kept: Tensor) -> list[Tensor | slice]:
    """Indices of the rows that keep each block; a slice where all do. Waits for the device once.

    Args:
      kept: Shape [blocks, rows].
    """
    # In the order of rows, the kept ones first: `nonzero` would wait for each block.
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
    counts = kept.sum(dim=1).tolist()
    whole = kept.shape[1]
    return [slice(None) if n == whole else order[t, :n] for t, n in enumerate(counts)]
