r"""The sampler's mismatch: how far the proximal and the current policy are from the one that drew.

Three policies take part in an update: the current one $\pi_\theta$ (``logp``), the proximal one
$\pi_{old}$ that the update started from (``logp_old``), and the sampler $\pi_b$ that drew the
tokens (``logp_rollout``): another engine, another precision, older weights. "The policy moved" is
$\pi_\theta$ against $\pi_{old}$, what `trustclip.constraints.diagnostics` measures; "the sampler
differs" is $\pi_{old}$ against $\pi_b$, measured here. All numbers are raw: before any method
truncates or masks a token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from trustclip.constraints import divergences
from trustclip.constraints.base import Method
from trustclip.constraints.batch import Metrics, TokenBatch
from trustclip.constraints.compiled import constant
from trustclip.constraints.masked import masked_sum, safe_exp, zero_masked
from trustclip.constraints.quantiles import bin_counts, quantile

#: First lag of each bucket, updates; fixed, so that sums add up over micro-batches and ranks.
LAGS = (0, 1, 2, 3, 5, 9, 17)

#: Quantiles of the log-ratio, by the digits after the decimal point.
QUANTILES = {"001": 0.001, "01": 0.01, "50": 0.5, "99": 0.99, "999": 0.999}

#: Smallest and largest log-ratio that the histogram tells from 0 and from infinity, nats, and bins
#: per decade: two engines differ by anything from rounding to whole nats, so bins widen with size.
_LEAST, _LARGEST, _BINS = 1e-6, 32.0, 20

_STEPS = math.ceil(_BINS * math.log10(_LARGEST / _LEAST))
_UPPER = [_LEAST * 10 ** (i / _BINS) for i in range(_STEPS)]

#: Edges of the histogram of log-ratios, nats; 0 is in the middle of a bin.
EDGES = (-_LARGEST, *(-x for x in reversed(_UPPER)), *_UPPER, _LARGEST)

#: Fields of which `TokenBatch.against` makes others: a gate on them has no other anchor.
_OF_OLD = ("kl_old_new", "kl_new_old", "top_k_kl", "top_k_tv")

#: The ways in which a trainer is compared with itself, and what differs in each.
WAYS = {
    "batch": "a batch of 1 against one of 8",
    "head": "the output head in chunks against all at once",
    "precision": "bfloat16 against float32",
}


@dataclass(frozen=True)
class Pairs:
    """Log-probabilities of the same tokens under the trainer and under the sampler. All [tokens].

    Args:
      trainer: under the proximal policy, by the program that trains, nats.
      sampler: as the sampler gave them, nats.
      entropy: of the proximal policy at each token, nats, if known.
      position: place of each token in its completion, from 0, if known.
      token: its id, if known.
      completion: number of its completion, from 0, if known.
      lag: updates between the weights that sampled it and those of the trainer, if known.
      sequences: ids of prompt and completion, by the number of the completion, if known.
      floor: differences of the trainer from itself on these tokens, nats, by what was changed, NaN
        where not measured; see `trustclip.engines.trl.scoring.floor`.
    """

    trainer: Tensor
    sampler: Tensor
    entropy: Tensor | None = None
    position: Tensor | None = None
    token: Tensor | None = None
    completion: Tensor | None = None
    lag: Tensor | None = None
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]] | None = None
    floor: Mapping[str, Tensor] | None = None


@torch.no_grad()
def sampler_metrics(batch: TokenBatch, method: Method | None = None, lags: bool = True) -> Metrics:
    r"""Distances from the sampler as (sum, count); nothing where it gave no log-probabilities.

    With $d_t = \log\pi_{old}(y_t) - \log\pi_b(y_t)$ and $\rho_t = e^{d_t}$, over the tokens that
    have both: ``sampler/k1`` and ``sampler/k3``, estimates of $KL(\pi_b\|\pi_{old})$ in nats,
    unbiased since $\pi_b$ drew the tokens; ``sampler/chi2``, of
    $\chi^2(\pi_{old}\|\pi_b) = E_b[(\rho-1)^2]$; ``sampler/abs``, the mean $|d_t|$, in which signs
    cannot cancel; ``sampler/identical_share``, the share with $d_t = 0$ exactly. Over completions
    with all their log-probabilities: ``sampler/sequence_ratio``, the mean of $e^{\sum_t d_t}$, and
    ``sampler/sequence_ratio_squared``, from which a `Window` makes ``sampler/sequence_ess``.
    ``sampler/current/*`` is the same with $\pi_\theta$ for $\pi_{old}$: the two distances in one.
    ``sampler/missing`` is the share of tokens without one.

    Where the batch has lags, ``.../lag_N`` is the same over the tokens sampled N updates ago (see
    `LAGS`), for ``sampler/k3``, ``sampler/abs``, ``sampler/current/k3``, and for ``k3`` of the
    current against the proximal policy; without ``lags`` they are left out. With a method, those of
    `gated_against`.

    Example:
      >>> old = torch.tensor([[0.5, 0.5]]).log()
      >>> batch = TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                    logp_rollout=torch.tensor([[0.5, 0.25]]).log())
      >>> metrics = sampler_metrics(batch)
      >>> [round((s / n).item(), 4) for s, n in (metrics[f"sampler/{k}"] for k in ("k3", "chi2"))]
      [0.1534, 0.5]
    """
    if batch.logp_rollout is None:
        return {}
    tokens = has_rollout(batch)
    x = zero_masked(batch.log_ratio, tokens)
    d = zero_masked(batch.rollout_log_ratio, tokens)
    dtype = d.dtype
    known, finite = tokens.sum().to(dtype), batch.finite.sum().to(dtype)
    metrics: Metrics = {"sampler/missing": (finite - known, finite)}
    # A completion with one unknown token has an unknown ratio.
    whole = (tokens | ~batch.mask).all(dim=1) & tokens.any(dim=1)  # [batch]
    for prefix, log_ratio in (("sampler/", d), ("sampler/current/", d + x)):
        distances = {  # each 0 where masked
            "k1": divergences.k1(log_ratio),
            # To every digit: a sampler in the same precision is 1e-6 nats away.
            "k3": divergences.k3(log_ratio),
            "chi2": divergences.chi2(log_ratio),
            "abs": log_ratio.abs(),
            "identical_share": tokens & (log_ratio == 0),
        }
        metrics |= {prefix + k: (value.sum().to(dtype), known) for k, value in distances.items()}
        ratio = safe_exp(log_ratio.sum(dim=1))  # [batch]
        metrics[prefix + "sequence_ratio"] = _pair(ratio, whole)
        metrics[prefix + "sequence_ratio_squared"] = _pair(ratio.square(), whole)
    if batch.lag is not None and lags:
        by_lag = {
            "k3": divergences.k3(x),
            "sampler/k3": divergences.k3(d),
            "sampler/abs": d.abs(),
            "sampler/current/k3": divergences.k3(d + x),
        }
        for name, among in _lags(batch.lag).items():
            metrics |= {f"{key}/{name}": _pair(v, tokens & among) for key, v in by_lag.items()}
    return metrics if method is None else {**metrics, **gated_against(batch, method)}


def has_rollout(batch: TokenBatch) -> Tensor:
    """True for finite unmasked tokens with a log-probability of the sampler. [batch, time]."""
    return batch.finite & ~batch.given("logp_rollout").isnan()


def _pair(value: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    value = value if value.is_floating_point() else value.float()
    return masked_sum(value, among), among.sum().to(value.dtype)


def _lags(lag: Tensor) -> dict[str, Tensor]:
    """Which tokens are of each bucket of `LAGS`. Each [batch, time]."""
    masks = {}
    for low, high in pairwise((*LAGS, math.inf)):
        last = "inf" if high == math.inf else str(int(high) - 1)
        name = f"lag_{low}" if last == str(low) else f"lag_{low}_{last}"
        masks[name] = (lag >= low) & (lag < high)
    return masks


def gated_against(batch: TokenBatch, method: Method) -> Metrics:
    r"""Share of tokens gated by a method measured against $\pi_{old}$, and against $\pi_b$.

    ``sampler/gated_old`` and ``sampler/gated_rollout``: a share that is large in the second alone
    is the sampler's doing, not that of the policy's movement. Both are measured as if the anchor
    had sampled: a correction of $\pi_{old}$ to the sampler (``tis``, ``icepop``) then leaves the
    inner gate alone, and a mask on $\pi_\theta/\pi_b$ is a trust region like any other. Nothing
    for a method on statistics of many tokens or on the exact KL divergence from the proximal
    policy, whose gate has no other anchor.

    Example:
      >>> import trustclip as tc
      >>> old = torch.tensor([[0.5, 0.5]]).log()
      >>> batch = TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                    logp_rollout=torch.tensor([[0.5, 0.25]]).log())
      >>> [s.item() for s, _ in gated_against(batch, tc.method("clip")).values()]
      [0.0, 1.0]
    """
    if _has_one_anchor(method):
        return {}
    tokens = has_rollout(batch)
    metrics = {}
    rollout = batch.given("logp_rollout")
    anchors = {"old": batch.logp_old, "rollout": rollout.where(~rollout.isnan(), batch.logp_old)}
    for name, anchor in anchors.items():
        # As if the anchor had just sampled, so that methods anchored to the sampler use it, too.
        lag = None if batch.lag is None else torch.zeros_like(batch.lag)
        same = batch.having(logp_old=anchor, logp_rollout=anchor, lag=lag)
        metrics[f"sampler/gated_{name}"] = _pair(~method.surrogate(same).kept, tokens)
    return metrics


@constant
def _has_one_anchor(method: Method) -> bool:
    return method.statistics_over is not None or any(name in _OF_OLD for name in method.requires)


@torch.no_grad()
def log_ratio_histogram(batch: TokenBatch) -> Tensor | None:
    """Counts of the log-ratio proximal / sampler between `EDGES`; None without a sampler's."""
    if batch.logp_rollout is None:
        return None
    return bin_counts(batch.rollout_log_ratio, EDGES, has_rollout(batch))


def summary(means: dict[str, float], histogram: Tensor | None) -> dict[str, float]:
    r"""What a `Window` reports of the sampler: the means, and what follows from all of them.

    ``sampler/sequence_ess`` and ``sampler/current/sequence_ess`` are Kish's effective sample size
    over the number of completions, $(\sum_i w_i)^2 / (N \sum_i w_i^2)$ with $w_i$ the ratio of a
    whole completion, 1 if all weigh alike and $1/N$ if one outweighs the rest.
    ``sampler/log_ratio_q001`` to ``_q999`` are the quantiles 0.001 to 0.999 of
    $\log(\pi_{old}/\pi_b)$, from `log_ratio_histogram`, within 6 %, and 0 below 1e-6.

    Example:
      >>> means = {"sampler/sequence_ratio": 1.0, "sampler/sequence_ratio_squared": 1.25}
      >>> summary(means, None)
      {'sampler/sequence_ratio': 1.0, 'sampler/sequence_ess': 0.8}
    """
    metrics = dict(means)
    for prefix in ("sampler/", "sampler/current/"):
        squared = metrics.pop(prefix + "sequence_ratio_squared", None)
        if squared is not None:
            ratio = metrics[prefix + "sequence_ratio"]
            metrics[prefix + "sequence_ess"] = ratio**2 / max(squared, 1e-30)
    if histogram is not None and histogram.sum() > 0:
        for name, q in QUANTILES.items():
            metrics[f"sampler/log_ratio_q{name}"] = quantile(histogram, EDGES, q)
    return metrics
