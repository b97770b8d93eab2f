r"""Controllers: thresholds that adapt, each in place of a number.

Any threshold of a method can be one, in Python (``method("atr", delta=target_gate(share=0.02))``)
and in YAML (``delta: {controller: target_gate, share: 0.02}``):

- by update, `target_gate` and `target_kl` move the threshold so that the share of gated tokens or
  the divergence stays at a target; `Target` does so for any metric, such as the entropy;
- by token, `per_token` gives rare tokens, those of high entropy, or those of a prompt that few
  answers solve, a wider threshold.

The result is a method like any other, and as immutable: `trustclip.Method.after` takes the metrics
of an update and returns the method for the next one. All ranks see the same metrics, so all have
the same threshold.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor

from trustclip.constraints.base import Positive, UpToOne
from trustclip.constraints.batch import SUPPLIERS, TokenBatch
from trustclip.support.checked import checked
from trustclip.support.names import unknown

#: Metrics that a threshold can hold; see `trustclip.constraints.diagnostics.token_metrics`.
Metric = Literal["gated", "k2", "k3", "kl_old_new", "kl_new_old", "entropy"]

#: Default range of a threshold: from its initial value divided by this to the value times this.
REACH = 4.0
#: A threshold changes by at most this factor in one update.
MOST = 2.0


class Controller(ABC):
    """A threshold that varies: `Target` (over updates) or `PerToken`.

    Both have ``initial``, the number to start from or to scale (the method's own default when
    None), and ``low`` and ``high``, which the threshold never leaves.
    """

    initial: float | None
    low: float | None
    high: float | None

    @property
    @abstractmethod
    def requires(self) -> tuple[str, ...]:
        """Optional fields of `TokenBatch` that it reads."""

    def to_dict(self) -> dict[str, Any]:
        """``{"controller": ..., **settings}``, as in YAML; settings that are None are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        settings = {name: value for name, value in values.items() if value is not None}
        return {"controller": _TYPES[type(self)], **settings}

    def between(self, start: float) -> tuple[float, float]:
        """Lowest and highest value of a threshold that starts at ``start``."""
        low = start / REACH if self.low is None else self.low
        return low, start * REACH if self.high is None else self.high


@checked
class Target(Controller):
    r"""Holds a metric at a target by moving the threshold, by a bounded factor each update.

    $$
    \delta \leftarrow \delta\, e^{\pm\text{rate}\,(1 - m/m^\ast)}
    \text{, within } [\text{low}, \text{high}]
    $$

    with m the metric of the update and m* its target; never by more than a factor of 2. The error
    is linear in m, so a metric that is 0 in some updates (at ratio 1 nothing is gated) is held at
    the target by its mean. An integral controller: lower the rate if the threshold swings.

    Args:
      metric: name of the metric; see `trustclip.constraints.diagnostics.token_metrics`.
      target: value to hold it at, above 0.
      response: whether the metric rises or falls when the threshold is raised. The entropy rises
        with an upper bound, which keeps rare tokens from becoming likelier (``clip_higher``'s
        argument); with a lower bound it falls.
      initial: threshold to start from; the method's default when None.
      rate: share of the error that an update corrects, in (0, 1].
      low: lowest threshold; a quarter of the initial one when None.
      high: highest threshold; four times the initial one when None.

    Example:
      >>> hold = target_kl(kl=0.01, initial=0.07, rate=0.5)
      >>> [round(hold.next(0.07, {"k3": m}), 4) for m in (0.01, 0.02, 0.0)]
      [0.07, 0.0425, 0.1154]
    """

    metric: Metric
    target: Positive
    response: Literal["rises", "falls"] = "rises"
    initial: Positive | None = None
    rate: UpToOne = 0.1
    low: Positive | None = None
    high: Positive | None = None

    @property
    def requires(self) -> tuple[str, ...]:
        return (self.metric,) if self.metric in SUPPLIERS else ()

    def next(self, threshold: float, metrics: Mapping[str, float]) -> float:
        """The threshold of the next update, before its bounds.

        Args:
          threshold: the current one.
          metrics: means of the update, over all ranks. A metric that is not finite changes nothing.

        Raises:
          ValueError: the metric is missing.
        """
        if self.metric not in metrics:
            raise ValueError(unknown("metric for a controller", self.metric, metrics))
        if isinstance(mean := metrics[self.metric], tuple):
            raise ValueError(f"`{self.metric}` is (sum, count): give the mean, sum / count.")
        error = 1 - mean / self.target
        if not math.isfinite(error):
            return threshold
        step = self.rate * (error if self.response == "rises" else -error)
        return threshold * math.exp(min(max(step, -math.log(MOST)), math.log(MOST)))


class Reach(TypedDict, total=False):
    """Settings that `target_gate` and `target_kl` take too: see `Target`."""

    initial: float | None
    rate: float
    low: float | None
    high: float | None


def target_gate(share: float, **reach: Unpack[Reach]) -> Target:
    """Holds the share of all tokens that are gated at ``share``.

    Args:
      share: in (0, 1).
      **reach: ``initial``, ``rate``, ``low`` and ``high`` of `Target`.

    Example:
      >>> target_gate(share=0.02, initial=0.07).next(0.07, {"gated": 0.0}) < 0.07
      True
    """
    if not 0 < share < 1:
        raise ValueError(f"`share` must be in (0, 1), got {share!r}.")
    return Target(metric="gated", target=share, response="falls", **reach)


def target_kl(
    kl: float,
    metric: Literal["k2", "k3", "kl_old_new", "kl_new_old"] = "k3",
    response: Literal["rises", "falls"] = "rises",
    **reach: Unpack[Reach],
) -> Target:
    """Holds the mean divergence from the old policy at ``kl``.

    Args:
      kl: nats per token.
      metric: which divergence: an estimate, or an exact one where the engine can supply it.
      response: ``"falls"`` for a price, such as ``beta`` of ``penalty``: the higher, the less the
        policy moves.
      **reach: ``initial``, ``rate``, ``low`` and ``high`` of `Target`.
    """
    return Target(metric=metric, target=kl, response=response, **reach)


@checked
class PerToken(Controller):
    r"""A threshold for each token: wider for a rare one, at high entropy, on a hard prompt.

    $$
    \delta_t = \delta\,\frac{\text{scale}}{p_t},\qquad
    \delta_t = \delta\,\frac{H_t}{\text{scale}} \qquad\text{or}\qquad
    \delta_t = \delta\,\frac{1 - s}{\text{scale}},
    \qquad\text{within } [\text{low}, \text{high}]
    $$

    with p the token's old probability, H the policy's entropy at its position, and s the share of
    right answers to its prompt, which follows from the advantage A of a right or wrong answer,
    $A^2 = (1 - s)/s$ or $s/(1 - s)$, if rewards are 0 and 1 and the standard deviation of the group
    divides them. (Where that of n - 1 does, as in TRL, the odds are off by (n - 1) / n.) By
    ``p_old`` on
    ``atr`` it is the limit of ``trgppo``'s interval for a small p: what a KL threshold allows a
    token is k3 within $\delta/p$.

    Args:
      by: ``"p_old"``, ``"entropy"`` or ``"difficulty"``.
      initial: $\delta$; the method's default when None.
      scale: probability, entropy in nats, or share of wrong answers at which a token's threshold is
        $\delta$.
      low: lowest threshold; a quarter of $\delta$ when None.
      high: highest threshold; four times $\delta$ when None.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.tensor([[0.5, 0.9]]).log()
      >>> batch = tc.TokenBatch(old + 0.4, old, torch.ones(1, 2), torch.ones(1, 2) > 0)
      >>> tc.method("atr", delta=per_token()).surrogate(batch).kept  # k3 = 0.092
      tensor([[ True, False]])

    References:
      An entropy-scaled trust region: `2607.22186 <https://arxiv.org/abs/2607.22186>`_, 2026
    """

    by: Literal["p_old", "entropy", "difficulty"] = "p_old"
    initial: Positive | None = None
    scale: Positive = 1.0
    low: Positive | None = None
    high: Positive | None = None

    @property
    def requires(self) -> tuple[str, ...]:
        return ("entropy",) if self.by == "entropy" else ()

    def thresholds(self, start: float, batch: TokenBatch) -> Tensor:
        """Thresholds of the tokens. Shape [batch, time]."""
        low, high = self.between(start)
        if self.by == "entropy":
            values = start / self.scale * batch.given("entropy").detach()
        elif self.by == "difficulty":
            square = batch.advantages.square()
            wrong = torch.where(batch.advantages > 0, square, 1.0) / (1 + square)
            values = start / self.scale * wrong
        else:
            values = start * self.scale * (-batch.logp_old).exp()
        return values.clamp(low, high)


#: Name of each controller in YAML, and its constructor.
NAMED: dict[str, Callable[..., Controller]] = {
    "target": Target,
    "target_gate": target_gate,
    "target_kl": target_kl,
    "per_token": PerToken,
}
_TYPES: dict[type, str] = {Target: "target", PerToken: "per_token"}
per_token = PerToken


def controller(name: str, **settings: Any) -> Controller:
    """The controller called ``name``.

    Raises:
      ValueError: unknown name or setting, a setting missing, or a value out of range.

    Example:
      >>> controller("target_gate", share=0.02) == target_gate(share=0.02)
      True
    """
    if name not in NAMED:
        raise ValueError(unknown("controller", name, NAMED))
    own = dict(inspect.signature(NAMED[name]).parameters)
    shared = Reach.__annotations__ if own.pop("reach", None) else ()
    allowed = [*own, *shared]
    for key in settings:
        if key not in allowed:
            raise ValueError(unknown("setting", key, allowed, of=f"controller {name}"))
    missing = [k for k, p in own.items() if p.default is p.empty and k not in settings]
    if missing:
        raise ValueError(f"controller {name} needs `{missing[0]}`.")
    return NAMED[name](**settings)
