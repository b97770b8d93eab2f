"""Gradient weights of every method: the cost of a constraint per batch."""

from dataclasses import dataclass
from typing import Any

from trustclip.bench.measure import in_turn
from trustclip.bench.table import Table


@dataclass(frozen=True)
class MethodOptions:
    """Options of ``trustclip bench methods``."""

    sequences: int = 16
    """Sequences of a batch."""
    length: int = 1024
    """Tokens of a sequence."""
    repeats: int = 10
    """Repetitions; the median is reported."""

    def __post_init__(self) -> None:
        for name in ("sequences", "length", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}.")


def run(options: MethodOptions) -> list[Table]:
    """The table of ``trustclip bench methods``."""
    import trustclip as tc

    batch = _batch(options.sequences, options.length)
    methods = {name: tc.method(name) for name in tc.methods()}
    calls = {name: lambda m=m: tc.coefficient(m, batch) for name, m in methods.items()}
    seconds = in_turn(calls, options.repeats)
    return [
        Table(
            f"Gradient weights of {options.sequences} × {options.length} tokens",
            ("method", "CPU ms", "× clip"),
            [
                (name, 1e3 * taken, taken / seconds["clip"])
                for name, taken in sorted(seconds.items(), key=lambda item: item[1])
            ],
            [f"Median of {options.repeats}, alternating; float32; value and gradient."],
        )
    ]


def _batch(sequences: int, length: int) -> Any:
    """Tokens one update away from their old policy, with every field that a method may need."""
    import torch

    import trustclip as tc

    g = torch.Generator().manual_seed(0)
    shape = (sequences, length)
    old = torch.nn.functional.logsigmoid(4 * torch.randn(shape, generator=g))
    drift = 0.1 * torch.randn(shape, generator=g)
    small = 0.02 * torch.rand(shape, generator=g)
    return tc.TokenBatch(
        (old + drift).clamp(max=0),
        old,
        torch.randn(sequences, 1, generator=g).expand(shape).contiguous(),
        torch.ones(shape, dtype=torch.bool),
        entropy=torch.rand(shape, generator=g),
        entropy_old=torch.rand(shape, generator=g),
        logp_rollout=old + 0.01 * torch.randn(shape, generator=g),
        groups=torch.arange(sequences)[:, None].expand(shape) // 8,
        keys=torch.arange(sequences * length).view(shape),
        kl_old_new=small,
        kl_new_old=small,
        top_k_kl=small,
        top_k_tv=small,
    )
