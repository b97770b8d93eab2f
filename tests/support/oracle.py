"""The rule of every method in NumPy: which tokens it keeps, and its gradient.

Written from the papers and the sources they name, never from the library: no tensors, no Lambert W,
no automatic differentiation. A mistake has to be made twice to pass unnoticed, and a method
without a rule here fails by name (`test_rules.py`).

Fields are float64 arrays [sequences, tokens], without padding. ``x`` is the log-ratio
log(new / old), ``p`` every hyper-parameter by name, and a coefficient c is such that the gradient
of a token's objective in its log-probability is c times the advantage. A method that measures a
batch takes all its tokens as one sequence.

To add a method: its gate in `KEPT`, and, where its weight is not the ratio of a kept token, that
in `COEFFICIENT`, or in `GRADIENT` what is no multiple of the advantage.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Params = Mapping[str, Any]
Array = NDArray[Any]


@dataclass(frozen=True)
class Tokens:
    """The fields of a batch, each [sequences, tokens] or absent."""

    x: Any
    advantage: Any
    logp_old: Any = None
    kl_old_new: Any = None
    kl_new_old: Any = None
    logp_rollout: Any = None
    logp_ref: Any = None
    top_k_kl: Any = None
    top_k_tv: Any = None
    lag: Any = None
    entropy: Any = None
    entropy_old: Any = None
    candidates: Any = None  # [sequences, tokens, 3 k]: new, old, sampler
    turn: Any = None

    def __post_init__(self) -> None:
        if self.logp_old is None:
            object.__setattr__(self, "logp_old", np.full_like(np.asarray(self.x, float), -1.0))
        for field in fields(self):  # numbers and lists as well, as one sequence
            if (value := getattr(self, field.name)) is not None:
                object.__setattr__(self, field.name, np.atleast_2d(np.asarray(value, float)))

    @property
    def logp(self) -> Array:
        return self.logp_old + self.x

    @property
    def rho(self) -> Array:
        """log(old / rollout)."""
        return self.logp_old - self.logp_rollout

    def against(self, anchor: str) -> "Tokens":
        if anchor == "old":
            return self
        if anchor == "ref":
            return replace(self, x=self.logp - self.logp_ref, logp_old=self.logp_ref)
        moved = self.logp - self.logp_rollout
        if anchor == "interpolated":  # what is left of the way from the sampler
            x = moved / np.maximum(self.lag, 1)
            return replace(self, x=x, logp_old=self.logp - x)
        return replace(self, x=moved, logp_old=self.logp_rollout)

    def up_to(self, ceiling: float | None) -> "Tokens":
        """With ratios of the ceiling at most."""
        x = self.x if ceiling is None else np.minimum(self.x, math.log(ceiling))
        return replace(self, x=x, logp_old=self.logp - x)


Rule = Callable[[Params, Tokens], Any]


# Divergences -------------------------------------------------------------------------------------


def k2(x: Any) -> Any:
    return 0.5 * x * x


def k3(x: Any) -> Any:
    return np.expm1(x) - x


def is_k3(x: Any) -> Any:
    """1 - w + w log w."""
    return np.exp(x) * x - np.expm1(x)


def k3_product(x: Any) -> Any:
    """w (w - 1 - log w)."""
    return np.exp(x) * k3(x)


def bernoulli_kl(p: float, q: float) -> float:
    """KL(Bernoulli(p) || Bernoulli(q)) for p and q inside (0, 1), straight from the definition."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def bernoulli_kl_old_new(logp_old: Any, x: Any) -> Array:
    """KL(Bernoulli(p) || Bernoulli(p w)); infinite when p w reaches 1."""
    new = logp_old + x
    return np.where(new >= 0, np.where(x == 0, 0.0, np.inf), outcomes_kl(logp_old, new, x))


def outcomes_kl(logp_old: Any, logp: Any, x: Any) -> Array:
    """KL of the two outcomes, where log p < 0 of the new policy is known better than old + x."""
    odds = np.where(logp_old < 0, log1mexp(logp_old) - log1mexp(logp), 0.0)
    return -np.expm1(logp_old) * odds - np.exp(logp_old) * x


def log1mexp(v: Any) -> Array:
    """log(1 - e^v) for v < 0, without cancellation at either end."""
    small = np.minimum(v, -1e-300)
    return np.where(v > -0.7, np.log(-np.expm1(small)), np.log1p(-np.exp(np.minimum(small, -0.7))))


def token_divergence(divergence: str, t: Tokens) -> Array:
    """DPPO's: of "this token" and "any other", or of the likeliest tokens."""
    if divergence == "binary_tv":
        return np.abs(np.exp(t.logp) - np.exp(t.logp_old))
    if divergence == "binary_kl":
        # An impossible probability above 1 leaves the least possible to the others.
        possible = np.minimum(t.logp, -(2.0**-52))
        excess = np.exp(t.logp_old) * (t.logp - possible)
        return outcomes_kl(t.logp_old, possible, possible - t.logp_old) - excess
    return {"top_k_kl": t.top_k_kl, "top_k_tv": t.top_k_tv}[divergence]


#: Generators f(w) of the f-divergences.
F: dict[str, Callable[[Array], Array]] = {
    "kl_old_new": lambda w: w - 1 - np.log(w),
    "kl_new_old": lambda w: 1 - w + w * np.log(w),
    "chi2": lambda w: (w - 1) ** 2,
    "hellinger": lambda w: (np.sqrt(w) - 1) ** 2,
    "js": lambda w: 0.5 * (w * np.log(w) - (1 + w) * np.log((1 + w) / 2)),
}


def f_divergence(p: Params, t: Tokens) -> Array:
    return F[p["divergence"]](np.exp(t.x))


def band(p: Params, t: Tokens) -> Array:
    """BandPO's divergence of the two outcomes; infinite past probability 1."""
    if p["divergence"] == "kl":
        found = bernoulli_kl_old_new(t.logp_old, t.x)
    else:
        # p (w - 1): the difference of two probabilities near 1 would lose the threshold's digits.
        old = np.exp(t.logp_old)
        gap = np.abs(old * np.expm1(t.x))
        found = gap if p["divergence"] == "tv" else gap**2 / (old * -np.expm1(t.logp_old))
    return np.where(t.logp > 0, np.inf, found)


# Intervals, by bisection -------------------------------------------------------------------------


def log_interval(
    divergence: Callable[[float], Any], delta: float, highest: float = math.inf
) -> tuple[float, float]:
    """Log-ratios around 0 where ``divergence`` is at most ``delta``, searched up to ``highest``."""
    with np.errstate(all="ignore"):
        return -edge(lambda x: divergence(-x), delta, 1e15), edge(divergence, delta, highest)


def edge(divergence: Callable[[float], Any], delta: float, limit: float) -> float:
    """Largest x in [0, limit] up to which an increasing ``divergence`` stays within ``delta``."""
    inside, outside = 0.0, min(1e-9, limit)
    while divergence(outside) <= delta:
        if outside >= limit:
            return limit if math.isfinite(limit) and limit < 1e15 else math.inf
        inside, outside = outside, min(2 * outside, limit)
    while inside < (middle := 0.5 * (inside + outside)) < outside:
        if divergence(middle) <= delta:
            inside = middle
        else:
            outside = middle
    return inside


def bernoulli_log_interval(p: float, delta: float) -> tuple[float, float]:
    logp = math.log(p)
    return log_interval(lambda x: bernoulli_kl_old_new(logp, x), delta, highest=-logp)


def dynamic_bounds(old: Any, low: float, high: float, ceiling: float) -> tuple[Any, Any]:
    """Ratio bounds of DCPO's dynamic adaptive clipping, of a token's old probability."""
    lower = 0.5 + 0.5 * np.sqrt(np.maximum(1 - 4 * low / old, 0.0))
    return lower, np.minimum(0.5 + 0.5 * np.sqrt(1 + 4 * high / old), ceiling)


# Gates -------------------------------------------------------------------------------------------


def outward(x: Array, advantage: Array) -> Array:
    return np.sign(x) * np.sign(advantage) > 0


def within(x: Array, low: Any, high: Any) -> Array:
    """Whether the ratio e^x is in [low, high]."""
    with np.errstate(divide="ignore"):
        return (x >= np.log(np.maximum(low, 0.0))) & (x <= np.log(high))


def mean(x: Array) -> Array:
    return np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)


def total(x: Array) -> Array:
    return mean(x) * x.shape[1]


def at(level: str, values: Array, reduce: Any = np.mean, turn: Any = None) -> Array:
    """A reduction over the tokens that a level covers at each place."""
    if level == "turn":
        own = [[reduce(v[n == m]) for m in n] for v, n in zip(values, turn, strict=True)]
        return np.array(own).reshape(values.shape)
    places = range(values.shape[1])
    covered = {
        "token": lambda i: slice(i, i + 1),
        "prefix": lambda i: slice(i + 1),
        "sequence": lambda i: slice(None),
    }[level]
    return np.stack([reduce(values[:, covered(i)], axis=1) for i in places], axis=1)


def every(p: Params, t: Tokens) -> Array:
    return np.ones_like(t.x, dtype=bool)


def gate(satisfied: Rule) -> Rule:
    """The paper's operator: an unsatisfied token is kept where it moves back, unless strict."""

    def rule(p: Params, t: Tokens) -> Array:
        strict = p.get("side", "outward") == "strict"
        return satisfied(p, t) | (~outward(t.x, t.advantage) & (not strict))

    return rule


def at_most(measure: Rule) -> Rule:
    return gate(lambda p, t: measure(p, t) <= p["delta"])


def levelled(satisfied: Rule) -> Rule:
    """The same of a prefix or a sequence: of its mean log-ratio, or of what is made of its k3."""

    def rule(p: Params, t: Tokens) -> Array:
        average, reduction = at(p["level"], t.x, turn=t.turn), p.get("reduction", "ratio")
        if reduction == "ratio":
            inside = satisfied(p, replace(t, x=average))
        else:
            by = {"mean": np.mean, "sum": np.sum, "max": np.max}[reduction]
            inside = at(p["level"], k3(t.x), by, t.turn) <= p["delta"]
        weighing = average if p.get("weight", "level") == "level" else t.x
        return inside | (~outward(weighing, t.advantage) & (p["side"] == "outward"))

    return rule


def capped(rule: Rule, ceiling: str) -> Rule:
    """A dual clip: large ratios are cut where A < 0."""

    def both(p: Params, t: Tokens) -> Array:
        highest = math.inf if p[ceiling] is None else math.log(p[ceiling])
        return rule(p, t) & ~((t.advantage < 0) & (t.x > highest))

    return both


def offsets(p: Params, t: Tokens) -> Array:
    return within(t.x, 1 - p["low"], 1 + p["high"])


def offset(p: Params, t: Tokens) -> Array:
    return within(t.x, 1 - p["epsilon"], 1 + p["epsilon"])


def dynamic(p: Params, t: Tokens) -> Array:
    bounds = (p[k] for k in ("epsilon_low", "epsilon_high", "ceiling"))
    return within(t.x, *dynamic_bounds(np.exp(t.logp_old), *bounds))


#: Thresholds and slopes of the Truly PPO family by variant.
_TRULY = {
    "tr_ppo": (0.035, None),
    "ppo_rb": (None, 0.3),
    "trppo_rb": (0.03, 0.05),
    "truly": (0.03, 5.0),
}


def truly(p: Params, t: Tokens) -> Array:
    if p["variant"] == "ppo_rb":
        return offset(p, t)
    return t.kl_old_new <= (_TRULY[p["variant"]][0] if p["delta"] is None else p["delta"])


def abc(p: Params, t: Tokens) -> Array:
    up, down = (
        within(t.x, 1 - p[f"{sign}_low"], 1 + p[f"{sign}_high"])
        for sign in ("positive", "negative")
    )
    return np.where(t.advantage == 0, True, np.where(t.advantage > 0, up, down))


def in_band(p: Params, t: Tokens) -> Array:
    highest = math.inf if p["ceiling"] is None else math.log(p["ceiling"])
    return (band(p, t) <= p["delta"]) & (t.x <= highest)


def dppo(p: Params, t: Tokens) -> Array:
    t = t.against(p["anchor"])
    usual = 0.15 if p["divergence"].endswith("tv") else 0.05
    inside = token_divergence(p["divergence"], t) <= (usual if p["delta"] is None else p["delta"])
    return inside | ~outward(t.x, t.advantage)


def cppo(p: Params, t: Tokens) -> Array:
    """The paper's Algorithm 1, with the budget of its base models where a ceiling is given."""
    t = t.against(p["anchor"])
    found = token_divergence(p["divergence"], t)
    budget = np.full(len(t.x), p["budget"])
    if p["budget_ceiling"] is not None:
        budget = np.clip(np.quantile(found, 0.9, axis=1), budget, p["budget_ceiling"])
    places = np.arange(t.x.shape[1])
    weight = 1 - (1 - p["least_weight"]) * places / max(places[-1], 1)
    spent = np.cumsum(weight * found, axis=1) - weight * found
    allowed = p["delta"] + np.multiply.outer(budget, np.cumsum(weight) - weight) - spent
    return (weight * found <= np.minimum(allowed, p["delta"])) | ~outward(t.x, t.advantage)


def m2po(p: Params, t: Tokens) -> Array:
    """Algorithm 1: the largest squares go, equal ones together, until the mean is in budget."""
    moved = t.against(p["anchor"])
    among = every(p, t) if p["side"] == "strict" else outward(moved.x, t.advantage)
    squares = np.where(among, moved.x, 0.0).astype(np.float32).astype(float) ** 2
    dropped = ~every(p, t)
    while (left := among & ~dropped).any() and squares[left].mean() > p["budget"]:
        dropped |= among & (squares >= squares[left].max() * (1 - 1e-6))
    return ~dropped


def bapo_bounds(p: Params, t: Tokens) -> tuple[float, float]:
    """Algorithm 1: the upper bound opens, then the lower one, until A > 0 has its share."""
    low, high = 1 - p["low"], 1 + p["high"]
    last_low, last_high = 1 - p["low_limit"], 1 + p["high_limit"]
    signal, ratio = np.exp(t.logp_old) * t.advantage, np.exp(t.x)
    while low < last_low or high < last_high:
        plus = (signal * np.minimum(ratio, high))[t.advantage > 0].sum()
        minus = -(signal * np.maximum(ratio, low))[t.advantage < 0].sum()
        if plus >= p["target"] * (plus + minus):
            break
        if high < last_high:
            high = min(high + p["high_step"], last_high)
        else:
            low = min(low + p["low_step"], last_low)
    return low, high


def trpo(p: Params, t: Tokens) -> Array:
    """Every token of the batch, or none."""
    kl = k3(t.x) if t.kl_old_new is None else t.kl_old_new
    return every(p, t) & (kl.mean() <= p["delta"])


# Weights of one method around another ------------------------------------------------------------


def tis(p: Params, t: Tokens) -> Array:
    return np.minimum(np.exp(t.rho if p["level"] == "token" else total(t.rho)), p["ceiling"])


def icepop(p: Params, t: Tokens) -> Array:
    spread = {"sequence": total, "geometric": mean}.get(p["level"], lambda x: x)
    rho = spread(t.rho)
    compared = rho if p["policy"] == "old" else spread(t.rho + t.x)  # log(new / rollout)
    low = 0.0 if p["floor"] is None else p["floor"]
    return np.where(within(compared, low, p["ceiling"]), np.exp(rho), 0.0)


def opsm(p: Params, t: Tokens) -> Array:
    return (t.advantage >= 0) | (-mean(t.against(p["anchor"]).x) <= p["delta"])


def trm(p: Params, t: Tokens) -> Array:
    values = k3(t.against(p["anchor"]).x) if p["divergence"] == "k3" else t.kl_old_new
    found = {"max": np.max, "mean": np.mean}[p["reduction"]](values, axis=1, keepdims=True)
    return np.broadcast_to(found <= p["delta"], t.x.shape)


def kpop(p: Params, t: Tokens) -> Array:
    ours = t.logp_old if p["policy"] == "old" else t.logp
    apart = ours - t.logp_rollout
    there, back = replace(t, x=apart, logp_old=t.logp_rollout), replace(t, x=-apart, logp_old=ours)
    worst = np.maximum(*(token_divergence("binary_kl", pair) for pair in (there, back)))
    return np.where(worst <= p["delta"], np.exp(t.rho), 0.0)


def erc(p: Params, t: Tokens) -> Array:
    ratio = (t.entropy + 1e-8) / (t.entropy_old + 1e-8)
    return (ratio > 1 - p["low"]) & (ratio < 1 + p["high"])


#: Log of the largest weight of a ratio to the sampler: verl's bound for safety.
LARGEST = 20.0


def sampler(p: Params, t: Tokens) -> Array:
    """A mask by one measure, a weight by another."""
    apart = {"old_rollout": lambda: t.rho, "new_rollout": lambda: t.rho + t.x}
    x = t.x if p["between"] == "new_old" else apart[p["between"]]()
    ours = t.logp_old if p["between"] == "old_rollout" else t.logp
    if p["measure"] == "probability":  # ROLL: e^old - e^rollout
        values = np.exp(ours) - np.exp(ours - x)
    elif p["measure"] == "exp_abs":  # NeMo RL: e^|difference of log-probabilities|
        values = np.exp(np.abs(x))
    elif p["measure"] == "tv":  # Open Instruct: |rho - 1|
        values = np.abs(np.exp(x) - 1)
    elif p["measure"] == "binary_kl":
        pair = replace(t, x=x, logp_old=ours - x), replace(t, x=-x, logp_old=ours)
        values = np.maximum(*(token_divergence("binary_kl", one) for one in pair))
    else:
        values = {"ratio": x, "k1": -x, "k2": k2(x), "k3": k3(x)}.get(p["measure"], t.kl_old_new)
    if p["level"] != "token":
        by = {"mean": np.mean, "sum": np.sum, "max": np.max}[p["reduction"]]
        values = at(p["level"], values, by, t.turn)
    low, high = p["floor"], p["ceiling"]
    if p["measure"] == "ratio":
        low, high = (None if bound is None else math.log(bound) for bound in (low, high))
    keep = (values >= (-np.inf if low is None else low)) & (
        values <= (np.inf if high is None else high)
    )
    if p["only"] == "negative":
        keep |= t.advantage >= 0
    if p["side"] == "away":  # Open Instruct: a token is masked where A log(rho) > 0 as well
        keep |= ~(t.advantage * x > 0)
    if p["weigh_by"] == "none":
        return keep.astype(float)
    moved = t.rho if p["weigh_of"] == "old" else t.rho + t.x
    spread = {"sequence": total, "geometric": mean}.get(p["weigh_by"], lambda v: v)
    least, most = p["weight_floor"], p["weight_ceiling"]
    weight = np.exp(np.minimum(spread(moved), LARGEST))
    weight = weight if least is None else np.maximum(weight, least)
    return keep * (weight if most is None else np.minimum(weight, most))


WEIGHTS: dict[str, Rule] = {
    "sampler": sampler,
    **{"tis": tis, "icepop": icepop, "opsm": opsm},
    **{"trm": trm, "kpop": kpop, "erc": erc},
}


def weighted(weight: Rule) -> Rule:
    """Kept by the inner method and with a weight other than 0."""
    return lambda p, t: of(kept, p["inner"], t) & (weight(p, t) > 0)


def of(what: Any, part: Params, t: Tokens, *more: Any) -> Array:
    return what(part["name"], part, t, *more)


def of_two(p: Params, t: Tokens) -> tuple[Array, Array]:
    return of(kept, p["first"], t), of(kept, p["second"], t)


#: What each method keeps, bool [sequences, tokens].
KEPT: dict[str, Rule] = {
    "clip": levelled(offset),
    "clip_higher": levelled(offsets),
    "atr": levelled(lambda p, t: k3(t.x) <= p["delta"]),
    "dual_clip": capped(gate(offsets), "ceiling"),
    "dynamic_clip": capped(gate(dynamic), "dual_ceiling"),
    "clip_cov": gate(offsets),  # without its draw: see clip_cov_candidates
    "kl1": at_most(lambda p, t: {"abs": abs(t.x), "kl_old_new": -t.x}.get(p["sign"], t.x)),
    "kl2": at_most(lambda p, t: k2(t.x)),
    "is_kl3": at_most(lambda p, t: {"kl_new_old": is_k3, "product": k3_product}[p["form"]](t.x)),
    "full_kl": at_most(lambda p, t: t.kl_old_new if p["order"] == "old_new" else t.kl_new_old),
    "f_divergence": at_most(f_divergence),
    "trgppo": gate(
        lambda p, t: offset(p, t) | (bernoulli_kl_old_new(t.logp_old, t.x) <= p["delta"])
    ),
    "truly_ppo": gate(truly),
    "trpo": trpo,
    "gspo": lambda p, t: gate(offsets)(p, replace(t, x=mean(t.x))),
    "luspo": lambda p, t: gate(offsets)(p, replace(t, x=mean(t.x))),
    "gmpo": gate(lambda p, t: (t.x >= -p["log_low"]) & (t.x <= p["log_high"])),
    "aspo": gate(offsets),
    "abc_grpo": abc,
    "bandpo": capped(gate(in_band), "dual_ceiling"),
    "dppo": dppo,
    "cppo": cppo,
    "ipo": lambda p, t: token_divergence("binary_tv", t.against(p["anchor"])) <= p["delta"],
    "m2po": m2po,
    "vaco": lambda p, t: vaco(p, t),
    "bapo": lambda p, t: gate(lambda p, t: within(t.x, *bapo_bounds(p, t)))(p, t),
    **dict.fromkeys(("cispo", "soft_gate", "spo", "pspo", "reinforce", "ce_gppo", "dgpo"), every),
    **dict.fromkeys(("topr", "vespo", "importance_sampling", "drpo"), every),
    "kl_cov": every,
    **{name: weighted(weight) for name, weight in WEIGHTS.items()},
    "anchored": lambda p, t: of(kept, p["inner"], t.against(p["anchor"]).up_to(p["ceiling"])),
    "penalty": lambda p, t: of(kept, p["inner"], paid(p, t)),
    "troll": lambda p, t: projected(p, t)[0] == 1,
    "centered": lambda p, t: of(kept, p["inner"], t),  # its drift: test_centered.py
    "both": lambda p, t: np.logical_and(*of_two(p, t)),
    "either": lambda p, t: np.logical_or(*of_two(p, t)),
    "by_sign": lambda p, t: np.where(
        t.advantage > 0, of(kept, p["positive"], t), of(kept, p["negative"], t)
    ),
}


def projected(p: Params, t: Tokens) -> tuple[Array, Array]:
    """TROLL: where on the path from old (0) to new (1) the policy is, and the ratio there."""
    places, ratios = np.ones(t.x.shape), np.exp(t.x)
    for at in np.ndindex(t.x.shape):
        new, old, _ = np.exp(t.candidates[at].reshape(3, -1))
        new, old = (np.append(v, max(1 - v.sum(), 1e-6)) for v in (new, old))

        def between(s: float, new: Array = new, old: Array = old) -> Array:
            return old ** (1 - s) * new**s

        def beyond(s: float, old: Array = old, between: Any = between) -> float:
            policy = between(s) / between(s).sum()
            return float((policy * np.log(policy / old)).sum()) - p["delta"]

        if beyond(1.0) > 0:
            places[at] = s = float(brentq(beyond, 0.0, 1.0, xtol=1e-15))  # type: ignore[arg-type]
            ratios[at] = np.exp(s * t.x[at]) / between(s).sum()
    return places, ratios


def kept(name: str, p: Params, t: Tokens) -> Array:
    """Which tokens keep their gradient, bool [sequences, tokens]."""
    return KEPT[name](p, t)


# The gradient ------------------------------------------------------------------------------------


def of_level(name: str) -> Rule:
    def rule(p: Params, t: Tokens) -> Array:
        weighing = at(p["level"], t.x, turn=t.turn) if p.get("weight", "level") == "level" else t.x
        return KEPT[name](p, t) * np.exp(weighing)

    return rule


def soft(p: Params, t: Tokens) -> Array:
    hot = np.where(t.advantage > 0, p["temperature_positive"], p["temperature_negative"])
    shrink = np.exp(-np.abs(hot * np.expm1(t.x)))
    return np.exp(t.x) * 4 * shrink / (1 + shrink) ** 2


def rolled_back(p: Params, t: Tokens) -> Array:
    usual = _TRULY[p["variant"]][1]
    back = -(usual if p["slope"] is None else p["slope"]) if p["variant"] != "tr_ppo" else 0.0
    back = p["slope_likelihood"] if p["variant"] == "truly" else back
    return np.exp(t.x) * np.where(KEPT["truly_ppo"](p, t), 1.0, back)


def gmpo(p: Params, t: Tokens) -> Array:
    keep = KEPT["gmpo"](p, t)
    return keep * np.exp(mean(np.where(keep, t.x, np.clip(t.x, -p["log_low"], p["log_high"]))))


def ce_gppo(p: Params, t: Tokens) -> Array:
    below = (t.advantage < 0) & ~within(t.x, 1 - p["low"], math.inf)
    above = (t.advantage > 0) & (t.x > math.log(1 + p["high"]))
    floor, top = p["beta_low"] * (1 - p["low"]), p["beta_high"] * (1 + p["high"])
    return np.where(below, floor, np.where(above, top, np.exp(t.x)))


def dgpo(p: Params, t: Tokens) -> Array:
    w, floor, top = np.exp(t.x), 1 - p["low"], 1 + p["high"]
    below, above = (t.advantage < 0) & (w < floor), (t.advantage > 0) & (w > top)
    under = w ** (p["n"] + 1) / max(floor, 1e-300) ** p["n"]
    return np.where(below, under, np.where(above, top ** (1 / p["m"]) * w ** (1 - 1 / p["m"]), w))


def vaco(p: Params, t: Tokens) -> Array:
    t = t.against(p["anchor"])
    half = 0.5 * np.abs(np.exp(t.x) - 1)
    return (half.mean(axis=1, keepdims=True) <= p["delta"]) | ~outward(t.x, t.advantage)


def aspo(p: Params, t: Tokens) -> Array:
    weight = np.exp(np.where(t.advantage > 0, -t.x, t.x))
    return KEPT["aspo"](p, t) * np.minimum(weight, p["ceiling"])


def topr(p: Params, t: Tokens) -> Array:
    x = total(t.x) if p["level"] == "sequence" else t.x
    return np.where(t.advantage < 0, np.exp(np.minimum(x, 0.0)), 1.0)


def vespo(p: Params, t: Tokens) -> Array:
    """A weight of the sequence, with the clamps of the released code."""
    clamped = np.clip(t.against(p["anchor"]).x, -20.0, 20.0)
    log_w = np.clip(total(clamped), math.log(1e-8), 20.0)

    def gamma(sign: str) -> Array:
        k, rate = p[f"k_{sign}"], p[f"lambda_{sign}"]
        return np.exp(rate + k * log_w - rate * np.exp(log_w))

    return np.where(t.advantage >= 0, gamma("positive"), gamma("negative"))


def drpo(p: Params, t: Tokens) -> Array:
    t = t.against(p["anchor"])
    moved = np.exp(t.logp) - np.exp(t.logp_old)
    return np.exp(t.x) * (1 - np.sign(t.advantage) * moved / p["delta"])


def anchored_ratio(name: str) -> Rule:
    def rule(p: Params, t: Tokens) -> Array:
        seen = t.against(p.get("anchor", "old")).up_to(p.get("ceiling"))
        return KEPT[name](p, t) * np.exp(seen.x)

    return rule


#: c of each token, where it is not the ratio of a kept token.
COEFFICIENT: dict[str, Rule] = {
    **{name: of_level(name) for name in ("clip", "clip_higher", "atr")},
    **{
        name: lambda p, t, name=name: KEPT[name](p, t) * np.exp(mean(t.x))
        for name in ("gspo", "luspo")
    },
    **{
        name: anchored_ratio(name)
        for name in ("ipo", "importance_sampling", "cppo", "m2po", "vaco")
    },
    "soft_gate": soft,
    "truly_ppo": rolled_back,
    "gmpo": gmpo,
    "cispo": lambda p, t: np.clip(np.exp(t.x), 1 - p["low"], 1 + p["high"]),
    "reinforce": lambda p, t: 1.0,
    "spo": lambda p, t: np.exp(t.x) * (1 - np.sign(t.advantage) * np.expm1(t.x) / p["epsilon"]),
    "pspo": lambda p, t: (1 - p["alpha"]) * np.exp(t.x),
    "ce_gppo": ce_gppo,
    "dgpo": dgpo,
    "aspo": aspo,
    "topr": topr,
    "vespo": vespo,
    "dppo": lambda p, t: dppo(p, t) * np.minimum(np.exp(t.against(p["anchor"]).x), p["ceiling"]),
    "drpo": drpo,
    "troll": lambda p, t: np.prod(projected(p, t), axis=0),
}


def gspo_gradient(p: Params, t: Tokens, weight: Any) -> Array:
    """Each token's own, or, where the gradient follows the mean, that of all of them."""
    own = weight * COEFFICIENT["gspo"](p, t) * t.advantage
    return mean(own) if p["variant"] == "gspo" else own


def kl_cov(p: Params, t: Tokens, weight: Any) -> Array:
    """w A, minus the price of moving for the tokens of largest covariance."""
    covariance = centred_products(t.logp, t.advantage)
    number = max(int(p["share"] * covariance.size), 1)
    least = np.sort(covariance, axis=None)[-number]
    pays = (covariance >= least) & (covariance > 0)
    return weight * (np.exp(t.x) * t.advantage - p["beta"] * np.sign(t.x) * pays)


#: Slope of each penalty in the log-ratio it is on.
SLOPES: dict[str, Callable[[Array], Array]] = {
    "abs": np.sign,
    "k2": lambda x: x,
    "k3": np.expm1,
    "k3_reverse": lambda x: -np.expm1(-x),
    "kl_old_new": lambda x: 0 * x,  # its gradient is its own
}


def paid(p: Params, t: Tokens) -> Tokens:
    """With advantages that have paid for k1 of the old policy against the reference model."""
    if p["divergence"] != "k1":
        return t
    k = t.logp_old - t.logp_ref
    return replace(t, advantage=t.advantage + p["beta"] * (k.mean() - k))


def penalty(p: Params, t: Tokens, weight: Any) -> Array:
    """The part's gradient, minus the price of the tokens that pay."""
    if p["divergence"] == "k1":
        return of(gradient, p["inner"], paid(p, t), weight)
    moved, slope, keep = t.against(p["anchor"]).x, SLOPES[p["divergence"]], KEPT["penalty"](p, t)
    pays = weight * {"cut": ~keep, "kept": keep}.get(p["on"], every(p, t))
    if p["level"] == "sequence":
        price = mean(p["beta"] * slope(total(moved)) * pays)
    else:
        price = p["beta"] * slope(moved) * pays
    return of(gradient, p["inner"], t, weight) - price


def both(p: Params, t: Tokens, weight: Any) -> Array:
    return of(gradient, p["first"], t, weight * of(kept, p["second"], t))


def either(p: Params, t: Tokens, weight: Any) -> Array:
    first, second = of_two(p, t)
    follow = first | ~second
    ours = of(gradient, p["first"], t, weight * follow)
    return ours + of(gradient, p["second"], t, weight * ~follow)


def by_sign(p: Params, t: Tokens, weight: Any) -> Array:
    rewarded = t.advantage > 0
    ours = of(gradient, p["positive"], t, weight * rewarded)
    return ours + of(gradient, p["negative"], t, weight * ~rewarded)


#: The gradient of methods whose tokens pay, share one, or have a part's.
GRADIENT: dict[str, Callable[[Params, Tokens, Any], Array]] = {
    **{"gspo": gspo_gradient, "kl_cov": kl_cov},
    **{"penalty": penalty, "both": both, "either": either, "by_sign": by_sign},
    **{
        name: lambda p, t, weight, own=own: of(gradient, p["inner"], t, weight * own(p, t))
        for name, own in WEIGHTS.items()
    },
    "anchored": lambda p, t, weight: of(
        gradient, p["inner"], t.against(p["anchor"]).up_to(p["ceiling"]), weight
    ),
    "centered": lambda p, t, weight: of(gradient, p["inner"], t, weight),
}


def gradient(name: str, p: Params, t: Tokens, weight: Any = 1.0) -> Array:
    """Gradient of the sequence's summed objective in each log-probability.

    Args:
      name: of the method.
      p: its hyper-parameters.
      t: the tokens.
      weight: factor of each token's objective, a constant to the gradient.
    """
    if name in GRADIENT:
        return GRADIENT[name](p, t, weight)
    rule = COEFFICIENT.get(name, lambda p, t: KEPT[name](p, t) * np.exp(t.x))
    return weight * rule(p, t) * t.advantage


# Covariances -------------------------------------------------------------------------------------


def centred_products(logp: Any, advantage: Any) -> Array:
    logp, advantage = np.asarray(logp), np.asarray(advantage)
    return (advantage - advantage.mean()) * (logp - logp.mean())


def clip_cov_candidates(p: Params, t: Tokens) -> set[int]:
    """Tokens of one sequence among which Clip-Cov draws the ones it drops."""
    covariance = centred_products(t.logp, t.advantage)
    chosen = (p["cov_low"] < covariance) & (covariance < p["cov_high"]) & KEPT["clip_cov"](p, t)
    return set(np.flatnonzero(chosen[0]).tolist())
