"""Reference answers for the methods beyond the paper's tables, in plain Python floats.

As `oracle`: from the published formulas, one token at a time, nothing shared with the library. A
sequence is a list of tokens, and `gradient` is that of its summed objective in each
log-probability, including prices that do not scale with the advantage.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import oracle

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Token:
    """Log-ratio, advantage, and old log-probability of a token, and what some methods ask for."""

    x: float
    advantage: float
    logp_old: float = -1.0
    kl_old_new: float | None = None
    kl_new_old: float | None = None
    logp_rollout: float | None = None
    top_k_kl: float | None = None
    top_k_tv: float | None = None
    lag: int | None = None
    entropy: float | None = None
    entropy_old: float | None = None

    @property
    def logp(self) -> float:
        return self.logp_old + self.x

    @property
    def rho(self) -> float:
        """log(old / rollout)."""
        assert self.logp_rollout is not None
        return self.logp_old - self.logp_rollout

    def against(self, anchor: str) -> "Token":
        if anchor == "old":
            return self
        assert self.logp_rollout is not None
        if anchor == "interpolated":
            assert self.lag is not None
            share = 1 / max(self.lag, 1)  # of the way from the sampler that is left
            x = share * (self.logp - self.logp_rollout)
            return dataclasses.replace(self, x=x, logp_old=self.logp - x)
        return dataclasses.replace(
            self, x=self.logp - self.logp_rollout, logp_old=self.logp_rollout
        )


Sequence_ = Sequence[Token]


def outward(x: float, advantage: float) -> bool:
    return (x > 0 and advantage > 0) or (x < 0 and advantage < 0)


def within(x: float, low: float, high: float) -> bool:
    """Whether the ratio e^x is in [low, high]."""
    return (low <= 0 or x >= math.log(low)) and x <= math.log(high)


def geometric(tokens: Sequence_) -> float:
    """Mean log-ratio."""
    return math.fsum(t.x for t in tokens) / len(tokens)


# What a token keeps ------------------------------------------------------------------------------


def kept(name: str, params: Params, tokens: Sequence_) -> list[bool]:
    """Which tokens of one sequence keep their gradient."""
    if name in SEQUENCE_KEPT:
        return SEQUENCE_KEPT[name](params, tokens)
    if name in ("atr", "clip", "clip_higher") and params["level"] != "token":
        return level_kept(name, params, tokens)
    return [token_kept(name, params, t) for t in tokens]


def token_kept(name: str, params: Params, t: Token) -> bool:
    match name:
        case "cispo" | "spo" | "pspo" | "reinforce" | "ce_gppo" | "topr" | "vespo" | "ppo_penalty":
            return True
        case "importance_sampling" | "drpo":
            return True
        case "ipo":
            return (
                probability_divergence("binary_tv", t.against(params["anchor"])) <= params["delta"]
            )
        case "gmpo":
            inside = -params["log_low"] <= t.x <= params["log_high"]
        case "aspo":
            inside = within(t.x, 1 - params["low"], 1 + params["high"])
        case "abc_grpo":
            if t.advantage == 0:
                return True
            sign = "positive" if t.advantage > 0 else "negative"
            return within(t.x, 1 - params[f"{sign}_low"], 1 + params[f"{sign}_high"])
        case "bandpo":
            dual = params["dual_ceiling"]
            if dual is not None and t.advantage < 0 and t.x > math.log(dual):
                return False
            inside = band(params["divergence"], t) <= params["delta"]
            if params["ceiling"] is not None:
                inside = inside and t.x <= math.log(params["ceiling"])
            if params["side"] == "strict":
                return inside
        case "dppo":
            t = t.against(params["anchor"])
            tv = params["divergence"].endswith("tv")
            delta = params["delta"] if params["delta"] is not None else (0.15 if tv else 0.05)
            inside = probability_divergence(params["divergence"], t) <= delta
        case _:
            return oracle.kept(
                name, params, t.x, t.advantage, t.logp_old, t.kl_old_new, t.kl_new_old
            )
    return inside or not outward(t.x, t.advantage)


def band(divergence: str, t: Token) -> float:
    """Divergence of the two outcomes "this token" and "any other"; infinite past probability 1."""
    if t.logp > 0:
        return math.inf
    if divergence == "kl":
        return oracle.bernoulli_kl_old_new(t.logp_old, t.x)
    # p (w - 1): the difference of two probabilities near 1 would lose the threshold's digits.
    p = math.exp(t.logp_old)
    gap = abs(p * math.expm1(t.x))
    return gap if divergence == "tv" else gap**2 / (p * -math.expm1(t.logp_old))


def probability_divergence(divergence: str, t: Token) -> float:
    if divergence == "binary_tv":
        return abs(math.exp(t.logp) - math.exp(t.logp_old))
    if divergence == "binary_kl":
        # An impossible probability above 1 leaves the least possible to the others.
        possible = min(t.logp, -(2.0**-52))
        excess = math.exp(t.logp_old) * (t.logp - possible)
        return oracle.outcomes_kl(t.logp_old, possible, possible - t.logp_old) - excess
    measured = {"top_k_kl": t.top_k_kl, "top_k_tv": t.top_k_tv}[divergence]
    assert measured is not None
    return measured


def bounded_mean(params: Params, tokens: Sequence_) -> list[bool]:
    """GSPO: the sequence's ratio is in its bounds, or moves back towards them."""
    mean = geometric(tokens)
    inside = within(mean, 1 - params["low"], 1 + params["high"])
    return [inside or not outward(mean, t.advantage) for t in tokens]


def cppo(params: Params, tokens: Sequence_) -> list[bool]:
    """The paper's Algorithm 1, with the budget of its base models where a ceiling is given."""
    tokens = [t.against(params["anchor"]) for t in tokens]
    divergences = [probability_divergence(params["divergence"], t) for t in tokens]
    budget = params["budget"]
    if params["budget_ceiling"] is not None:
        budget = min(max(quantile(divergences, 0.9), budget), params["budget_ceiling"])
    spent = weights = 0.0
    keep = []
    for i, (t, divergence) in enumerate(zip(tokens, divergences, strict=True)):
        weight = 1 - (1 - params["least_weight"]) * i / max(len(tokens) - 1, 1)
        threshold = min(params["delta"], params["delta"] + budget * weights - spent)
        keep.append(weight * divergence <= threshold or not outward(t.x, t.advantage))
        spent, weights = spent + weight * divergence, weights + weight
    return keep


def quantile(values: Sequence[float], level: float) -> float:
    """Interpolated between the two order statistics next to it."""
    ordered, place = sorted(values), level * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def masked(rule: Callable[[Params, Sequence_], list[float]]) -> Any:
    """Kept by the inner method and with a weight other than 0."""

    def both(params: Params, tokens: Sequence_) -> list[bool]:
        inner = kept(params["inner"]["name"], params["inner"], tokens)
        return [k and w > 0 for k, w in zip(inner, rule(params, tokens), strict=True)]

    return both


def tis(params: Params, tokens: Sequence_) -> list[float]:
    product = math.fsum(t.rho for t in tokens)
    rhos = [t.rho if params["level"] == "token" else product for t in tokens]
    return [min(math.exp(r), params["ceiling"]) for r in rhos]


def icepop(params: Params, tokens: Sequence_) -> list[float]:
    low = params["floor"] if params["floor"] is not None else 0.0
    rhos = at_spread(params["level"], [t.rho for t in tokens])
    moved = at_spread(params["level"], [t.rho + t.x for t in tokens])  # log(new / rollout)
    compared = {"old": rhos, "new": moved}[params["policy"]]
    inside = [within(r, low, params["ceiling"]) for r in compared]
    return [math.exp(r) if fits else 0.0 for r, fits in zip(rhos, inside, strict=True)]


def at_spread(level: str, log_ratios: Sequence[float]) -> list[float]:
    total = math.fsum(log_ratios)
    spread = {"sequence": total, "geometric": total / len(log_ratios)}
    return [spread.get(level, x) for x in log_ratios]


def opsm(params: Params, tokens: Sequence_) -> list[float]:
    moved = -geometric([t.against(params["anchor"]) for t in tokens])
    return [float(t.advantage >= 0 or moved <= params["delta"]) for t in tokens]


def trm(params: Params, tokens: Sequence_) -> list[float]:
    if params["divergence"] == "k3":
        measured = [oracle.k3(t.against(params["anchor"]).x) for t in tokens]
    else:
        measured = [t.kl_old_new for t in tokens if t.kl_old_new is not None]
    found = {"max": max(measured), "mean": math.fsum(measured) / len(measured)}
    return [float(found[params["reduction"]] <= params["delta"])] * len(tokens)


def kpop(params: Params, tokens: Sequence_) -> list[float]:
    weights = []
    for t in tokens:
        assert t.logp_rollout is not None
        ours = t.logp_old if params["policy"] == "old" else t.logp
        apart = ours - t.logp_rollout
        both = (Token(apart, 0.0, t.logp_rollout), Token(-apart, 0.0, ours))
        worst = max(probability_divergence("binary_kl", pair) for pair in both)
        weights.append(math.exp(t.rho) if worst <= params["delta"] else 0.0)
    return weights


def erc(params: Params, tokens: Sequence_) -> list[float]:
    ratios = [((t.entropy or 0.0) + 1e-8) / ((t.entropy_old or 0.0) + 1e-8) for t in tokens]
    return [float(1 - params["low"] < r < 1 + params["high"]) for r in ratios]


WEIGHTS = {"tis": tis, "icepop": icepop, "opsm": opsm, "trm": trm, "kpop": kpop, "erc": erc}


def of_parts(join: Callable[[bool, bool], bool]) -> Any:
    def combined(params: Params, tokens: Sequence_) -> list[bool]:
        parts = (params["first"], params["second"])
        first, second = (kept(p["name"], p, tokens) for p in parts)
        return [join(a, b) for a, b in zip(first, second, strict=True)]

    return combined


SEQUENCE_KEPT: dict[str, Any] = {
    "penalty": lambda params, tokens: kept(params["inner"]["name"], params["inner"], tokens),
    "anchored": lambda params, tokens: kept(
        params["inner"]["name"], params["inner"], [t.against(params["anchor"]) for t in tokens]
    ),
    "gspo": bounded_mean,
    "cppo": cppo,
    "luspo": bounded_mean,
    **{name: masked(rule) for name, rule in WEIGHTS.items()},
    "both": of_parts(lambda a, b: a and b),
    "either": of_parts(lambda a, b: a or b),
}


def span(params: Params, place: int, length: int) -> range:
    """Tokens that a level covers at one of them."""
    ends = {"token": (place, place + 1), "prefix": (0, place + 1), "sequence": (0, length)}
    return range(*ends[params["level"]])


def level_kept(name: str, params: Params, tokens: Sequence_) -> list[bool]:
    """A constraint on the prefix or the sequence, for the methods that have levels."""
    keep = []
    for i, t in enumerate(tokens):
        covered = [tokens[j] for j in span(params, i, len(tokens))]
        mean, each = geometric(covered), [oracle.k3(c.x) for c in covered]
        reduction = params.get("reduction", "ratio")
        if reduction == "ratio":
            inside = oracle.satisfied(name, params, mean, t.logp_old)
        else:
            total = math.fsum(each)
            measured = {"mean": total / len(each), "sum": total, "max": max(each)}[reduction]
            inside = measured <= params["delta"]
        weighing = mean if params.get("weight", "level") == "level" else t.x
        strict = params["side"] == "strict"
        keep.append(inside or (not strict and not outward(weighing, t.advantage)))
    return keep


# The gradient ------------------------------------------------------------------------------------


def gradient(name: str, params: Params, tokens: Sequence_) -> list[float]:
    """Gradient of one sequence's summed objective in each of its log-probabilities."""
    rows = contributions(name, params, tokens)
    return [math.fsum(column) for column in zip(*rows, strict=True)]


def contributions(name: str, params: Params, tokens: Sequence_) -> list[list[float]]:
    """Row i, column j: derivative of token i's objective in the log-probability of token j."""
    n, keep = len(tokens), kept(name, params, tokens)
    if name in WEIGHTS:
        return scaled(params["inner"], tokens, WEIGHTS[name](params, tokens))
    if name in ("both", "either"):
        return contributions_of_two(name, params, tokens)
    if name == "anchored":
        part = params["inner"]
        return contributions(part["name"], part, [t.against(params["anchor"]) for t in tokens])
    if name == "penalty":
        return penalised(params, tokens)
    rows = [[0.0] * n for _ in tokens]
    for i, t in enumerate(tokens):
        if name == "gmpo":
            clipped = [
                u.x if k else min(max(u.x, -params["log_low"]), params["log_high"])
                for u, k in zip(tokens, keep, strict=True)
            ]
            rho = math.exp(math.fsum(clipped) / n)
            rows[i] = [rho * t.advantage / n * k for k in keep]
        elif follows_a_mean(name, params):
            covered = range(n) if name in ("gspo", "luspo") else span(params, i, n)
            mean = math.fsum(tokens[j].x for j in covered) / len(covered)
            # A prefix weighs the gradient of its last token; a sequence's mean is followed.
            followed = (i,) if params.get("level") == "prefix" else covered
            for j in followed:
                rows[i][j] = math.exp(mean) * t.advantage / len(followed) * keep[i]
        else:
            rows[i][i] = own_gradient(name, params, tokens, i, keep[i])
    return rows


def scaled(part: Params, tokens: Sequence_, weights: Sequence[float]) -> list[list[float]]:
    """Contributions of a method with a constant weight on each token's objective."""
    rows = contributions(part["name"], part, tokens)
    return [[w * v for v in row] for w, row in zip(weights, rows, strict=True)]


def contributions_of_two(name: str, params: Params, tokens: Sequence_) -> list[list[float]]:
    parts = params["first"], params["second"]
    first, second = (kept(p["name"], p, tokens) for p in parts)
    if name == "both":
        return scaled(parts[0], tokens, [float(k) for k in second])
    follow = [float(a or not b) for a, b in zip(first, second, strict=True)]
    rows = scaled(parts[0], tokens, follow), scaled(parts[1], tokens, [1 - f for f in follow])
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(*rows, strict=True)]


#: Slope of each penalty in the log-ratio it is on.
SLOPES: dict[str, Callable[[float], float]] = {
    "abs": lambda x: (x > 0) - (x < 0),
    "k2": lambda x: x,
    "k3": lambda x: math.expm1(x),
    "k3_reverse": lambda x: -math.expm1(-x),
}


def penalised(params: Params, tokens: Sequence_) -> list[list[float]]:
    """The part's contributions, minus the price of the tokens that pay."""
    part, n = params["inner"], len(tokens)
    rows = contributions(part["name"], part, tokens)
    slope, keep = SLOPES[params["divergence"]], kept(part["name"], part, tokens)
    moved = [t.against(params["anchor"]).x for t in tokens]
    for i, row in enumerate(rows):
        if params["on"] == ("cut" if keep[i] else "kept"):
            continue
        whole = params["level"] == "sequence"
        each = params["beta"] * slope(math.fsum(moved) if whole else moved[i])
        for j in range(n) if whole else (i,):
            row[j] -= each / n if whole else each
    return rows


def follows_a_mean(name: str, params: Params) -> bool:
    if name == "gspo":
        return params["variant"] == "gspo"
    levelled = params.get("level", "token") != "token" and name in ("atr", "clip", "clip_higher")
    return name == "luspo" or (levelled and params.get("weight", "level") == "level")


def own_gradient(name: str, params: Params, tokens: Sequence_, i: int, keep: bool) -> float:
    """Derivative of a token's objective in its own log-probability, of methods without others."""
    t = tokens[i]
    a, w = t.advantage, math.exp(t.x)
    match name:
        case "gspo":
            return keep * math.exp(geometric(tokens)) * a
        case "cispo":
            return min(max(w, 1 - params["low"]), 1 + params["high"]) * a
        case "reinforce":
            return a
        case "spo":
            sign = (a > 0) - (a < 0)
            return w * (1 - sign * (w - 1) / params["epsilon"]) * a
        case "pspo":
            return (1 - params["alpha"]) * w * a
        case "ppo_penalty":
            return w * a - (params["beta"] * (w - 1) if params["estimator"] == "k3" else 0.0)
        case "ce_gppo":
            if a < 0 and not within(t.x, 1 - params["low"], math.inf):
                return params["beta_low"] * (1 - params["low"]) * a
            if a > 0 and t.x > math.log(1 + params["high"]):
                return params["beta_high"] * (1 + params["high"]) * a
            return w * a
        case "aspo":
            return keep * min(1 / w if a > 0 else w, params["ceiling"]) * a
        case "topr":
            product = math.fsum(u.x for u in tokens)
            tapered = min(product if params["level"] == "sequence" else t.x, 0.0)
            return (math.exp(tapered) if a < 0 else 1.0) * a
        case "vespo":
            return gamma(params, tokens, "positive" if a >= 0 else "negative") * a
        case "dppo":
            return keep * min(math.exp(t.against(params["anchor"]).x), params["ceiling"]) * a
        case "drpo":
            t = t.against(params["anchor"])
            moved = math.exp(t.logp) - math.exp(t.logp_old)
            sign = (a > 0) - (a < 0)
            return math.exp(t.x) * (1 - sign * moved / params["delta"]) * a
        case "ipo" | "importance_sampling" | "cppo":
            return keep * math.exp(t.against(params["anchor"]).x) * a
        case "abc_grpo" | "bandpo" | "atr":
            return keep * w * a
    return a * oracle.coefficient(name, params, t.x, a, t.logp_old, t.kl_old_new, t.kl_new_old)


def gamma(params: Params, tokens: Sequence_, sign: str) -> float:
    """VESPO's weight of a sequence, with the clamps of the released code."""
    total = math.fsum(min(max(t.against(params["anchor"]).x, -20.0), 20.0) for t in tokens)
    log_w = min(max(total, math.log(1e-8)), 20.0)
    k, rate = params[f"k_{sign}"], params[f"lambda_{sign}"]
    return math.exp(rate + k * log_w - rate * math.exp(log_w))


def kl_cov_gradient(
    params: Params, logp: Sequence[float], logp_old: Sequence[float], advantages: Sequence[float]
) -> list[float]:
    """w A, minus the price of moving for the tokens of largest covariance."""
    covariance = oracle.centred_products(logp, advantages)
    number = max(int(params["share"] * len(logp)), 1)
    order = sorted(range(len(logp)), key=lambda i: -covariance[i])
    selected = {i for i in order[:number] if covariance[i] > 0}
    gradients = []
    for i, (new, old, a) in enumerate(zip(logp, logp_old, advantages, strict=True)):
        price = params["beta"] * ((new > old) - (new < old)) if i in selected else 0.0
        gradients.append(math.exp(new - old) * a - price)
    return gradients


def m2po_kept(params: Params, tokens: Sequence_) -> list[bool]:
    """The paper's Algorithm 1: the largest squares go, one by one, until the mean is in budget."""
    moved = [t.against(params["anchor"]).x for t in tokens]
    left = [
        i
        for i, t in enumerate(tokens)
        if params["side"] == "strict" or outward(moved[i], t.advantage)
    ]
    dropped = set()
    while left and math.fsum(moved[i] ** 2 for i in left) / len(left) > params["budget"]:
        largest = max(left, key=lambda i: moved[i] ** 2)
        left.remove(largest)
        dropped.add(largest)
    return [i not in dropped for i in range(len(tokens))]


def bapo_bounds(params: Params, tokens: Sequence_) -> tuple[float, float]:
    """The paper's Algorithm 1: bounds of the ratio."""
    low, high = 1 - params["low"], 1 + params["high"]
    last_low, last_high = 1 - params["low_limit"], 1 + params["high_limit"]

    def share() -> float:
        plus = minus = 0.0
        for t in tokens:
            ratio, p = math.exp(t.x), math.exp(t.logp_old)
            if t.advantage > 0:
                plus += p * min(ratio, high) * t.advantage
            else:
                minus -= p * max(ratio, low) * t.advantage
        return plus / (plus + minus) if plus + minus else 1.0

    step_low, step_high = params["low_step"], params["high_step"]
    while share() < params["target"] and low + step_low <= last_low + 1e-9:
        if high + step_high <= last_high + 1e-9:
            high += step_high
        else:
            low += step_low
    return low, high


#: Methods of which this module knows the rule.
KNOWN = (
    *("gspo", "luspo", "gmpo", "cispo", "spo", "pspo", "ppo_penalty", "ce_gppo", "aspo", "topr"),
    *("vespo", "dppo", "bandpo", "abc_grpo", "tis", "icepop", "opsm", "trm", "both", "either"),
    *("penalty", "anchored", "reinforce"),
    *("ipo", "importance_sampling", "drpo", "cppo", "kpop", "erc"),
)
