"""Other projects' loss heads, each in the way its documentation says."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trustclip_lab.bench.variants import Problem


def liger(problem: Problem) -> Callable[[], Tensor]:
    """Liger's chunked log-probabilities with entropy, which verl takes too."""
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import (  # type: ignore[import-not-found]
        LigerFusedLinearScaledCrossEntropyFunction as Function,
    )

    def call() -> Tensor:
        output = Function.apply(
            problem.hidden, problem.weight, problem.ids, 1.0, -100, 1, problem.entropy
        )
        nll = output[0] if isinstance(output, tuple) else output
        return problem.backward(-nll)

    return call


def cut_cross_entropy(problem: Problem) -> Callable[[], Tensor]:
    """Apple's cut cross-entropy, with its filter off: log-probabilities without entropy."""
    from cut_cross_entropy import (  # type: ignore[import-not-found]
        linear_cross_entropy,
    )

    def call() -> Tensor:
        nll = linear_cross_entropy(
            problem.hidden, problem.weight, problem.ids, reduction="none", filter_eps=None
        )
        return problem.backward(-nll)

    return call


def quack(problem: Problem) -> Callable[[], Tensor]:
    """QuACK's chunked cross-entropy: a mean, so with equal coefficients and without entropy."""
    from quack.linear_cross_entropy import (  # type: ignore[import-not-found]
        chunked_linear_cross_entropy,
    )

    def call() -> Tensor:
        problem.hidden.grad = problem.weight.grad = None
        chunked_linear_cross_entropy(problem.hidden, problem.weight, problem.ids).backward()
        grad, problem.hidden.grad, problem.weight.grad = problem.hidden.grad, None, None
        assert grad is not None
        return grad

    return call


def compiled(problem: Problem) -> Callable[[], Tensor]:
    """Whole logits, their losses compiled by PyTorch."""
    function: Any = torch.compile(_logprobs)

    def call() -> Tensor:
        return problem.backward(function(problem.hidden, problem.weight, problem.ids)[0])

    return call


def _logprobs(hidden: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    logp = (hidden @ weight.T).float().log_softmax(dim=1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(dim=1)
    return logp.gather(1, ids[:, None]).squeeze(1), entropy
