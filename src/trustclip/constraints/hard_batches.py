"""Batches made to be hard for a loss; see `trustclip.conform`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trustclip.constraints import probes
from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch


class Case(NamedTuple):
    """One hard batch.

    Args:
      name: what is hard about it.
      batch: its tokens.
      given: the same fields as a trainer has them, with numbers where masked, too.
      dtype: precision in which the loss gets the log-probabilities.
      parts: into how many batches its sequences are divided, as over ranks.
      packed: where the sequences hold tokens, if they stand in one row without padding; a bool
        [batch, time].
    """

    name: str
    batch: TokenBatch
    given: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    parts: int = 1
    packed: Tensor | None = None


def cases(method: Method) -> list[Case]:
    """The hard batches for a method, with every field that a loss may ask for.

    Example:
      >>> import trustclip as tc
      >>> [case.name for case in cases(tc.method("clip"))][:4]
      ['padding at the end', 'padding at the front', 'holes', 'ratio 1']
    """
    random = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    rows, columns = 8, 12
    place, row = torch.arange(columns), torch.arange(rows)[:, None]
    end = place < torch.tensor([12, 9, 5, 12, 7, 3, 11, 8])[:, None]
    holes = end.clone()
    holes[0, 3:5] = holes[3, 0] = holes[6, 10] = False
    # From 0.02 to 2.6 nats: some tokens are within any threshold.
    x = 0.02 * 2.0**row * (0.6 * noise(rows, 1).sign() + 0.5 * noise(rows, columns))
    old = -0.02 - 1.5 * noise(rows, columns).abs()
    alike = noise(rows, 1).expand(rows, columns)
    far = torch.linspace(-12.0, 12.0, rows * columns, dtype=torch.float64).view(rows, columns)
    rare = math.log(1e-11) + 0.3 * noise(rows, columns)
    # Batches of two shapes tell a number of sequences or places from a factor.
    small = slice(None, rows - 2), slice(None, columns - 5)
    tokens = {
        "padding at the end": (x, old, alike, end),
        "padding at the front": (x, old, alike, end.flip(1)),
        "holes": (x, old, alike, holes),
        "ratio 1": (0 * x, old, alike, end),
        "rare tokens": (x, rare, alike, end),
        "far ratios": (far, old - 12.0, alike, torch.ones_like(end)),
        "one token each": tuple(n[small] for n in (x, old, alike, (place == 4).expand(rows, -1))),
        "an empty sequence": tuple(n[small] for n in (x, old, alike, end & (row != 2))),
        "no advantage": (x, old, alike * (row % 2), end),
        "advantages by token": (x, old, noise(rows, columns), end),
    }
    if (beside := _beside_bounds(method, old)) is not None:
        tokens["beside the bounds"] = (beside, old, (-1.0) ** row.expand_as(old), end)
    half = torch.bfloat16
    return [
        *(_case(name, method, *given) for name, given in tokens.items()),
        _case("bfloat16", method, x, old.clamp(min=-4), alike, end, half),
        _without_sampler(_case("no sampler", method, x, old, alike, end)),
        _case("packed rows", method, x, old, alike, holes)._replace(packed=end),
        _case("two ranks", method, x, old, alike, end)._replace(parts=2),
        _case("three ranks", method, x, old, alike, end)._replace(parts=3),  # 3, 3 and 2 sequences
    ]


def _beside_bounds(method: Method, logp_old: Tensor) -> Tensor | None:
    """Log-ratios a little within and beyond each bound of a gate; None where it states no bounds.

    They are the same along a sequence, so that a gate of tokens, of prefixes and of sequences each
    stand beside their bound.
    """
    try:
        low, high = method.log_interval(logp_old.exp())
    except ValueError:
        return None
    row = torch.arange(len(logp_old))[:, None]
    upper, beyond = row >= 4, row % 4 >= 2
    bound = torch.where(upper, torch.as_tensor(high), torch.as_tensor(low)).expand_as(logp_old)
    bound = bound.double().nan_to_num(posinf=1.0, neginf=-1.0)
    # Tokens within 1e-5 nats of an edge are not compared.
    apart = (0.05 * bound.abs()).clamp(min=5e-5)
    return torch.where(upper == beyond, bound + apart, bound - apart)


def _without_sampler(case: Case) -> Case:
    """The same tokens, of which no log-probability of the sampler is known."""
    unknown = torch.full_like(case.batch.logp_old, torch.nan)
    batch = replace(case.batch, logp_rollout=unknown)
    return case._replace(batch=batch, given={**case.given, "logp_rollout": None})


def _case(
    name: str,
    method: Method,
    log_ratio: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """A batch of numbers that the precision holds exactly, in float64."""
    moved = bool(log_ratio.any())
    old, a = logp_old.to(dtype).double(), advantages.float().double()
    logp = (old + log_ratio).to(dtype).double()
    apart = 0.3 * torch.sin(torch.arange(old.numel()).view_as(old)) * moved
    everywhere = probes.batch_for(method, logp, old, a, torch.ones_like(mask))
    given = {n: getattr(everywhere, n) for n in ("logp", "logp_old", "advantages")}
    given |= {n: getattr(everywhere, n) for n in method.requires}
    given["mask"], given["logp_rollout"] = mask, (old + apart).to(dtype).double()
    batch = TokenBatch(**given, density=True)
    if method.statistics_over == "generation":
        batch = replace(batch, statistics=method.statistics(batch))
    return Case(name, batch, given, dtype)
