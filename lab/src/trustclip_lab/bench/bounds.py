"""Ratio bounds that depend on the token's old probability: Newton's method against bisection."""

from dataclasses import dataclass
from typing import Any

from trustclip_lab.bench.counts import check_counts
from trustclip_lab.bench.measure import in_turn
from trustclip_lab.bench.table import Table


@dataclass(frozen=True)
class IntervalOptions:
    """Options of `trustclip bench intervals`."""

    tokens: int = 16_384
    """Tokens of a batch."""
    delta: float = 0.07
    """Threshold, nats."""
    repeats: int = 50
    """Repetitions; the median is reported."""

    def __post_init__(self) -> None:
        check_counts(self, "tokens", "repeats")
        if not 1e-6 <= self.delta <= 300:
            raise ValueError(f"--delta must be from 1e-6 to 300 nats, got {self.delta}.")


def run(options: IntervalOptions) -> list[Table]:
    """The table of ``trustclip bench intervals``."""
    import torch

    from trustclip.constraints.intervals import dynamic_clip, log_bernoulli_kl

    g = torch.Generator().manual_seed(0)
    logits = 40 * torch.rand(options.tokens, generator=g, dtype=torch.float64) - 27.6
    logp = torch.nn.functional.logsigmoid(logits)  # probabilities from 1e-12 to 1 - 4e-6
    p = logp.exp()
    calls = {
        "binary KL, Newton": lambda: log_bernoulli_kl(logp, options.delta),
        "binary KL, bisection": lambda: bisection(logp, options.delta),
        "dynamic clip, closed form": lambda: dynamic_clip(p, 0.16, 0.2, 10.0),
    }
    seconds = in_turn(calls, options.repeats)
    pairs = [torch.cat(calls[name]()) for name in list(calls)[:2]]
    error = float(((pairs[0] - pairs[1]).abs() / pairs[1].abs().clamp(min=1)).max())
    return [
        Table(
            f"Both ratio bounds of {options.tokens} tokens, threshold {options.delta:g} nats",
            ("method", "CPU ms", "× Newton", "largest difference"),
            [
                (name, 1e3 * cost, cost / seconds["binary KL, Newton"], differs)
                for (name, cost), differs in zip(seconds.items(), (error, None, None), strict=True)
            ],
            [
                f"Median of {options.repeats}, alternating; float64.",
                "Difference of the log-ratios from bisection; relative above 1 nat.",
            ],
        )
    ]


def bisection(logp_old: Any, delta: float, steps: int = 60) -> tuple[Any, Any]:
    r"""Log-ratio bounds of the two-outcome KL(old || new) by halving brackets of the new logit.

    Args:
      logp_old: $\log p$, nats, float64. Any shape.
      delta: threshold, nats.
      steps: halvings.

    Returns:
      (low, high), each the shape of ``logp_old``.

    Example:
      >>> import torch
      >>> low, high = bisection(torch.tensor([0.5], dtype=torch.float64).log(), 0.07)
      >>> round(low.exp().item(), 9), round(high.exp().item(), 9)
      (0.638556001, 1.361443999)
    """
    import torch
    from torch.nn.functional import logsigmoid

    from trustclip.constraints.divergences import binary_kl_old_new, log1mexp

    bounds = []
    for sign, reach in ((-1.0, logp_old.exp()), (1.0, -torch.expm1(logp_old))):
        inside = logp_old - log1mexp(logp_old)
        outside = inside + sign * (delta + 40) / reach
        for _ in range(steps):
            middle = 0.5 * (inside + outside)
            near = binary_kl_old_new(logp_old, logsigmoid(middle)) <= delta
            inside = torch.where(near, middle, inside)
            outside = torch.where(near, outside, middle)
        bounds.append(logsigmoid(inside) - logp_old)
    return bounds[0], bounds[1]
