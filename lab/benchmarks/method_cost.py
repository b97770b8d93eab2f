"""Losses and gradient weights of every method: the cost per token, and of an update.

python lab/benchmarks/method_cost.py --help
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import hooks
from printed import measured
from torch import Tensor

from trustclip.constraints.batch import TokenBatch
from trustclip_lab.bench.gpu.edges import batch_of
from trustclip_lab.bench.measure import in_turn
from trustclip_lab.bench.table import Table


@dataclass(frozen=True)
class MethodOptions:
    """What is measured."""

    sequences: int = 16
    """Sequences of a batch."""
    length: int = 1024
    """Tokens of a sequence."""
    repeats: int = 10
    """Repetitions; the median is reported."""
    only: Literal["losses", "methods"] | None = None
    """Losses with the hooks of the engines that are installed, or gradient weights; else both."""

    def __post_init__(self) -> None:
        for name in ("sequences", "length", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}.")


#: Tokens of a sequence in the update that a method's cost is compared with: the tiny recipe's.
STEP_LENGTH = 64
NOTE = (
    "Median, alternating; value and gradient in float32. The update: forward and backward of the "
    "smallest model here (0.4 M parameters), without sampling; a larger model makes the share "
    "smaller in proportion."
)


def run(options: MethodOptions) -> list[Table]:
    """The table."""
    import trustclip as tc

    batch = batch_of(options.sequences, options.length)
    tables = [] if options.only == "methods" else [_losses(batch, options)]
    if options.only == "losses":
        return tables
    methods = {name: tc.method(name) for name in tc.methods()}
    calls = {name: lambda m=m: tc.coefficient(m, batch) for name, m in methods.items()}
    update = _update(options.sequences)
    seconds = in_turn({**calls, **({"": update} if update else {})}, options.repeats)
    step = seconds.pop("", None)  # an update has its own number of tokens

    def micro(duration: float, length: int) -> float:
        return 1e6 * duration / (options.sequences * length)

    def share(duration: float) -> float | None:
        if step is None:
            return None
        return 100 * micro(duration, options.length) / micro(step, STEP_LENGTH)

    return [
        *tables,
        Table(
            f"Gradient weights of {options.sequences} × {options.length} tokens",
            ("method", "CPU µs a token", "× clip", "% of an update"),
            [
                (name, micro(duration, options.length), duration / seconds["clip"], share(duration))
                for name, duration in sorted(seconds.items(), key=lambda item: item[1])
            ],
            [f"{options.repeats} repetitions. {NOTE}"],
        ),
    ]


def _losses(batch: TokenBatch, options: MethodOptions) -> Table:
    """A loss and its gradient, beside a clipped loss that is written by hand."""
    import trustclip as tc
    from trustclip.engines.token_loss import means, per_token_loss

    old, advantages, mask, atr = batch.logp_old, batch.advantages, batch.mask, tc.method("atr")

    def made(logp: Tensor, **fields: Any) -> TokenBatch:
        return tc.TokenBatch(logp, old, advantages, mask, **fields)

    def by_hand(logp: Tensor) -> Tensor:
        ratio = (logp - old).exp()
        objective = (ratio * advantages).minimum(ratio.clamp(0.8, 1.2) * advantages)
        return -(objective * mask).sum() / mask.sum()

    def metrics_read(logp: Tensor) -> Tensor:
        loss = tc.policy_loss(atr, made(logp))
        assert loss.metrics
        return loss.value

    def hook(logp: Tensor, **fields: Tensor) -> Tensor:
        own = made(logp, **fields)
        per_token, surrogate = per_token_loss(atr, own)
        means(own, surrogate, method=atr)
        return per_token.sum()

    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "clip, by hand": by_hand,
        "clip": lambda logp: tc.policy_loss("clip", made(logp)).value,
        "atr": lambda logp: tc.policy_loss(atr, made(logp)).value,
        "atr, metrics read": metrics_read,
        "atr in an engine's hook, without its metrics": (
            lambda logp: per_token_loss(atr, made(logp))[0].sum()
        ),
        "atr in an engine's hook": hook,
        "the same with entropies and a sampler": (
            lambda logp: hook(logp, entropy=-old, logp_rollout=old - 0.01)
        ),
    }
    for name, (own, ours) in hooks.installed(batch).items():
        losses |= {f"{name}, its own clip": own} if own else {}
        losses[f"{name}, the hook with atr"] = ours

    def call(loss: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        return lambda: loss(batch.logp.detach().clone().requires_grad_()).backward()

    seconds = in_turn({name: call(loss) for name, loss in losses.items()}, options.repeats)
    first = seconds["clip, by hand"]
    return Table(
        f"A loss and its gradient, {options.sequences} × {options.length} tokens",
        ("loss", "CPU ms", "× by hand"),
        [(name, 1000 * duration, duration / first) for name, duration in seconds.items()],
        [f"{options.repeats} repetitions; median, alternating."],
    )


def _update(sequences: int) -> Callable[[], None] | None:
    """Forward and backward of the tiny model; None without Transformers."""
    import torch

    if find_spec("transformers") is None:
        return None
    from trustclip.train.tiny import tiny_model

    model, tokenizer = tiny_model()
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(len(tokenizer), (sequences, STEP_LENGTH), generator=g)

    def update() -> None:
        logp = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        logp.gather(-1, ids[:, 1:, None]).mean().backward()
        model.zero_grad(set_to_none=True)

    return update


if __name__ == "__main__":
    measured(MethodOptions, run)
