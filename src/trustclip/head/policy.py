"""A method's loss from hidden states: the method is known while the logits are computed."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import loss as losses
from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.base import Method, Trait, of_own_token
from trustclip.constraints.batch import Loss, TokenBatch
from trustclip.constraints.registry import as_method
from trustclip.head.exact import ORDERS, exact_kl
from trustclip.head.foreseen import Foresee
from trustclip.head.logprobs import Plan, scored
from trustclip.head.product import Head, as_head
from trustclip.support.names import unknown


@dataclass(frozen=True)
class HeadLoss(Loss):
    """A loss, and the scores of each token that it was computed from.

    Args:
      logp: log-probabilities of the tokens, nats, with their graph; 0 where masked.
        Shape [batch, time].
      entropy: of the distributions they were drawn from, nats; None if not requested.
        Shape [batch, time].
    """

    logp: Tensor
    entropy: Tensor | None


@dataclass(frozen=True)
class Options:
    """Keywords of `policy_loss`; see there."""

    aggregation: str = "token_mean"
    max_length: int | None = None
    total_tokens: int | Tensor | None = None
    entropy: bool = False
    hidden_old: Tensor | None = None
    weight_old: Tensor | None = None


def policy_loss(
    method: Method | str | Mapping[str, Any],
    hidden: Tensor,
    weight: Tensor | Head,
    ids: Tensor,
    batch: TokenBatch,
    **options: Any,
) -> HeadLoss:
    r"""`trustclip.policy_loss` from last hidden states, with the head's gradients on the way.

    A trained head costs 3 products of $2NHV$ operations where a coefficient depends on its own
    token alone (`trustclip.constraints.base.of_own_token`): logits, the gradient of the hidden
    states and that of the weight. While the logits of a block of tokens are at hand, so are its
    log-probabilities and with them its coefficients. Backward compares the gradient that arrives
    with the one foreseen; a common factor (a sum of losses, accumulation, loss scaling) is
    multiplied in, and anything else recomputes the tiles, at 2 products more. So the result is
    right whatever is done to the loss. Other methods cost 4 products, as do capped logits and a
    vocabulary that ranks share; a frozen head costs 2.

    Args:
      method: the constraint, its name, or a mapping.
      hidden: $h$, that predict the tokens. Shape [batch, time, H]; [tokens, H] if ``batch`` was
        packed.
      weight: $W$, [V, H], or a `Head` with a bias, a temperature or a cap.
      ids: the tokens, int64. Shape [batch, time]; [tokens] if packed.
      batch: their other quantities. Its ``logp`` is not read: pass ``logp_old`` in its place.
      **options: ``aggregation``, ``max_length``, ``total_tokens`` as in `trustclip.policy_loss`;
        ``entropy=True`` for entropies; ``hidden_old``, of the shape of ``hidden``, and
        ``weight_old``, if it has changed, where the method needs an exact KL divergence, which is
        then computed by `exact_kl` at 2 products.

    Returns:
      The loss, with log-probabilities and entropies; metrics include ``entropy`` if there are any.

    Raises:
      ValueError: what `trustclip.policy_loss` refuses, shapes that do not fit, an unknown option,
        or a method that pulls along the gradient of an exact KL divergence: `exact_kl` has none.

    Example:
      >>> import trustclip as tc
      >>> hidden = torch.tensor([[[0.4, 0.6], [0.9, 0.1]]]).log().requires_grad_()
      >>> weight = torch.eye(2).requires_grad_()
      >>> old = torch.tensor([[0.5, 0.3]]).log()
      >>> batch = tc.TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> loss = policy_loss("atr", hidden, weight, torch.zeros(1, 2, dtype=torch.int64), batch)
      >>> loss.value.backward()
      >>> weight.grad  # the second token's ratio of 3 is gated
      tensor([[ 0.2199,  0.1226],
              [-0.2199, -0.1226]])
    """
    method, settings = as_method(method), _options(options)
    head = as_head(weight)
    rows = _Rows.of(batch, hidden, ids)
    batch = rows.with_kl(batch, method, head, settings)
    pulls = method.traits & (Trait.NEEDS_KL_GRADIENT | Trait.MOVES_CANDIDATES)
    ready = method.statistics_over is None or batch.statistics is not None
    foresee = None
    if of_own_token(method) and ready and not pulls:
        foresee = foreseeing(method, batch, rows.places, _shares(batch, settings))
    entropy = settings.entropy or "entropy" in method.requires
    scores = scored(head, rows.hidden, rows.ids, Plan(entropy=entropy, foresee=foresee))
    entropies = None if scores.entropy is None else rows.grid(scores.entropy)
    batch = replace(
        batch,
        logp=rows.grid(scores.logp),
        entropy=None if entropies is None else entropies.detach(),
    )
    scaling = settings.aggregation, settings.max_length, settings.total_tokens
    loss = losses.policy_loss(method, batch, *scaling)
    return HeadLoss(loss.value, loss.per_token, loss.metrics, batch.logp, entropies)


def _options(arguments: dict[str, Any]) -> Options:
    names = [f.name for f in fields(Options)]
    for name in arguments:
        if name not in names:
            raise ValueError(unknown("option", name, names))
    return Options(**arguments)


@dataclass(frozen=True)
class _Rows:
    """The tokens as rows of the head."""

    hidden: Tensor  # [N, H]
    ids: Tensor  # -100 where masked. [N]
    places: Tensor  # of each row in [batch, time], flattened. [N]
    shape: tuple[int, int]  # batch, time

    @classmethod
    def of(cls, batch: TokenBatch, hidden: Tensor, ids: Tensor) -> "_Rows":
        shape = batch.mask.shape
        packing = batch.packing
        leading = tuple(shape) if packing is None else (packing.tokens,)
        for name, x, want in (("hidden", hidden, (*leading, "H")), ("ids", ids, leading)):
            if tuple(x.shape[: len(leading)]) != leading or x.dim() != len(want):
                expected = ", ".join(map(str, want))
                raise ValueError(f"`{name}` must be [{expected}], got shape {tuple(x.shape)}.")
        if packing is None:
            places = torch.arange(shape.numel(), device=ids.device)
        else:
            places = packing.mask.flatten().nonzero().squeeze(1).to(ids.device)
        ids = torch.where(batch.mask.flatten()[places], ids.flatten(), -100)
        return cls(hidden.reshape(len(ids), -1), ids, places, (shape[0], shape[1]))

    def grid(self, x: Tensor) -> Tensor:
        """Values of the rows as [batch, time], 0 where there is none."""
        zeros = x.new_zeros(self.shape[0] * self.shape[1])
        return zeros.index_copy(0, self.places, x).view(self.shape)

    def with_kl(
        self, batch: TokenBatch, method: Method, head: Head, options: Options
    ) -> TokenBatch:
        """The batch with the exact KL divergences that a method requires and the batch lacks."""
        for order in ORDERS:
            name = f"kl_{order}"
            if name not in method.requires or getattr(batch, name) is not None:
                continue
            if options.hidden_old is None:
                raise ValueError(f"method {method.name!r} needs `{name}`: give `hidden_old`.")
            valid = self.ids >= 0
            old = options.hidden_old.reshape(len(self.ids), -1)[valid]
            kl = exact_kl(self.hidden[valid], old, head, options.weight_old, order)
            whole = kl.new_zeros(len(valid)).masked_scatter(valid, kl)
            batch = replace(batch, **{name: self.grid(whole)})
        return batch


def _shares(batch: TokenBatch, options: Options) -> Tensor:
    """Minus the weight of each token's objective in the loss. Shape [batch, time]."""
    with torch.enable_grad():
        zeros = torch.zeros_like(batch.logp_old).requires_grad_()
        scaling = options.max_length, options.total_tokens
        value = aggregate(options.aggregation, -zeros, batch.mask, *scaling)
        return torch.autograd.grad(value, zeros)[0]


def foreseeing(
    method: Method, batch: TokenBatch, places: Tensor, shares: Tensor, on_policy: bool = False
) -> Foresee:
    """The gradient of a loss with respect to the log-probabilities of rows of the head.

    ``places`` are those of the rows in [batch, time], flattened; ``shares`` [batch, time] the
    derivatives of the loss in each token's objective; ``on_policy``: ratios are 1. The method is of
    `of_own_token`, and the batch's ``logp`` is not read.
    """
    whole = ("packing", "candidates")  # not one number per token
    values = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name not in whole}
    flat = {k: x.flatten() if isinstance(x, Tensor) else x for k, x in values.items()}
    shares = shares.flatten()

    def of_rows(rows: Tensor, logp: Tensor, entropy: Tensor | None) -> Tensor:
        at = places[rows]  # [rows]
        own: Any = {k: x[at][None] if isinstance(x, Tensor) else x for k, x in flat.items()}
        own |= {"logp": logp[None], "entropy": None if entropy is None else entropy[None]}
        own |= {"logp_old": logp[None]} if on_policy else {}
        return losses.coefficient(method, TokenBatch(**own))[0] * shares[at]

    return of_rows
