"""The reference answers of `oracle` and `wider_oracle` once more, for many sequences at once.

NumPy and float64, no tensors, no differentiation. What the two modules write for one token is
written here for arrays [sequences, tokens]; `test_batched_oracle` holds them together. Whoever
finds the library at odds with these answers asks the plain ones, which have the last word.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import oracle
from numpy.typing import NDArray

Params = Mapping[str, Any]
Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The fields of `wider_oracle.Token`, each [sequences, tokens] or absent."""

    x: Array
    advantage: Array
    logp_old: Array
    kl_old_new: Any = None
    kl_new_old: Any = None
    logp_rollout: Any = None
    top_k_kl: Any = None
    top_k_tv: Any = None
    lag: Any = None
    entropy: Any = None
    entropy_old: Any = None

    @property
    def logp(self) -> Array:
        return self.logp_old + self.x

    @property
    def rho(self) -> Array:
        return self.logp_old - self.logp_rollout

    def against(self, anchor: str) -> "Tokens":
        if anchor == "old":
            return self
        moved = self.logp - self.logp_rollout
        if anchor == "interpolated":
            x = moved / np.maximum(self.lag, 1)
            return dataclasses.replace(self, x=x, logp_old=self.logp - x)
        return dataclasses.replace(self, x=moved, logp_old=self.logp_rollout)


def outward(x: Array, advantage: Array) -> Array:
    return np.sign(x) * np.sign(advantage) > 0


def within(x: Array, low: Any, high: Any) -> Array:
    with np.errstate(divide="ignore"):
        bounds = [np.log(np.maximum(bound, 0.0)) for bound in (low, high)]
    return (x >= bounds[0]) & (x <= bounds[1])


def mean(x: Array) -> Array:
    return np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)


# Divergences -------------------------------------------------------------------------------------


def k3(x: Array) -> Array:
    return np.expm1(x) - x


def log1mexp(v: Array) -> Array:
    small = np.minimum(v, -1e-300)
    return np.where(v > -0.7, np.log(-np.expm1(small)), np.log1p(-np.exp(np.minimum(small, -0.7))))


def bernoulli_kl_old_new(logp_old: Array, x: Array) -> Array:
    new = logp_old + x
    return np.where(new >= 0, np.where(x == 0, 0.0, np.inf), outcomes_kl(logp_old, new, x))


def outcomes_kl(logp_old: Array, logp: Array, x: Array) -> Array:
    odds = np.where(logp_old < 0, log1mexp(logp_old) - log1mexp(logp), 0.0)
    return -np.expm1(logp_old) * odds - np.exp(logp_old) * x


def f_divergence(p: Params, x: Array, logp_old: Array) -> Array:
    f = F[p["divergence"]] if p["alpha"] is None else alpha(p["alpha"])
    if p["bounds"] == "ratio":
        return f(np.exp(x))
    old, new = (np.minimum(v, -1e-13) for v in (logp_old, logp_old + x))
    rest = -np.expm1(old)
    return np.exp(old) * f(np.exp(new - old)) + rest * f(-np.expm1(new) / rest)


def alpha(a: float) -> Callable[[Array], Array]:
    return lambda w: (w**a - a * w + a - 1) / (a * (a - 1))


F: dict[str, Callable[[Array], Array]] = {
    "kl_old_new": lambda w: w - 1 - np.log(w),
    "kl_new_old": lambda w: 1 - w + w * np.log(w),
    "chi2": lambda w: (w - 1) ** 2,
    "hellinger": lambda w: (np.sqrt(w) - 1) ** 2,
    "js": lambda w: 0.5 * (w * np.log(w) - (1 + w) * np.log((1 + w) / 2)),
}


def band(divergence: str, t: Tokens) -> Array:
    if divergence == "kl":
        found = bernoulli_kl_old_new(t.logp_old, t.x)
    else:
        p = np.exp(t.logp_old)
        gap = np.abs(p * np.expm1(t.x))
        found = gap if divergence == "tv" else gap**2 / (p * -np.expm1(t.logp_old))
    return np.where(t.logp > 0, np.inf, found)


def probability_divergence(divergence: str, t: Tokens) -> Array:
    if divergence == "binary_tv":
        return np.abs(np.exp(t.logp) - np.exp(t.logp_old))
    if divergence == "binary_kl":
        possible = np.minimum(t.logp, -(2.0**-52))
        excess = np.exp(t.logp_old) * (t.logp - possible)
        return outcomes_kl(t.logp_old, possible, possible - t.logp_old) - excess
    return {"top_k_kl": t.top_k_kl, "top_k_tv": t.top_k_tv}[divergence]


# The methods of the paper's tables ---------------------------------------------------------------


def satisfied(name: str, p: Params, t: Tokens) -> Array:
    x = t.x
    if name in ("clip", "clip_higher", "dual_clip", "clip_cov"):
        low, high = (p["epsilon"],) * 2 if name == "clip" else (p["low"], p["high"])
        return within(x, 1 - low, 1 + high)
    if name == "dynamic_clip":
        old = np.exp(t.logp_old)
        low = 0.5 + 0.5 * np.sqrt(np.maximum(1 - 4 * p["epsilon_low"] / old, 0.0))
        high = 0.5 + 0.5 * np.sqrt(1 + 4 * p["epsilon_high"] / old)
        return within(x, low, np.minimum(high, p["ceiling"]))
    if name == "soft_gate":
        return np.ones_like(x, dtype=bool)
    if name == "trgppo":
        clipped = within(x, 1 - p["epsilon"], 1 + p["epsilon"])
        return clipped | (bernoulli_kl_old_new(t.logp_old, x) <= p["delta"])
    if name == "truly_ppo":
        if p["variant"] == "ppo_rb":
            return within(x, 1 - p["epsilon"], 1 + p["epsilon"])
        usual = oracle._TRULY[p["variant"]][0]
        return t.kl_old_new <= (usual if p["delta"] is None else p["delta"])
    return measured(name, p, t) <= p["delta"]


def measured(name: str, p: Params, t: Tokens) -> Array:
    x = t.x
    match name:
        case "kl1":
            return {"abs": np.abs(x), "kl_old_new": -x, "kl_new_old": x}[p["sign"]]
        case "kl2":
            return 0.5 * x * x
        case "atr":
            return k3(x)
        case "is_kl3":
            by = {"kl_new_old": np.exp(x) * x - np.expm1(x), "product": np.exp(x) * k3(x)}
            return by[p["form"]]
        case "full_kl":
            return t.kl_old_new if p["order"] == "old_new" else t.kl_new_old
        case "f_divergence":
            return f_divergence(p, x, t.logp_old)
    raise KeyError(name)


def own_kept(name: str, p: Params, t: Tokens) -> Array:
    """`oracle.kept`."""
    kept = satisfied(name, p, t)
    if p.get("side", "outward") != "strict":
        kept = kept | ~outward(t.x, t.advantage)
    names = {"dual_clip": "ceiling", "dynamic_clip": "dual_ceiling"}
    if (ceiling := p.get(names.get(name, ""))) is not None:
        kept = kept & ~((t.advantage < 0) & (t.x > math.log(ceiling)))
    return kept


def own_coefficient(name: str, p: Params, t: Tokens) -> Array:
    """`oracle.coefficient`."""
    ratio = np.exp(t.x)
    if name == "soft_gate":
        hot = np.where(t.advantage > 0, p["temperature_positive"], p["temperature_negative"])
        shrink = np.exp(-np.abs(hot * (ratio - 1)))
        return ratio * 4 * shrink / (1 + shrink) ** 2
    lost = 0.0
    if name == "truly_ppo" and p["variant"] == "truly":
        lost = p["slope_likelihood"] * ratio
    elif name == "truly_ppo" and p["variant"] != "tr_ppo":
        lost = -(oracle._TRULY[p["variant"]][1] if p["slope"] is None else p["slope"]) * ratio
    return np.where(own_kept(name, p, t), ratio, lost)


# What a token keeps ------------------------------------------------------------------------------

_ALL = ("cispo", "spo", "pspo", "reinforce", "ce_gppo", "topr", "vespo", "ppo_penalty")


def kept(name: str, p: Params, t: Tokens) -> Array:
    """Which tokens keep their gradient, bool [sequences, tokens]."""
    every = np.ones_like(t.x, dtype=bool)
    if name in WEIGHTS:
        return kept(p["inner"]["name"], p["inner"], t) & (WEIGHTS[name](p, t) > 0)
    if name in ("atr", "clip", "clip_higher") and p["level"] != "token":
        return level_kept(name, p, t)
    match name:
        case "penalty":
            return kept(p["inner"]["name"], p["inner"], t)
        case "anchored":
            return kept(p["inner"]["name"], p["inner"], t.against(p["anchor"]))
        case "both" | "either":
            first, second = (kept(q["name"], q, t) for q in (p["first"], p["second"]))
            return first & second if name == "both" else first | second
        case "gspo" | "luspo":
            average = mean(t.x)
            inside = within(average, 1 - p["low"], 1 + p["high"])
            return inside | ~outward(average, t.advantage)
        case "cppo":
            return cppo(p, t)
        case "ipo":
            gap = probability_divergence("binary_tv", t.against(p["anchor"]))
            return gap <= p["delta"]
        case "abc_grpo":
            signs = {
                sign: (p[f"{sign}_low"], p[f"{sign}_high"]) for sign in ("positive", "negative")
            }
            up, down = (within(t.x, 1 - low, 1 + high) for low, high in signs.values())
            return np.where(t.advantage == 0, True, np.where(t.advantage > 0, up, down))
        case "gmpo":
            inside = (t.x >= -p["log_low"]) & (t.x <= p["log_high"])
        case "aspo":
            inside = within(t.x, 1 - p["low"], 1 + p["high"])
        case "bandpo":
            return bandpo(p, t)
        case "dppo":
            t = t.against(p["anchor"])
            usual = 0.15 if p["divergence"].endswith("tv") else 0.05
            delta = usual if p["delta"] is None else p["delta"]
            inside = probability_divergence(p["divergence"], t) <= delta
        case _ if name in (*_ALL, "importance_sampling", "drpo"):
            return every
        case _:
            return own_kept(name, p, t)
    return inside | ~outward(t.x, t.advantage)


def bandpo(p: Params, t: Tokens) -> Array:
    inside = band(p["divergence"], t) <= p["delta"]
    if p["ceiling"] is not None:
        inside = inside & (t.x <= math.log(p["ceiling"]))
    if p["side"] != "strict":
        inside = inside | ~outward(t.x, t.advantage)
    if p["dual_ceiling"] is not None:
        inside = inside & ~((t.advantage < 0) & (t.x > math.log(p["dual_ceiling"])))
    return inside


def cppo(p: Params, t: Tokens) -> Array:
    t = t.against(p["anchor"])
    found = probability_divergence(p["divergence"], t)
    budget: Any = p["budget"]
    if p["budget_ceiling"] is not None:
        budget = np.clip(np.quantile(found, 0.9, axis=1), budget, p["budget_ceiling"])
    places = np.arange(t.x.shape[1])
    weight = 1 - (1 - p["least_weight"]) * places / max(places[-1], 1)
    spent = np.cumsum(weight * found, axis=1) - weight * found
    before = np.cumsum(weight) - weight
    allowed = p["delta"] + np.multiply.outer(np.broadcast_to(budget, len(t.x)), before) - spent
    return (weight * found <= np.minimum(allowed, p["delta"])) | ~outward(t.x, t.advantage)


def span(level: str, values: Array, reduce: Any) -> Array:
    """A reduction over the tokens that a level covers at each place."""
    length = values.shape[1]
    ends = {"token": 1, "prefix": 0, "sequence": 0}[level]
    columns = []
    for i in range(length):
        covered = values[:, (i if ends else 0) : (length if level == "sequence" else i + 1)]
        columns.append(reduce(covered, axis=1))
    return np.stack(columns, axis=1)


def level_kept(name: str, p: Params, t: Tokens) -> Array:
    average = span(p["level"], t.x, np.mean)
    reduction = p.get("reduction", "ratio")
    if reduction == "ratio":
        inside = satisfied(name, p, dataclasses.replace(t, x=average))
    else:
        reduce = {"mean": np.mean, "sum": np.sum, "max": np.max}[reduction]
        inside = span(p["level"], k3(t.x), reduce) <= p["delta"]
    if p["side"] == "strict":
        return inside
    weighing = average if p.get("weight", "level") == "level" else t.x
    return inside | ~outward(weighing, t.advantage)


# Constant weights --------------------------------------------------------------------------------


def tis(p: Params, t: Tokens) -> Array:
    rho = t.rho if p["level"] == "token" else mean(t.rho) * t.x.shape[1]
    return np.minimum(np.exp(rho), p["ceiling"])


def icepop(p: Params, t: Tokens) -> Array:
    def spread(values: Array) -> Array:
        total = np.broadcast_to(values.sum(axis=1, keepdims=True), values.shape)
        return {"sequence": total, "geometric": mean(values)}.get(p["level"], values)

    rho = spread(t.rho)
    compared = rho if p["policy"] == "old" else spread(t.rho + t.x)
    low = 0.0 if p["floor"] is None else p["floor"]
    return np.where(within(compared, low, p["ceiling"]), np.exp(rho), 0.0)


def opsm(p: Params, t: Tokens) -> Array:
    moved = -mean(t.against(p["anchor"]).x)
    return ((t.advantage >= 0) | (moved <= p["delta"])).astype(float)


def trm(p: Params, t: Tokens) -> Array:
    values = k3(t.against(p["anchor"]).x) if p["divergence"] == "k3" else t.kl_old_new
    reduce = {"max": np.max, "mean": np.mean}[p["reduction"]]
    found = reduce(values, axis=1, keepdims=True)
    return np.broadcast_to(found <= p["delta"], t.x.shape).astype(float)


def kpop(p: Params, t: Tokens) -> Array:
    ours = t.logp_old if p["policy"] == "old" else t.logp
    apart = ours - t.logp_rollout
    there = dataclasses.replace(t, x=apart, logp_old=t.logp_rollout)
    back = dataclasses.replace(t, x=-apart, logp_old=ours)
    worst = np.maximum(*(probability_divergence("binary_kl", pair) for pair in (there, back)))
    return np.where(worst <= p["delta"], np.exp(t.rho), 0.0)


def erc(p: Params, t: Tokens) -> Array:
    ratio = (t.entropy + 1e-8) / (t.entropy_old + 1e-8)
    return ((ratio > 1 - p["low"]) & (ratio < 1 + p["high"])).astype(float)


WEIGHTS = {"tis": tis, "icepop": icepop, "opsm": opsm, "trm": trm, "kpop": kpop, "erc": erc}


# The gradient ------------------------------------------------------------------------------------


def gradient(name: str, p: Params, t: Tokens) -> Array:
    """Gradient of each sequence's summed objective in its log-probabilities."""
    return contributions(name, p, t).sum(axis=1)


def contributions(name: str, p: Params, t: Tokens) -> Array:
    """[n, i, j]: derivative of token i's objective in the log-probability of token j."""
    if name in WEIGHTS:
        return of(p["inner"], t) * WEIGHTS[name](p, t)[:, :, None]
    if name == "anchored":
        return of(p["inner"], t.against(p["anchor"]))
    if name == "both":
        return of(p["first"], t) * kept(p["second"]["name"], p["second"], t)[:, :, None]
    if name == "either":
        first, second = (kept(q["name"], q, t) for q in (p["first"], p["second"]))
        follow = (first | ~second)[:, :, None]
        return np.where(follow, of(p["first"], t), of(p["second"], t))
    if name == "penalty":
        return penalised(p, t)
    keep, length = kept(name, p, t), t.x.shape[1]
    if name == "gmpo":
        clipped = np.where(keep, t.x, np.clip(t.x, -p["log_low"], p["log_high"]))
        weight = np.exp(mean(clipped)) * t.advantage / length
        return weight[:, :, None] * keep[:, None, :]
    if follows_a_mean(name, p):
        level = "sequence" if name in ("gspo", "luspo") else p["level"]
        weight = np.exp(span(level, t.x, np.mean)) * t.advantage * keep
        if level == "prefix":
            return weight[:, :, None] * np.eye(length)
        return np.repeat(weight[:, :, None], length, axis=2) / length
    return own_gradient(name, p, t, keep)[:, :, None] * np.eye(length)


def of(part: Params, t: Tokens) -> Array:
    return contributions(part["name"], part, t)


def follows_a_mean(name: str, p: Params) -> bool:
    if name in ("gspo", "luspo"):
        return name == "luspo" or p["variant"] == "gspo"
    levelled = name in ("atr", "clip", "clip_higher") and p.get("level", "token") != "token"
    return levelled and p.get("weight", "level") == "level"


SLOPES: dict[str, Callable[[Array], Array]] = {
    "abs": np.sign,
    "k2": lambda x: x,
    "k3": np.expm1,
    "k3_reverse": lambda x: -np.expm1(-x),
}


def penalised(p: Params, t: Tokens) -> Array:
    part, length = p["inner"], t.x.shape[1]
    moved, slope = t.against(p["anchor"]).x, SLOPES[p["divergence"]]
    keep = kept(part["name"], part, t)
    pays = ~(keep if p["on"] == "cut" else ~keep if p["on"] == "kept" else np.zeros_like(keep))
    if p["level"] == "sequence":
        each = p["beta"] * slope(mean(moved) * length) / length * pays
        return of(part, t) - each[:, :, None]
    return of(part, t) - (p["beta"] * slope(moved) * pays)[:, :, None] * np.eye(length)


def own_gradient(name: str, p: Params, t: Tokens, keep: Array) -> Array:
    """`wider_oracle.own_gradient`."""
    a, w = t.advantage, np.exp(t.x)
    match name:
        case "gspo":
            return keep * np.exp(mean(t.x)) * a
        case "cispo":
            return np.clip(w, 1 - p["low"], 1 + p["high"]) * a
        case "reinforce":
            return a
        case "spo":
            return w * (1 - np.sign(a) * (w - 1) / p["epsilon"]) * a
        case "pspo":
            return (1 - p["alpha"]) * w * a
        case "ppo_penalty":
            return w * a - (p["beta"] * (w - 1) if p["estimator"] == "k3" else 0.0)
        case "ce_gppo":
            below = (a < 0) & ~within(t.x, 1 - p["low"], math.inf)
            above = (a > 0) & (t.x > math.log(1 + p["high"]))
            floor, top = p["beta_low"] * (1 - p["low"]), p["beta_high"] * (1 + p["high"])
            return np.where(below, floor, np.where(above, top, w)) * a
        case "aspo":
            return keep * np.minimum(np.where(a > 0, 1 / w, w), p["ceiling"]) * a
        case "topr":
            whole = p["level"] == "sequence"
            tapered = np.minimum(mean(t.x) * t.x.shape[1] if whole else t.x, 0.0)
            return np.where(a < 0, np.exp(tapered), 1.0) * a
        case "vespo":
            return np.where(a >= 0, gamma(p, t, "positive"), gamma(p, t, "negative")) * a
        case "dppo":
            return keep * np.minimum(np.exp(t.against(p["anchor"]).x), p["ceiling"]) * a
        case "drpo":
            t = t.against(p["anchor"])
            moved = np.exp(t.logp) - np.exp(t.logp_old)
            return np.exp(t.x) * (1 - np.sign(a) * moved / p["delta"]) * a
        case "ipo" | "importance_sampling" | "cppo":
            return keep * np.exp(t.against(p["anchor"]).x) * a
        case "abc_grpo" | "bandpo" | "atr":
            return keep * w * a
    return a * own_coefficient(name, p, t)


def gamma(p: Params, t: Tokens, sign: str) -> Array:
    clamped = np.clip(t.against(p["anchor"]).x, -20.0, 20.0)
    log_w = np.clip(mean(clamped) * t.x.shape[1], math.log(1e-8), 20.0)
    k, rate = p[f"k_{sign}"], p[f"lambda_{sign}"]
    return np.exp(rate + k * log_w - rate * np.exp(log_w))
