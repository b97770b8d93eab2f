"""Gradient weights of every method: the cost of a constraint per token, and of an update.

python lab/benchmarks/method_cost.py --help
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from printed import measured

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
        Table(
            f"Gradient weights of {options.sequences} × {options.length} tokens",
            ("method", "CPU µs a token", "× clip", "% of an update"),
            [
                (name, micro(duration, options.length), duration / seconds["clip"], share(duration))
                for name, duration in sorted(seconds.items(), key=lambda item: item[1])
            ],
            [f"{options.repeats} repetitions. {NOTE}"],
        )
    ]


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
