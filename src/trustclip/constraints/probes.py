"""Small batches with every field that a method may read: what `trustclip.check` tries it on."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.candidates import Candidates


def batch_for(
    method: Method, logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor
) -> TokenBatch:
    """A batch with exactly the optional fields that the method requires; made up, not random."""
    x = torch.where(mask, (logp - logp_old).detach(), 0.0)
    rows, columns = logp.shape
    places = torch.arange(x.numel()).view_as(x)
    entropy = 1.0 + 0.5 * torch.sin(places).to(x)
    optional = {
        "entropy": entropy,
        "entropy_old": entropy * (0.3 * torch.sin(5 * x)).exp(),  # the same where the policy is
        "kl_old_new": 0.4 * x**2,
        "kl_new_old": 0.6 * x**2,
        "top_k_kl": 0.3 * x**2,
        "top_k_tv": 0.4 * x.abs(),
        "logp_rollout": logp_old.detach() + torch.sin(places).to(x),
        "logp_ref": logp_old.detach() + torch.cos(places).to(x),
        "groups": (torch.arange(rows)[:, None] // 2).expand(rows, columns),
        "keys": places,
        "lag": (torch.arange(rows)[:, None] % 4).expand(rows, columns),
        "candidates": candidates_for(logp_old),
    }
    needed: dict[str, Any] = {name: optional[name] for name in method.requires}
    if Trait.NEEDS_KL_GRADIENT in method.traits:
        needed["kl_old_new"].requires_grad_()  # stands for a graph that leads to the logits
    # Made-up numbers: at a large ratio a log-probability may come out above 0.
    return TokenBatch(logp, logp_old, advantages, mask, density=True, **needed)


def candidates_for(logp_old: Tensor) -> Candidates:
    """Four likely tokens at each position, a little apart under the three policies."""
    places = torch.arange(4 * logp_old.numel()).view(*logp_old.shape, 4).to(logp_old)
    old = (torch.sin(places) - 2.5).to(logp_old)
    return Candidates(
        old + 0.3 * torch.sin(3 * places), old, old + 0.2 * torch.sin(7 * places), partial=True
    )


def changed(batch: TokenBatch, change: Callable[[Tensor], Tensor]) -> TokenBatch:
    """The batch with ``change`` made to every tensor it holds, and without statistics."""
    held = {f.name: getattr(batch, f.name) for f in fields(batch)}
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    after: dict[str, Any] = {name: change(value) for name, value in tensors.items()}
    if batch.candidates is not None:
        after["candidates"] = batch.candidates.map(
            lambda x: torch.stack([change(part) for part in x.unbind(dim=2)], dim=2)
        )
    return TokenBatch(**after, density=batch.density)


def on_policy(batch: TokenBatch) -> TokenBatch:
    """The batch while the new, the old, the sampling and the reference policy are one."""
    old = batch.logp_old
    same = [n for n in ("logp_rollout", "logp_ref") if getattr(batch, n) is not None]
    others: dict[str, Any] = dict.fromkeys(same, old)
    still = {n: torch.zeros_like(old) for n in _DISTANCES if getattr(batch, n) is not None}
    if batch.entropy_old is not None:
        still["entropy_old"] = batch.entropy if batch.entropy is not None else batch.entropy_old
    among = batch.candidates
    if among is not None:
        others["candidates"] = replace(among, logp=among.logp_old)
    return replace(batch, logp=old, **others, **still)


_DISTANCES = ("kl_old_new", "kl_new_old", "top_k_kl", "top_k_tv")


#: Tokens of each sequence of `ragged`.
_LENGTHS = (11, 9, 1, 11, 7, 3, 11, 0, 10, 5, 1, 11)


def ragged(method: Method, seed: int, left: bool, per_token: bool) -> TokenBatch:
    """Twelve sequences of up to eleven tokens, each further from ratio 1 than the one before it.

    So some of them are within any threshold and some beyond it, whatever it is measured over. One
    sequence is empty, some have a hole, some tokens have no advantage.

    Args:
      method: its required fields are filled in.
      seed: of the numbers.
      left: whether the padding comes first.
      per_token: whether the tokens of a sequence differ in their advantage.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, columns = len(_LENGTHS), max(_LENGTHS)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.arange(columns) < torch.tensor(_LENGTHS)[:, None]
    mask[0, 3] = mask[8, 1] = False
    mask = mask.flip(1) if left else mask
    size = 0.01 * 1.6 ** torch.arange(rows, dtype=torch.float64)[:, None]  # 0.01 to 1.8 nats
    old = -0.05 - noise(rows, columns).abs()
    x = size * (noise(rows, 1).sign() + 0.5 * noise(rows, columns))
    a = noise(rows, columns if per_token else 1).expand(rows, columns).clone()
    a[4] = 0.0
    if per_token:
        a[:, 2] = a[:, 8] = 0.0
    return batch_for(method, (old + x).clamp(max=-1e-3), old, a, mask)


def single(method: Method, log_ratio: Tensor, logp_old: Tensor, advantage: float) -> TokenBatch:
    """Sequences of one token each, where nothing but the token itself has moved.

    Args:
      method: its required fields are filled in.
      log_ratio: one for each token, nats. Shape [tokens].
      logp_old: the same, nats.
      advantage: of all tokens.
    """
    x, old = log_ratio[:, None], logp_old[:, None]
    a = torch.full_like(x, advantage)
    batch = batch_for(method, old + x, old, a, torch.ones_like(x, dtype=torch.bool))
    moved = {n: value for n in _DISTANCES if (value := getattr(batch, n)) is not None}
    still = on_policy(batch)
    if method.statistics_over == "generation":
        still = replace(still, statistics=method.statistics(still))
    return replace(still, logp=batch.logp, **moved)
