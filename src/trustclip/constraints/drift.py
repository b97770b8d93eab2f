r"""The drift of an update: what it does on average over the sampler's tokens, whatever the reward.

At one position, with $q$ the sampler, $p$ the current policy and $c_v$ a method's coefficient of
candidate $v$ (a function of the advantage's sign where a gate depends on it),

$$
\mathbb E_{y\sim q}[A\, c_y \nabla\log p_y] \;=\;
\underbrace{\mathbb E_q[A]\, \sum_v q_v c_v \nabla\log p_v}_{\text{drift}}
\;+\; \operatorname{Cov}_q(A,\, c \nabla\log p).
$$

The drift holds no reward. It is zero where $q = p$ and nothing is cut, and it recurs with
every update. A token's own share of it is $A \sum_v q_v c_v \nabla\log p_v$, with the $c_v$ of its
sign: that is what ``centered`` subtracts, and what the metrics ``drift/*`` measure.

Which way it points (old policy = sampler; a step along the natural gradient, of one unit):

* importance weights, $q_v c_v = p_v$: $\sum_v p_v \nabla\log p_v = 0$, no drift.
* REINFORCE, $c = 1$: the divergence $KL(q\|p)$ changes by $-A\,\chi^2(q\|p)$: towards the sampler
  for $A > 0$, away from it for $A < 0$.
* An outward gate of an interval $[l, u]$ (a clip, ``atr``): for $A > 0$ what is cut is
  $C = \{v: p_v > u\, q_v\}$, the drift is $-A \sum_C p_v \nabla\log p_v$, which lowers the
  logits of $C$ alike, and $KL(q\|p)$ changes by $-A\,(p(C) - q(C)) < 0$. For $A < 0$ it is
  $C = \{v: p_v < l\, q_v\}$ and the change $-|A|\,(q(C) - p(C)) < 0$. So the trust region is a
  drift, back to the sampler for both signs; centering a gate takes that force away and leaves the
  gate.
"""

from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.base import Method, Trait, moves_candidates, of_own_token
from trustclip.constraints.batch import Metrics, TokenBatch
from trustclip.constraints.candidates import TENSORS, Candidates
from trustclip.constraints.compiled import constant
from trustclip.constraints.compose import Composite
from trustclip.constraints.gradients import gradient
from trustclip.constraints.masked import masked_sum, safe_exp, zero_masked

#: Least mass beyond the candidates, as in the released code: a tail of 0 has no ratio.
FLOOR = 1e-6

#: Log-probability of a token beyond the candidates: they are many, and each is rare.
_RARE = -30.0

#: Tokens of a batch whose candidates pass a method at a time.
_AT_ONCE = 1 << 22


class Expected(NamedTuple):
    """What the sampler is expected to do at each position, under a method.

    Args:
      gradient: $q_v$ times the method's coefficient of each candidate. Shape [batch, time,
        candidates].
      beyond: the same of all tokens beyond the candidates together. Shape [batch, time].
      p: probabilities under the current policy; 0 where there is no candidate.
      q: the same under the sampler.
      p_beyond: mass beyond the candidates under the current policy. Shape [batch, time].
      q_beyond: the same under the sampler: 0 unless the candidates are partial.
    """

    gradient: Tensor
    beyond: Tensor
    p: Tensor
    q: Tensor
    p_beyond: Tensor
    q_beyond: Tensor


def expected(method: Method, batch: TokenBatch) -> Expected:
    """Coefficients of a method `of_own_token` at every candidate, weighed by the sampler.

    Raises:
      ValueError: there are no candidates, or a field is missing that the method requires.
    """
    candidates = batch.given("candidates").map(torch.Tensor.detach)
    valid, partial = candidates.valid, candidates.partial
    p, old, q = (zero_masked(getattr(candidates, n).exp(), valid) for n in TENSORS)
    p_beyond = (1 - p.sum(dim=2)).clamp(min=0)  # [batch, time]
    q_beyond = torch.zeros_like(p_beyond)
    weight = q
    if partial is not False:
        is_partial = torch.as_tensor(partial, device=p.device).expand_as(p_beyond)
        masses = [(1 - x.sum(dim=2)).clamp(min=FLOOR) for x in (p, old, q)]  # [batch, time]
        # One more candidate for the rest: its ratios are those of the masses.
        rest = {
            name: torch.where(is_partial, _RARE + (mass / masses[0]).log(), -torch.inf)
            for name, mass in zip(TENSORS, masses, strict=True)
        }
        p_beyond = torch.where(is_partial, masses[0], p_beyond)
        q_beyond = zero_masked(masses[2], is_partial)
        new, before, sampler = (
            torch.cat([getattr(candidates, n), rest[n][..., None]], dim=2) for n in TENSORS
        )  # [batch, time, candidates + 1]
        candidates = Candidates(new, before, sampler).prepared(batch.mask)
        valid = candidates.valid
        weight = torch.cat([q, q_beyond[..., None]], dim=2)
    c = zero_masked(weight * coefficients(method, batch, candidates), valid)
    beyond = torch.zeros_like(p_beyond) if partial is False else c[..., -1]
    return Expected(c[..., : p.shape[2]], beyond, p, q, p_beyond, q_beyond)


def coefficients(method: Method, batch: TokenBatch, candidates: Candidates) -> Tensor:
    """`trustclip.coefficient` of each candidate, as if it had been sampled. [batch, time, k]."""
    if method.statistics_over and batch.statistics is None:
        # Of the sampled tokens, here: below the candidates stand in their place.
        batch = batch.having(statistics=method.statistics(batch))
    rows, time, k = candidates.logp.shape
    step = max(1, _AT_ONCE // max(1, time * k))
    parts = [_of_rows(method, batch, candidates, slice(i, i + step)) for i in range(0, rows, step)]
    return torch.cat(parts) if parts else torch.zeros_like(candidates.logp)


def _of_rows(method: Method, batch: TokenBatch, candidates: Candidates, rows: slice) -> Tensor:
    shape = candidates.logp[rows].shape
    valid = candidates.valid[rows] & batch.mask[rows][..., None]
    flat: dict[str, Any] = {
        f.name: value[rows].detach()[..., None].expand(shape).flatten(1)
        for f in fields(batch)
        if isinstance(value := getattr(batch, f.name), Tensor)
    }
    flat |= {name: getattr(candidates, name)[rows].flatten(1) for name in TENSORS}
    flat |= {"mask": valid.flatten(1), "statistics": batch.statistics}
    return gradient(method, TokenBatch(**flat))[0].view(shape)


def objective(method: Method, batch: TokenBatch) -> Tensor:
    r"""The drift of each token as an objective: 0 in value, with the gradient of the drift.

    $\sum_v (q_v c_v - \alpha p_v) \nabla\log p_v$ with $\alpha = c_{rest}\, (1-Q)/(1-P)$ for what
    lies beyond the candidates: $\sum_v p_v \nabla\log p_v = 0$ gives the tail from the head.

    Returns:
      Differentiable in ``batch.candidates.logp``. Shape [batch, time].
    """
    with torch.no_grad():
        weight, beyond, p, _, p_beyond, _ = expected(method, batch)
        if batch.given("candidates").partial is not False:
            weight = weight - (beyond / p_beyond.clamp(min=FLOOR))[..., None] * p
    logp = batch.given("candidates").logp
    return (weight * (logp - logp.detach())).sum(dim=2)


@constant
def centering_problem(method: Method) -> str | None:
    """Why a method has no coefficient at a token that was not sampled; None if it has.

    Example:
      >>> import trustclip as tc
      >>> centering_problem(tc.method("gspo"))
      "a token's coefficient depends on the other tokens"
    """
    if not of_own_token(method):
        return "a token's coefficient depends on the other tokens"
    if any(name.startswith("top_k_") for name in method.requires):
        return "its divergence is of the likeliest tokens and the sampled one"
    if moves_candidates(method):
        return "it moves tokens that were not sampled itself"
    if "logp_ref" in method.requires:
        return "the reference model scores the sampled token alone"
    if Trait.NEEDS_KL_GRADIENT in method.traits:
        return "the gradient of the full KL takes part"
    return None


@torch.no_grad()
def drift_metrics(batch: TokenBatch, method: Method) -> Metrics:
    r"""The drift ledger as (sum, count); nothing without candidates.

    In the space of the logits, where a token's gradient is $g = A c_y (e_y - p)$ and its drift
    $d = A\sum_v q_v c_v (e_v - p)$: ``drift/size`` is the mean of $\|d\|^2$, ``drift/signal`` that
    of $\|g - d\|^2$, and ``drift/share`` the first over the sum of both, over all tokens.
    ``drift/pull`` is what the drift takes from $KL(q\|p)$ for a unit step of the natural gradient,
    $\sum_v A q_v c_v (q_v/p_v - 1)$: positive towards the sampler. ``drift/pull_positive`` and
    ``drift/pull_negative`` are the same for tokens of one sign of the advantage, per unit of
    advantage. ``drift/covered`` is the sampler's probability of the candidates.

    The squares are exact where nothing lies beyond the candidates, and where
    ``candidates.collision`` is known (in TRL it is). Without it all tokens beyond count as one:
    ``drift/size`` is then an upper bound, up to 20 times too large under a top-p of 0.9.

    Of a centered method it is what was taken away: the drift of the method inside. Nothing for a
    method with a `centering_problem`. All tokens of the batch have finite numbers.

    Example:
      >>> import trustclip as tc
      >>> p, q = torch.tensor([[[0.8, 0.2]]]).log(), torch.tensor([[[0.5, 0.5]]]).log()
      >>> batch = tc.TokenBatch(p[..., 0], q[..., 0], torch.ones(1, 1), torch.ones(1, 1) > 0,
      ...                       candidates=Candidates(p, q, q))
      >>> metrics = drift_metrics(batch, tc.method("reinforce"))
      >>> round(metrics["drift/pull"][0].item(), 4)  # 0.5 (0.5/0.8 - 1) + 0.5 (0.5/0.2 - 1)
      0.5625
    """
    if batch.candidates is None:
        return {}
    while isinstance(method, Composite) and moves_candidates(method):
        method, batch = method.parts[0], method.of_part(0, batch)
    if batch.candidates is None or centering_problem(method) is not None:
        return {}
    qc, qc_beyond, p, q, p_beyond, q_beyond = expected(method, batch)
    c = gradient(method, batch)[0]
    positions = batch.mask & batch.candidates.valid.any(dim=2)  # [batch, time], as all below
    total = qc.sum(dim=2) + qc_beyond
    beyond = qc_beyond - total * p_beyond
    drift = qc - total[..., None] * p  # [batch, time, candidates]
    # What lies beyond is shared out as p is: the sum of its squares over the square of its sum,
    # 1 if it is one token.
    squares, together = (p**2).sum(dim=2), p_beyond**2
    single = torch.ones_like(squares)
    if (collision := batch.candidates.collision) is not None:
        single = ((collision - squares) / together.clamp(min=1e-30)).clamp(0, 1)
    size = (drift**2).sum(dim=2) + single * beyond**2
    # Of the sampled token, whose place among the candidates is not known.
    sampler = batch if batch.logp_rollout is None else batch.against("rollout")
    p_y, q_y = batch.logp.exp(), sampler.logp_old.exp()
    along_p = (p * drift).sum(dim=2) + single * p_beyond * beyond
    whole = c**2 * (1 - 2 * p_y + squares + single * together)
    inner = c * (q_y * c - total * p_y - along_p)
    signal = (whole - 2 * inner + size).clamp(min=0)
    # [batch, time, candidates]
    ratio = safe_exp(batch.candidates.logp_rollout - batch.candidates.logp)
    rest = q_beyond / p_beyond.clamp(min=FLOOR)
    pull = (qc * (ratio - 1)).sum(dim=2) + qc_beyond * (rest - 1)
    count, a = positions.sum().to(c.dtype), batch.advantages
    by_sign = {"positive": positions & (a > 0), "negative": positions & (a < 0)}
    return {
        "drift/size": (masked_sum(size, positions), count),
        "drift/signal": (masked_sum(signal, positions), count),
        "drift/share": (masked_sum(size, positions), masked_sum(size + signal, positions)),
        "drift/pull": (masked_sum(pull, positions), count),
        **{
            f"drift/pull_{sign}": (masked_sum(pull, tokens), masked_sum(a.abs(), tokens))
            for sign, tokens in by_sign.items()
        },
        "drift/covered": (masked_sum(q.sum(dim=2), positions), count),
    }
