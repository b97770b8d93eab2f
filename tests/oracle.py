"""Reference answers in plain Python floats, one token at a time.

Written from the published formulas and sharing no code with the library: no tensors, no Lambert W,
no automatic differentiation. A mistake has to be made twice to pass unnoticed.

Everywhere ``x`` is the log-ratio log(new / old) of the sampled token, ``advantage`` its advantage,
``params`` every hyper-parameter of the method by name, and a coefficient ``c`` is such that the
gradient of the token's objective with respect to its log-probability is ``c * advantage``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Params = Mapping[str, Any]

#: Methods of which this module knows the per-token rule.
KNOWN = (
    *("clip", "clip_higher", "dual_clip", "dynamic_clip", "clip_cov", "soft_gate", "kl1", "kl2"),
    *("atr", "is_kl3", "full_kl", "trgppo", "truly_ppo"),
    "f_divergence",
)

#: Thresholds and slopes of the Truly PPO family by variant: (delta, slope).
_TRULY = {
    "tr_ppo": (0.035, None),
    "ppo_rb": (None, 0.3),
    "trppo_rb": (0.03, 0.05),
    "truly": (0.03, 5.0),
}


# Divergences -----------------------------------------------------------------------------------


def k2(x: float) -> float:
    return 0.5 * x * x


def k3(x: float) -> float:
    return math.expm1(x) - x


def is_k3(x: float) -> float:
    """1 - w + w log w."""
    return math.exp(x) * x - math.expm1(x)


def k3_product(x: float) -> float:
    """w (w - 1 - log w)."""
    return math.exp(x) * k3(x)


def bernoulli_kl_old_new(logp_old: float, x: float) -> float:
    """KL(Bernoulli(p) || Bernoulli(p w)); infinite when p w reaches 1."""
    if logp_old + x >= 0:
        return 0.0 if x == 0 else math.inf
    return outcomes_kl(logp_old, logp_old + x, x)


def outcomes_kl(logp_old: float, logp: float, x: float) -> float:
    """KL of the two outcomes, where log p < 0 of the new policy is known better than old + x."""
    rest = 0.0
    if logp_old < 0:
        rest = -math.expm1(logp_old) * (_log1mexp(logp_old) - _log1mexp(logp))
    return rest - math.exp(logp_old) * x


def _log1mexp(v: float) -> float:
    """log(1 - e^v) for v < 0, without cancellation at either end."""
    return math.log(-math.expm1(v)) if v > -0.7 else math.log1p(-math.exp(v))


def bernoulli_kl(p: float, q: float) -> float:
    """KL(Bernoulli(p) || Bernoulli(q)) for p and q inside (0, 1), straight from the definition."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def f_divergence(params: Params, x: float, logp_old: float) -> float:
    """f of the ratio, or of the two outcomes "this token" and "any other"."""
    f = F_DIVERGENCES[params["divergence"]] if params["alpha"] is None else alpha(params["alpha"])
    if params["bounds"] == "ratio":
        return f(math.exp(x))
    old, new = (min(v, -1e-13) for v in (logp_old, logp_old + x))  # no probability passes 1
    rest = -math.expm1(old)
    return math.exp(old) * f(math.exp(new - old)) + rest * f(-math.expm1(new) / rest)


def alpha(a: float) -> Callable[[float], float]:
    return lambda w: (w**a - a * w + a - 1) / (a * (a - 1))


F_DIVERGENCES = {
    "kl_old_new": lambda w: w - 1 - math.log(w),
    "kl_new_old": lambda w: 1 - w + w * math.log(w),
    "chi2": lambda w: (w - 1) ** 2,
    "hellinger": lambda w: (math.sqrt(w) - 1) ** 2,
    "js": lambda w: 0.5 * (w * math.log(w) - (1 + w) * math.log((1 + w) / 2)),
}


# Intervals, by bisection -----------------------------------------------------------------------


def log_interval(
    divergence: Callable[[float], float],
    delta: float,
    highest: float = math.inf,
) -> tuple[float, float]:
    """Log-ratios around 0 where ``divergence`` is at most ``delta``, searched up to ``highest``."""
    low = -_edge(lambda x: divergence(-x), delta, 1e15)
    return low, _edge(divergence, delta, highest)


def _edge(divergence: Callable[[float], float], delta: float, limit: float) -> float:
    """Largest x in [0, limit] up to which an increasing ``divergence`` stays within ``delta``."""
    inside, outside = 0.0, min(1e-9, limit)
    while divergence(outside) <= delta:
        if outside >= limit:
            return limit if math.isfinite(limit) and limit < 1e15 else math.inf
        inside, outside = outside, min(2 * outside, limit)
    while True:
        middle = 0.5 * (inside + outside)
        if not inside < middle < outside:
            return inside
        if divergence(middle) <= delta:
            inside = middle
        else:
            outside = middle


def bernoulli_log_interval(p: float, delta: float) -> tuple[float, float]:
    logp = math.log(p)
    return log_interval(lambda x: bernoulli_kl_old_new(logp, x), delta, highest=-logp)


def dynamic_clip(p: float, low: float, high: float, ceiling: float) -> tuple[float, float]:
    """Ratio bounds of DCPO's dynamic adaptive clipping."""
    lower = 0.5 + 0.5 * math.sqrt(max(1 - 4 * low / p, 0.0))
    return lower, min(0.5 + 0.5 * math.sqrt(1 + 4 * high / p), ceiling)


# One token -------------------------------------------------------------------------------------


def _within(x: float, low: float, high: float) -> bool:
    """Whether the ratio lies in [low, high], both included."""
    return (low <= 0 or x >= math.log(low)) and x <= math.log(high)


def satisfied(
    name: str,
    params: Params,
    x: float,
    logp_old: float,
    kl_old_new: float | None = None,
    kl_new_old: float | None = None,
) -> bool:
    """Whether the method's constraint holds on the token, whatever its advantage."""
    match name:
        case "clip":
            return _within(x, 1 - params["epsilon"], 1 + params["epsilon"])
        case "clip_higher" | "dual_clip" | "clip_cov":
            return _within(x, 1 - params["low"], 1 + params["high"])
        case "dynamic_clip":
            bounds = (params[k] for k in ("epsilon_low", "epsilon_high", "ceiling"))
            return _within(x, *dynamic_clip(math.exp(logp_old), *bounds))
        case "soft_gate":
            return True
        case "kl1":
            measured = {"abs": abs(x), "kl_old_new": -x, "kl_new_old": x}[params["sign"]]
        case "kl2":
            measured = k2(x)
        case "atr":
            measured = k3(x)
        case "is_kl3":
            measured = {"kl_new_old": is_k3, "product": k3_product}[params["form"]](x)
        case "full_kl":
            measured = kl_old_new if params["order"] == "old_new" else kl_new_old
        case "trgppo":
            if _within(x, 1 - params["epsilon"], 1 + params["epsilon"]):
                return True
            measured = bernoulli_kl_old_new(logp_old, x)
        case "truly_ppo":
            return _truly_satisfied(params, x, kl_old_new)
        case "f_divergence":
            measured = f_divergence(params, x, logp_old)
        case _:
            raise KeyError(name)
    assert measured is not None
    return measured <= params["delta"]


def _truly_satisfied(params: Params, x: float, kl_old_new: float | None) -> bool:
    if params["variant"] == "ppo_rb":
        return _within(x, 1 - params["epsilon"], 1 + params["epsilon"])
    delta = params["delta"] if params["delta"] is not None else _TRULY[params["variant"]][0]
    assert kl_old_new is not None
    assert delta is not None
    return kl_old_new <= delta


def kept(
    name: str,
    params: Params,
    x: float,
    advantage: float,
    logp_old: float,
    kl_old_new: float | None = None,
    kl_new_old: float | None = None,
) -> bool:
    """Whether the token's objective is w * advantage (or the soft one) rather than cut.

    Clip-Cov's random drop is not part of this; see `clip_cov_candidates`.
    """
    holds = satisfied(name, params, x, logp_old, kl_old_new, kl_new_old)
    ceilings = {"dual_clip": "ceiling", "dynamic_clip": "dual_ceiling"}
    ceiling = params.get(ceilings.get(name, ""), None)
    if ceiling is not None and advantage < 0 and x > math.log(ceiling):
        return False
    if params.get("side", "outward") == "strict":
        return holds
    moves_outward = (x > 0 and advantage > 0) or (x < 0 and advantage < 0)
    return holds or not moves_outward


def coefficient(
    name: str,
    params: Params,
    x: float,
    advantage: float,
    logp_old: float,
    kl_old_new: float | None = None,
    kl_new_old: float | None = None,
) -> float:
    """c: the gradient of the token's objective is c * advantage (KL taken as a constant)."""
    ratio = math.exp(x)
    if name == "soft_gate":
        side = "positive" if advantage > 0 else "negative"
        return ratio * _sech_squared(0.5 * params[f"temperature_{side}"] * (ratio - 1))
    if kept(name, params, x, advantage, logp_old, kl_old_new, kl_new_old):
        return ratio
    if name == "truly_ppo" and params["variant"] == "truly":
        return params["slope_likelihood"] * ratio
    if name == "truly_ppo" and params["variant"] != "tr_ppo":
        slope = params["slope"] if params["slope"] is not None else _TRULY[params["variant"]][1]
        return -slope * ratio
    return 0.0


def _sech_squared(z: float) -> float:
    shrink = math.exp(-2 * abs(z))
    return 4 * shrink / (1 + shrink) ** 2


# Several tokens --------------------------------------------------------------------------------


def level_gradient(
    name: str, params: Params, xs: Sequence[float], advantages: Sequence[float]
) -> list[float]:
    """Gradient of one sequence's summed objective, for methods whose rule needs only ``x``.

    At ``level="sequence"`` the token's log-ratio is replaced by the mean over the sequence, and the
    gradient follows the mean. At ``level="prefix"`` the mean over the tokens up to it takes its
    place in the gate and in the weight, and the gradient is the token's own.
    """
    total = len(xs)
    gradient = [0.0] * total
    for t, advantage in enumerate(advantages):
        span = {"token": range(t, t + 1), "prefix": range(t + 1), "sequence": range(total)}[
            params["level"]
        ]
        mean = math.fsum(xs[i] for i in span) / len(span)
        weight = coefficient(name, params, mean, advantage, math.nan) * advantage
        followed = (t,) if params["level"] == "prefix" else span
        for i in followed:
            gradient[i] += weight / len(followed)
    return gradient


def trpo_kept(delta: float, divergences: Sequence[float]) -> bool:
    """Whether every token is kept: the mean divergence of the batch is within ``delta``."""
    return math.fsum(divergences) / len(divergences) <= delta


def clip_cov_candidates(
    params: Params, logp: Sequence[float], logp_old: Sequence[float], advantages: Sequence[float]
) -> set[int]:
    """Tokens among which Clip-Cov draws the ones it drops."""
    covariance = centred_products(logp, advantages)
    return {
        i
        for i, value in enumerate(covariance)
        if params["cov_low"] < value < params["cov_high"]
        and kept("clip_cov", params, logp[i] - logp_old[i], advantages[i], logp_old[i])
    }


def centred_products(logp: Sequence[float], advantages: Sequence[float]) -> list[float]:
    mean_logp = math.fsum(logp) / len(logp)
    mean_advantage = math.fsum(advantages) / len(advantages)
    return [(a - mean_advantage) * (lp - mean_logp) for lp, a in zip(logp, advantages, strict=True)]
