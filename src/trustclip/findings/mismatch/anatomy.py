"""Where sampler and trainer differ: by probability, entropy, place, age of the sample, and side."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from trustclip.constraints.sampler import Pairs
from trustclip.findings.facts import PART
from trustclip.findings.mismatch.traces import in_tail, per_room
from trustclip.findings.rows import percent

#: Edges of the probabilities of a token.
_PROBABILITIES = (0.0, 0.1, 0.5, 0.9, 1.0)


def lines(pairs: Pairs) -> Iterator[tuple[str, str]]:
    """(the criterion that splits the tokens, mean absolute differences of each kind), nats.

    In brackets the trainer's own, between float32 and bfloat16, where that was measured. Kinds of
    fewer than `PART` tokens are left out.

    Example:
      >>> logp = torch.linspace(-4, -0.01, 400)
      >>> dict(lines(Pairs(logp, logp + 0.01 * logp)))["by probability"]
      'up to 0.1 0.032, to 0.5 0.015, to 0.9 0.004'
    """
    d = pairs.trainer.double() - pairs.sampler.double()
    size = d.abs()
    own = (pairs.floor or {}).get("precision")
    for label, kinds in _kinds(pairs).items():
        if text := ", ".join(_means(size, kinds, None if own is None else own.abs())):
            yield label, text
    up, down = d > 0, d < 0
    yield (
        "by side",
        f"the sampler finds {_percent(down)} of the tokens likelier, by "
        f"{d[down].abs().sum():.2g} nats in all, and {_percent(up)} less likely, by "
        f"{d[up].sum():.2g}",
    )
    tail = in_tail(size, per_room(size, pairs.trainer))
    weight = (d[tail].square().sum() / d.square().sum().clamp(min=1e-300)).item()
    far = f" by {size[tail].mean():.2g} nats on average," if tail.any() else ""
    yield (
        "in the tail",
        f"{_percent(tail)} of the tokens,{far} {percent(weight)} of the squared differences",
    )


def _kinds(pairs: Pairs) -> dict[str, Mapping[str, Tensor]]:
    p = pairs.trainer.exp()
    kinds: dict[str, Mapping[str, Tensor]] = {
        "by probability": {
            f"{'up to' if not low else 'to'} {high:g}": (p > low) & (p <= high)
            for low, high in pairwise(_PROBABILITIES)
        }
    }
    if pairs.entropy is not None:
        kinds["by entropy"] = _quarters(pairs.entropy.double(), "{:.2g}")
    if pairs.position is not None:
        kinds["by place"] = _quarters(pairs.position.double(), "{:.0f}")
    if pairs.lag is not None:
        ages = pairs.lag.unique().tolist()
        kinds["by age"] = {f"{age:.0f} updates": pairs.lag == age for age in ages}
    return kinds


def _quarters(values: Tensor, form: str) -> dict[str, Tensor]:
    at = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype, device=values.device)
    edges = [*values.quantile(at).unique().tolist(), values.max().item()]
    quarters, below = {}, torch.zeros_like(values, dtype=torch.bool)
    for edge in dict.fromkeys(edges):
        quarters[f"{'to' if quarters else 'up to'} {form.format(edge)}"] = (values <= edge) & ~below
        below = values <= edge
    return quarters


def _means(size: Tensor, kinds: Mapping[str, Tensor], own: Tensor | None) -> Iterator[str]:
    for label, mask in kinds.items():
        if mask.sum() < PART:
            continue
        text = f"{label} {size[mask].mean():.2g}"
        noise = None if own is None else own[mask & own.isfinite()]
        yield text if noise is None or not len(noise) else f"{text} ({noise.mean():.2g})"


def _percent(mask: Tensor) -> str:
    return percent(mask.double().mean().item())
