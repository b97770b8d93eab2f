"""What the head should return, in float64 from whole logits."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.divergences import k3


class Reference(NamedTuple):
    """Results in float64; rows that are skipped are 0. Shapes as in `trustclip.head.Scores`."""

    logp: Tensor
    entropy: Tensor
    log_partition: Tensor
    mean: Tensor
    kl: dict[str, Tensor]
    logp_all: Tensor
    logp_all_old: Tensor


def reference(inputs: Any) -> Reference:
    """Of a `trustclip_lab.bench.gpu.correctness.Inputs`."""
    weight = inputs.weight.double()
    logp, logp_old = (_logp(h, weight, inputs) for h in (inputs.hidden, inputs.hidden_old))
    active = (inputs.ids >= 0).double()
    p = logp.exp()
    token_logp = logp.gather(1, inputs.ids.clamp(min=0)[:, None]).squeeze(1)
    z = inputs.hidden.double() @ weight.T / inputs.temperature
    if inputs.bias is not None:
        z += inputs.bias.double() / inputs.temperature
    return Reference(
        token_logp * active,
        torch.special.entr(p).sum(dim=1) * active,
        z.logsumexp(dim=1) * active,
        p @ weight * active[:, None],
        {"old_new": _kl(logp_old, logp), "new_old": _kl(logp, logp_old)},
        logp,
        logp_old,
    )


def gradients(inputs: Any, of: Reference, grad_entropy: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of hidden states and weight: of sum g log pi(y) + h H, see `head.softmax.fold_gradient`."""
    active = (inputs.ids >= 0).double()
    p, g = of.logp_all.exp(), (inputs.grad_logp.double() * active)[:, None]
    slope = -g * p  # [tokens, vocabulary]
    slope.scatter_add_(1, inputs.ids.clamp(min=0)[:, None], g)
    if grad_entropy is not None:
        h = (grad_entropy.double() * active)[:, None]
        entropy = torch.special.entr(p).sum(dim=1, keepdim=True)
        inside = of.logp_all.nan_to_num(neginf=0.0) + entropy
        slope -= h * p * inside
    slope /= inputs.temperature
    return slope @ inputs.weight.double(), slope.T @ inputs.hidden.double()


def _logp(hidden: Tensor, weight: Tensor, inputs: Any) -> Tensor:
    z = hidden.double() @ weight.T  # [tokens, vocabulary]
    if inputs.bias is not None:
        z += inputs.bias.double()
    return (z / inputs.temperature).log_softmax(dim=1)


def _kl(a: Tensor, b: Tensor) -> Tensor:
    gap = torch.where(a.isfinite(), b - a, 0.0)
    return (a.exp() * k3(gap)).sum(dim=1)
