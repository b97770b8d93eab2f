"""TROLL's projection against what defines it: a constrained minimum over whole distributions."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

import trustclip as tc
from trustclip.constraints.candidates import Candidates
from trustclip.engines.limits import ENGINES, refusal

VOCABULARY, DELTA = 7, 0.05


def logits(seed: int, spread: float, rows: int = 6) -> tuple[Tensor, Tensor]:
    """New and old logits of a small vocabulary, in most rows far apart."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(rows, VOCABULARY, generator=generator, dtype=torch.float64)
    moved = torch.randn(rows, VOCABULARY, generator=generator, dtype=torch.float64)
    size = spread * torch.linspace(0.05, 1.5, rows, dtype=torch.float64)[:, None]
    return old + size * moved, old


def batch_of(new: Tensor, old: Tensor, sampled: Tensor, ids: Tensor | None = None) -> tc.TokenBatch:
    """One sequence; all tokens are candidates, or those of ``ids``."""
    logp, before = new.log_softmax(1), old.log_softmax(1)
    own, own_before = (x.gather(1, sampled[:, None])[:, 0][None] for x in (logp, before))
    shown = torch.arange(VOCABULARY).expand_as(new) if ids is None else ids
    among = [x.gather(1, shown)[None] for x in (logp, before, before)]
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0, -0.7, 0.0], dtype=torch.float64)[None]
    return tc.TokenBatch(
        own, own_before, advantages, torch.ones(1, len(new)) > 0,
        candidates=Candidates(*among, partial=ids is not None),
    )  # fmt: skip


def ratios(batch: tc.TokenBatch, delta: float = DELTA) -> Tensor:
    """What the method takes for the ratio of each token."""
    ones = dataclasses.replace(batch, advantages=torch.ones_like(batch.advantages))
    return tc.method("troll", delta=delta, alpha=0.0).surrogate(ones).objective[0].detach()


def kl(p: Any, q: Any) -> float:
    return float((p * (np.log(p) - np.log(q))).sum())


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_nearest_policy_within_the_bound(seed: int) -> None:
    """Every token's ratio makes a distribution; SLSQP, which knows no path, finds the same one."""
    new, old = logits(seed, 2.0)
    whole = torch.stack(
        [
            ratios(batch_of(new, old, torch.full((len(new),), v))) * old.softmax(1)[:, v]
            for v in range(VOCABULARY)
        ],
        dim=1,
    ).numpy()
    projected = 0
    for found, p, q in zip(whole, new.softmax(1).numpy(), old.softmax(1).numpy(), strict=True):
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert kl(found, q) <= DELTA * (1 + 1e-9)
        if kl(p, q) <= DELTA:
            np.testing.assert_allclose(found, p, rtol=1e-9)
            continue
        projected += 1
        assert kl(found, q) == pytest.approx(DELTA, rel=1e-9)
        best = optimize.minimize(
            lambda z, p=p: kl(np.exp(z) / np.exp(z).sum(), p),
            np.log(q),
            method="SLSQP",
            constraints={
                "type": "ineq",
                "fun": lambda z, q=q: DELTA - kl(np.exp(z) / np.exp(z).sum(), q),
            },
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert kl(found, p) <= best.fun + 1e-6
        np.testing.assert_allclose(found, np.exp(best.x) / np.exp(best.x).sum(), atol=2e-4)
    assert 0 < projected < len(new)


def stated(new: Tensor, old: Tensor, sampled: Tensor, alpha: float, delta: float) -> Tensor:
    """The objective from its definition: bisection over the source's multiplier, no derivatives."""
    p, q = new.log_softmax(1), old.log_softmax(1)

    def mixed(eta: Tensor) -> Tensor:
        return ((p + eta * q) / (1 + eta)).log_softmax(1)

    low, high = torch.zeros(len(new), 1).double(), torch.full((len(new), 1), 1e6).double()
    for _ in range(200):
        eta = 0.5 * (low + high)
        far = (mixed(eta).exp() * (mixed(eta) - q)).sum(1, keepdim=True) > delta
        low, high = torch.where(far, eta, low), torch.where(far, high, eta)
    outside = (p.exp() * (p - q)).sum(1, keepdim=True) > delta
    found = torch.where(outside, mixed(high), p)
    w = (found - q).gather(1, sampled[:, None]).exp()[:, 0]
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0, -0.7, 0.0], dtype=torch.float64)
    return w * advantages - alpha * (p.exp() * (p - stated.held(found))).sum(1)  # type: ignore[attr-defined]


def numerically(new: Tensor, old: Tensor, sampled: Tensor, alpha: float, delta: float) -> Tensor:
    """Central differences of `stated` in every logit, the projection of the price held fixed."""
    held: list[Tensor] = []
    stated.held = lambda found: held[0] if held else (held.append(found), found)[1]  # type: ignore[attr-defined]
    stated(new, old, sampled, alpha, delta)
    found, step = torch.zeros_like(new), 1e-5
    for v in range(VOCABULARY):
        by = torch.zeros_like(new)
        by[:, v] = step
        up, down = (stated(new + sign * by, old, sampled, alpha, delta) for sign in (1, -1))
        found[:, v] = (up - down) / (2 * step)
    return found


@pytest.mark.parametrize("alpha", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("delta", [DELTA, 1e-4])
def test_its_gradient_is_that_of_the_definition_in_every_logit(alpha: float, delta: float) -> None:
    new, old = logits(5, 2.0)
    sampled = torch.tensor([3, 1, 0, 6, 2, 4])
    leaf = new.clone().requires_grad_()
    batch = batch_of(leaf, old, sampled)
    tc.method("troll", delta=delta, alpha=alpha).surrogate(batch).objective.sum().backward()
    want = numerically(new, old, sampled, alpha, delta)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, want, rtol=1e-6, atol=1e-8)
    assert (leaf.grad[-1] != 0).any() == bool(alpha)  # its advantage is 0, its policy outside


def test_where_nothing_is_known_it_is_importance_sampling() -> None:
    new, old = logits(1, 2.0)
    batch = batch_of(new, old, torch.zeros(6, dtype=torch.int64))
    assert batch.candidates is not None
    none = dataclasses.replace(
        batch.candidates, logp_rollout=torch.full_like(batch.candidates.logp, -math.inf)
    )
    got = tc.method("troll").surrogate(dataclasses.replace(batch, candidates=none))
    assert got.kept.all()
    torch.testing.assert_close(got.objective, batch.log_ratio.exp() * batch.advantages)


def test_what_goes_around_it_is_refused() -> None:
    with pytest.raises(ValueError, match="'troll' moves tokens that were not sampled"):
        tc.method("tis", inner="troll")
    with pytest.raises(ValueError, match="nothing else goes around it"):
        tc.method("centered", inner="troll")
    assert tc.method("troll") + tc.penalty("k2", 0.1) is not None
    assert "passes none for some sequences" in (
        refusal(tc.method("troll"), ENGINES["prime-rl"]) or ""
    )
    for engine in ("verl", "SkyRL"):
        assert "passes none to a policy loss" in (
            refusal(tc.method("troll"), ENGINES[engine]) or ""
        )
