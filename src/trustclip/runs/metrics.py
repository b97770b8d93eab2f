"""Every metric that is logged: what it is, its unit, over what it is averaged, where it appears.

The one description of them; the site's page is made from it, and a test compares it with what the
code logs. In one file because it is one table.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Metrics of a call, `trustclip.policy_loss`, as (sum, count) without a prefix.
LOSS = "loss"
#: A log line under ``trustclip/``: our trainer in TRL, the observer of TRL's own, control.
LOG = "log"
#: Engines that call a loss on each micro-batch and average what it returns: verl, SkyRL, ...
CALLED = "verl"
EVERYWHERE = (LOSS, LOG, CALLED)

#: Words of a name that stand for many -> what they match.
_STANDS_FOR = {
    "QUADRANT": "(positive|negative)_(above|below)",
    "LOW_HIGH": r"[\d.]+_([\d.]+|inf)",
    "NAME": r"[\w.-]+",
    "METHOD": "[^/]+",
    "OTHER": "[^/]+",
    "N": r"(\d+|\d+_(\d+|inf))",
    "K": r"\d+",
}


@dataclass(frozen=True)
class Metric:
    """A metric, or a family of them.

    Args:
      name: with words in capitals that stand for many; see `matches`.
      what: it is.
      unit: of its values.
      over: what it is a mean of, or how it is computed.
      between: the policies that it compares; empty if it is about one alone.
      places: of `EVERYWHERE`, where it is found; empty for a metric of another group.
    """

    name: str
    what: str
    unit: str
    over: str
    between: str = ""
    places: tuple[str, ...] = EVERYWHERE

    def matches(self, name: str) -> bool:
        """Whether a logged name is of this metric.

        Example:
          >>> Metric("gated/p_old_LOW_HIGH", "", "", "").matches("gated/p_old_0.5_0.9")
          True
        """
        parts = re.split(f"({'|'.join(_STANDS_FOR)})", self.name)
        return bool(
            re.fullmatch("".join(_STANDS_FOR.get(part) or re.escape(part) for part in parts), name)
        )


@dataclass(frozen=True)
class Group:
    """Metrics of one kind."""

    title: str
    about: str
    metrics: tuple[Metric, ...]
    prefix: str = ""


_ALL, _KIND = "finite unmasked tokens", "those tokens"
_MOVED, _ANCHOR, _SAMPLER, _BOTH = (
    "π_θ, π_old",
    "π_θ, the method's anchor",
    "π_old, π_b",
    "π_θ, π_b",
)
_HERE, _CALLS = (LOSS, LOG), (LOSS, CALLED)
_GIVEN = "tokens with a log-probability of the sampler"

GATE = Group(
    "What the gate did",
    "The method's anchor is π_old, or π_b where it says so. Buckets have fixed edges, so that sums "
    "add up over micro-batches and ranks; a bucket without a token is left out.",
    (
        Metric("gated", "tokens whose gradient was cut", "share", _ALL, _ANCHOR),
        Metric(
            "gated/QUADRANT",
            "the same by sign of the advantage and side of ratio 1: the four add up to `gated`, "
            "but for tokens at ratio 1",
            "share", _ALL, _ANCHOR,
        ),
        Metric(
            "gated/p_old_LOW_HIGH", "tokens cut among those of an old probability in that range",
            "share", _KIND, _ANCHOR, _HERE,
        ),
        Metric(
            "gated/position_N", "tokens cut in the N-th quarter of their completion",
            "share", _KIND, _ANCHOR, _HERE,
        ),
        Metric(
            "gated/entropy_LOW_HIGH", "tokens cut where the policy's entropy is in that range, "
            "nats", "share", _KIND, _ANCHOR, _HERE,
        ),
        Metric(
            "advantage_cut", "absolute advantage that was on cut tokens",
            "share", "sum of absolute advantages", _ANCHOR, _HERE,
        ),
        Metric(
            "agreement/precision", "cut tokens that `full_kl` would have cut at the same threshold "
            "(needs the exact KL: `exact_kl_every`)", "share", "cut tokens, outward", _MOVED, _HERE,
        ),
        Metric(
            "agreement/recall", "of the tokens that `full_kl` would have cut, those that were",
            "share", "tokens `full_kl` would cut", _MOVED, _HERE,
        ),
        Metric("threshold/NAME", "a threshold that adapts or differs by token", "its own", _ALL),
        Metric(
            "threshold/NAME/at_limit", "tokens whose threshold is at the `low` or `high` of its "
            "controller; at 1, it cannot hold its target", "share", _ALL,
        ),
        Metric("penalty", "price of the `penalty` methods", "reward", _ALL, _ANCHOR),
    ),
    "trustclip/",
)  # fmt: skip

DISTANCE = Group(
    "How far the policy moved",
    "",
    (
        Metric("ratio", "mean ratio; 1 in expectation", "ratio", _ALL, _MOVED),
        Metric("ratio_qN", "quantile of the ratio: 1, 50 or 99 %", "ratio", _ALL, _MOVED, (LOG,)),
        Metric("k1", "estimate of KL(π_old‖π_θ), of either sign", "nats", _ALL, _MOVED),
        Metric("k2", "half the squared log-ratio", "nats", _ALL, _MOVED),
        Metric("k3", "estimate of KL(π_old‖π_θ), never negative", "nats", _ALL, _MOVED),
        Metric("kl_old_new", "exact KL(π_old‖π_θ), where computed", "nats", _ALL, _MOVED),
        Metric("kl_new_old", "exact KL(π_θ‖π_old), where computed", "nats", _ALL, _MOVED),
        Metric(
            "off_policy", "tokens whose log-ratio is beyond rounding: those that can be cut",
            "share", _ALL, _MOVED,
        ),
        Metric(
            "ess", "effective sample size over the number of tokens, (Σw)² / (N Σw²)",
            "share", _ALL, _MOVED, (LOG,),
        ),
        Metric("ratio_squared", "what `ess` is made from", "ratio²", _ALL, _MOVED, _CALLS),
        Metric("k3/lag_N", "k3 of tokens sampled N updates ago", "nats", _KIND, _MOVED, _HERE),
    ),
    "trustclip/",
)  # fmt: skip

TOKENS = Group(
    "Tokens and entropy",
    "",
    (
        Metric("entropy", "entropy of the policy", "nats", _ALL),
        Metric("tokens", "tokens measured", "tokens", "a log line", places=(LOG,)),
        Metric(
            "tokens/p_old_LOW_HIGH", "of those, tokens of an old probability in that range",
            "tokens", "a log line", places=(LOG,),
        ),
        Metric(
            "tokens/entropy_LOW_HIGH", "of those, tokens where the policy's entropy is in that "
            "range, nats", "tokens", "a log line", places=(LOG,),
        ),
        Metric(
            "entropy_slope/kept", "change of entropy per unit of step size, to first order, that "
            "kept tokens cause: minus the covariance of Theorem 5.2", "nats", _ALL, _MOVED,
        ),
        Metric(
            "entropy_slope/cut", "the same that cut tokens would have caused", "nats", _ALL, _MOVED
        ),
        Metric("zero_advantage", "tokens without an advantage", "share", _ALL),
        Metric(
            "nonfinite", "tokens that hold a NaN or an infinity", "share", "all unmasked tokens"
        ),
    ),
    "trustclip/",
)  # fmt: skip

SAMPLER = Group(
    "The sampler",
    "Where it gives log-probabilities; read [the sampler](../sampler.md). Names with `current/` "
    "are the same between the current policy and the sampler.",
    (
        *(
            Metric(f"sampler/{inside}{name}", what, unit, _GIVEN, between)
            for inside, between in (("", _SAMPLER), ("current/", _BOTH))
            for name, what, unit in (
                ("k1", "estimate of KL(π_b‖the other), of either sign", "nats"),
                ("k3", "the same, never negative", "nats"),
                ("chi2", "χ² of the two: variance of the ratio", "ratio²"),
                ("abs", "absolute log-ratio", "nats"),
                ("identical_share", "tokens equal to the bit", "share"),
            )
        ),
        *(
            Metric(f"sampler/{inside}{name}", what, unit, "whole completions", between, places)
            for inside, between in (("", _SAMPLER), ("current/", _BOTH))
            for name, what, unit, places in (
                ("sequence_ratio", "ratio of a whole completion", "ratio", EVERYWHERE),
                ("sequence_ratio_squared", "what `sequence_ess` is made from", "ratio²", _CALLS),
                (
                    "sequence_ess", "effective sample size over the number of completions",
                    "share", (LOG,),
                ),
            )
        ),
        Metric(
            "sampler/log_ratio_qN", "quantile of log(π_old/π_b): 0.1, 1, 50, 99 or 99.9 %",
            "nats", _GIVEN, _SAMPLER, (LOG,),
        ),
        Metric("sampler/missing", "tokens without a log-probability of the sampler", "share", _ALL),
        Metric(
            "sampler/gated_old", "tokens that the gate would cut if measured from π_old",
            "share", _GIVEN, _MOVED,
        ),
        Metric(
            "sampler/gated_rollout", "the same measured from π_b: what is larger here is the "
            "sampler's doing", "share", _GIVEN, _BOTH,
        ),
        *(
            Metric(
                f"sampler/{name}/lag_N", f"`sampler/{name}` of tokens sampled N updates ago",
                "nats", _KIND, between, _HERE,
            )
            for name, between in (("k3", _SAMPLER), ("abs", _SAMPLER), ("current/k3", _BOTH))
        ),
    ),
    "trustclip/",
)  # fmt: skip

_NEXT = "tokens with candidates"
DRIFT = Group(
    "Drift and signal",
    "Where the batch has `candidates`: what the update does on average over the sampler's tokens, "
    "which no reward is in, and the rest. Of `centered`, what it took away.",
    (
        Metric("drift/size", "squared drift of a token, in the logits", "reward²", _NEXT, _BOTH,
               _HERE),
        Metric("drift/signal", "squared gradient of a token without its drift, in the logits",
               "reward²", _NEXT, _BOTH, _HERE),
        Metric("drift/share", "drift's part of both squares", "share", "both squares", _BOTH,
               _HERE),
        Metric("drift/pull", "what the drift takes from KL(π_b‖π_θ) for a unit step of the natural "
               "gradient: positive is towards the sampler", "nats", _NEXT, _BOTH, _HERE),
        Metric("drift/pull_positive", "the same per unit of advantage, of tokens with A > 0",
               "nats", "their advantages", _BOTH, _HERE),
        Metric("drift/pull_negative", "the same, of tokens with A < 0",
               "nats", "their absolute advantages", _BOTH, _HERE),
        Metric("drift/covered", "the sampler's probability of the candidates", "share", _NEXT,
               "π_b", _HERE),
    ),
    "trustclip/",
)  # fmt: skip

_SHADOW, _SHARES = "π_θ, the shadow's anchor", (LOG, CALLED)
SHADOWS = Group(
    "Shadows",
    "What methods that only watch would have done with the same tokens: [shadows](../shadow.md). "
    "METHOD is the shadow as it was given.",
    (
        Metric("shadow/METHOD/gated", "tokens it would have cut", "share", _ALL, _SHADOW, _SHARES),
        Metric(
            "shadow/METHOD/drift/NAME", "its drift, where the batch has candidates: `share`, "
            "`pull`, `pull_positive` or `pull_negative` as above", "as above", _NEXT, _BOTH,
            _SHARES,
        ),
        Metric(
            "shadow/METHOD/gated/QUADRANT", "the same by sign and side",
            "share", _ALL, _SHADOW, _SHARES,
        ),
        Metric(
            "shadow/METHOD/gated/p_old_LOW_HIGH", "the same among tokens of that old probability",
            "share", _KIND, _SHADOW, (LOG,),
        ),
        Metric(
            "shadow/METHOD/both", "tokens that it and the acting method cut",
            "share", _ALL, _SHADOW, _SHARES,
        ),
        Metric(
            "shadow/METHOD/precision", "of what it would have cut, what the acting method cut",
            "share", "tokens it would cut", _SHADOW, (LOG,),
        ),
        Metric(
            "shadow/METHOD/recall", "of what the acting method cut, what it would have cut",
            "share", "tokens cut", _SHADOW, (LOG,),
        ),
        Metric(
            "shadow/METHOD/jaccard", "both over either", "share", "tokens that either cut",
            _SHADOW, (LOG,),
        ),
        Metric(
            "shadow/METHOD/cosine", "between the two updates as vectors of coefficients",
            "cosine", "sums over tokens", _SHADOW, (LOG,),
        ),
        Metric(
            "shadow/METHOD/both/OTHER", "tokens that it and another shadow would have cut",
            "share", _ALL, _SHADOW, _SHARES,
        ),
        Metric(
            "shadow/METHOD/cosine/OTHER", "between the updates of the two",
            "cosine", "sums over tokens", _SHADOW, (LOG,),
        ),
    ),
    "trustclip/",
)  # fmt: skip


def _logged(name: str, what: str, unit: str, over: str, between: str = "") -> Metric:
    """A metric of a row of ``metrics.jsonl`` alone."""
    return Metric(name, what, unit, over, between, ())


#: Means over what TRL counts: a log line is the mean of its micro-batches' means.
_BATCHES = "micro-batches of a log line, then ranks"
TRAINER = Group(
    "Of our trainer alone",
    "",
    (
        _logged(
            "sampling_entropy", "entropy of the policy that sampled: the mean of -log π of what it "
            "sampled, an estimate without bias; in the first row of each generation",
            "nats", "tokens of all completions of a generation",
        ),
        _logged(
            "sampling_entropy_error", "its standard error, from the differences between problems",
            "nats", "the same",
        ),
        _logged(
            "skipped", "completions that were not scored, because they cannot move the policy",
            "share", _BATCHES,
        ),
        _logged(
            "head_dropped", "largest share of the output head's columns left out (`head_skip`)",
            "share", _BATCHES + " (maximum)",
        ),
        _logged(
            "brake", "factor on the learning rate by the sampler's effective sample size (`brake`)",
            "factor", "updates of a log line",
        ),
    ),
    "trustclip/",
)  # fmt: skip

_OF_COMPLETIONS, _OF_GROUPS = "completions of a generation", "groups of a generation"
TRL = Group(
    "Of TRL and Transformers",
    "In every row of the stage `rl`, as they log them: a log line is the mean over its "
    "micro-batches, and TRL's tokens include those of completions that cannot move the policy. "
    "Between brackets what trustclip changes. With `eval_` before them in TRL's own evaluations.",
    (
        _logged("loss", "value of the loss; near 0 by construction", "-", "updates"),
        _logged("grad_norm", "norm of the gradient before clipping", "-", "updates"),
        _logged("learning_rate", "of the next update", "-", "last update"),
        _logged("epoch", "passes over the problems", "-", "so far"),
        _logged("num_tokens", "tokens of prompts and completions", "tokens", "so far"),
        _logged("step_time", "duration of an update", "seconds", "updates"),
        _logged("reward", "sum of the weighted rewards", "reward", _OF_COMPLETIONS),
        _logged("reward_std", "its standard deviation", "reward", _OF_COMPLETIONS),
        _logged(
            "frac_reward_zero_std", "groups whose rewards are all equal: no gradient",
            "share", _OF_GROUPS,
        ),
        _logged("rewards/NAME/mean", "a reward function alone", "reward", _OF_COMPLETIONS),
        _logged("rewards/NAME/std", "its deviation", "reward", _OF_COMPLETIONS),
        _logged(
            "reward_noise", "outcomes inverted (`reward_noise`)",
            "share", _OF_COMPLETIONS,
        ),
        *(
            _logged(f"completions/{name}_length", what, "tokens", _OF_COMPLETIONS)
            for name, what in (
                ("mean", "length"),
                ("min", "shortest"),
                ("max", "longest"),
                ("mean_terminated", "length of those that end by themselves"),
                ("min_terminated", "shortest of these"),
                ("max_terminated", "longest of these"),
            )
        ),
        _logged(
            "completions/clipped_ratio", "completions cut off at the longest length",
            "share", _OF_COMPLETIONS,
        ),
        _logged("entropy", "entropy of the policy", "nats", "tokens"),
        _logged("kl", "estimate of KL(π_θ‖reference), if `beta` is not 0", "nats", "tokens"),
        *(
            _logged(f"clip_ratio/{name}", f"{what} [the method's]", "share", over, _ANCHOR)
            for name, what, over in (
                ("low_mean", "cut tokens below ratio 1", "tokens"),
                ("high_mean", "cut tokens above ratio 1", "tokens"),
                ("region_mean", "cut tokens", "tokens"),
                ("low_min", "the smallest share of a completion", "completions"),
                ("high_max", "the largest", "completions"),
            )
        ),
        *(
            _logged(f"sampling/{name}", what, unit, "tokens", _SAMPLER)
            for name, what, unit in (
                ("sampling_logp_difference/mean", "absolute log-ratio (vLLM)", "nats"),
                ("sampling_logp_difference/max", "largest", "nats"),
                ("importance_sampling_ratio/min", "smallest weight of TRL's correction", "ratio"),
                ("importance_sampling_ratio/mean", "mean weight", "ratio"),
                ("importance_sampling_ratio/max", "largest weight", "ratio"),
            )
        ),
        _logged("tools/call_frequency", "calls of tools", "calls", _OF_COMPLETIONS),
        _logged("tools/failure_frequency", "calls that failed", "share", "calls"),
        _logged("entropy_coef", "weight of the entropy bonus", "-", "last update"),
        _logged("policy_loss", "loss without the bonus", "-", "updates"),
        _logged("aux_loss", "balance of experts", "-", "updates"),
    ),
)  # fmt: skip

FINE_TUNING = Group(
    "Of fine-tuning",
    "Rows of the stage `sft`: TRL's `loss`, `entropy`, `grad_norm`, `learning_rate`, `epoch`, "
    "`num_tokens` as above, and:",
    (
        _logged(
            "mean_token_accuracy", "tokens that the model would have chosen", "share",
            "tokens of solutions",
        ),
    ),
)  # fmt: skip

_BOUND = "95 % interval over problems"
EVALUATION = Group(
    "Of evaluations",
    "Rows of the stage `eval`, one for each `task`, and `average` over several: "
    "[evaluate](../evaluate.md).",
    (
        _logged("mean@K", "right answers, of K to each problem", "share", "problems"),
        _logged("pass@K", "problems with a right answer among K", "share", "problems"),
        *(
            _logged(f"{name}@K/{end}", f"its {end} bound", "share", _BOUND)
            for name in ("mean", "pass")
            for end in ("low", "high")
        ),
        _logged("problems", "number of problems", "problems", "-"),
        _logged("truncated", "answers cut off at the longest length", "share", "answers"),
        _logged("no_answer", "answers in which none was found", "share", "answers"),
        _logged("timeout", "answers that the verifier gave up on", "share", "answers"),
        _logged("length", "length of an answer", "tokens", "answers"),
    ),
)  # fmt: skip

GROUPS = (
    GATE, DISTANCE, TOKENS, SAMPLER, DRIFT, SHADOWS, TRAINER, TRL, FINE_TUNING, EVALUATION,
)  # fmt: skip


def found(name: str) -> Iterator[tuple[Group, Metric]]:
    """The descriptions that a name of a log has, with the prefix of its group.

    Example:
      >>> [metric.unit for _, metric in found("trustclip/k3")]
      ['nats']
    """
    for group in GROUPS:
        bare = name.removeprefix("eval_").removeprefix("actor/")
        if bare.startswith(group.prefix):
            for metric in group.metrics:
                if metric.matches(bare.removeprefix(group.prefix)):
                    yield group, metric
