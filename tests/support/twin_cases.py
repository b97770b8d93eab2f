"""Every twin of every method, and random tokens on which it must have the method's gradient."""

import dataclasses
import typing

import engine_cases
import method_cases
import torch
from torch import Tensor

import trustclip as tc

#: Thresholds off the defaults, so that no number of a twin is right by being a default.
MORE = [
    ("clip", {"epsilon": 0.07, "level": "sequence"}),
    ("clip_higher", {"low": 0.03, "high": 0.11}),
    ("dual_clip", {"low": 0.1, "high": 0.15, "ceiling": 1.3}),
    ("abc_grpo", {"positive_low": 1.0, "positive_high": 0.3, "negative_high": 0.2}),
    ("kl1", {"delta": 0.2, "sign": "kl_new_old"}),
    ("f_divergence", {"divergence": "js", "delta": 0.01}),
    ("gspo", {"low": 0.02, "high": 0.03}),
    ("luspo", {"low": 0.02, "high": 0.03}),
    ("gmpo", {"log_low": 0.1, "log_high": 0.15}),
    ("cispo", {"high": 0.3}),
    ("soft_gate", {"temperature_positive": 2.0, "temperature_negative": 3.0}),
    ("vespo", {"k_positive": 1.5, "lambda_positive": 2.5, "k_negative": 2.5}),
    ("dppo", {"delta": 0.02, "ceiling": 1.4}),
    ("dppo", {"divergence": "binary_kl", "delta": 0.004}),
    ("opsm", {"inner": {"name": "clip", "epsilon": 0.6}, "delta": 0.15}),
    ("opsm", {"inner": "gspo", "delta": 0.02}),
    ("opsm", {"inner": "soft_gate", "delta": 0.05, "anchor": "rollout"}),
    ("tis", {"inner": {"name": "clip", "epsilon": 0.05}, "ceiling": 1.2}),
    ("tis", {"inner": {"name": "cispo"}, "ceiling": 1.5, "level": "sequence"}),
    ("icepop", {"inner": {"name": "clip", "epsilon": 0.05}, "floor": 0.8, "ceiling": 1.3}),
    ("vespo", {"anchor": "rollout", "k_negative": 2.5}),
    ("icepop", {"inner": "clip", "floor": None, "ceiling": 1.5, "level": "sequence"}),
]

METHODS = list(dict.fromkeys([*method_cases.ALL, *(tc.method(n, **a) for n, a in MORE)]))

Case = tuple[tc.Method, str]

#: Every method in every variant, with each trainer it has a twin in.
TWINS: list[Case] = [(method, trainer) for method in METHODS for trainer in method.twins]


def of_trainers(*trainers: str) -> list[Case]:
    return [case for case in TWINS if case[1] in trainers]


#: Twins whose weights TRL computes while it samples: whole runs prove these.
SAMPLED = [
    (method, trainer)
    for method, trainer in TWINS
    if trainer == "TRL" and "vllm_importance_sampling_mode" in method.twins[trainer]
]


def label(value: typing.Any) -> str:
    return value if isinstance(value, str) else method_cases.label(value)


def random_tokens(seed: int = 0) -> tc.TokenBatch:
    """Ragged sequences that have moved by 3e-4 to 2 nats a token, of one advantage each."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-3.5, 0.3, 400, dtype=torch.float64)[:, None]
    shape = (400, 24)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    drift = torch.randn(shape[0], 1, generator=generator, dtype=torch.float64)
    old = -0.05 - torch.rand(shape, generator=generator, dtype=torch.float64).exponential_(
        generator=generator
    )
    moved = spread * (noise + drift)
    advantages = torch.randn(shape[0], 1, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 25, (shape[0],), generator=generator)
    return tc.TokenBatch(
        (old + moved).clamp(max=-1e-3),
        old,
        advantages.expand(shape),
        torch.arange(24) < lengths[:, None],
        logp_rollout=old + 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64),
    )


def batch_for(method: tc.Method) -> tc.TokenBatch:
    batch = random_tokens()
    return batch if method.requires else dataclasses.replace(batch, logp_rollout=None)


def wanted(method: tc.Method, batch: tc.TokenBatch, loss_type: str) -> Tensor:
    """Gradient of the loss in the log-probabilities, as TRL's ``loss_type`` aggregates."""
    found = engine_cases.expected_gradient(method, batch, loss_type)
    assert found.any(), "the comparison would be empty"
    if tc.Trait.CUTS in method.traits:
        outside = batch.mask & (batch.advantages != 0) & (found == 0)
        assert outside.any(), "no token was cut"
    return found
