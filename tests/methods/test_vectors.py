"""Known values of the gradient coefficient, the gate and the loss, method by method."""

import math
from collections.abc import Sequence
from dataclasses import replace

import oracle
import pytest
import reference_values as known
import torch
from torch import Tensor

import trustclip as tc

DOUBLE = torch.float64


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=DOUBLE)


def batch_of(
    log_ratio: Sequence[float],
    advantages: Sequence[float],
    p_old: float = 0.5,
    kl_old_new: Tensor | None = None,
) -> tc.TokenBatch:
    old = torch.full((1, len(log_ratio)), math.log(p_old), dtype=DOUBLE)
    mask = torch.ones_like(old, dtype=torch.bool)
    return tc.TokenBatch(old + row(*log_ratio), old, row(*advantages), mask, kl_old_new=kl_old_new)


@pytest.mark.parametrize(
    ("spec", "defaults"),
    [
        ("clip", {"epsilon": 0.2}),
        ("clip_higher", {"low": 0.2, "high": 0.28}),
        ("dual_clip", {"low": 0.2, "high": 0.2, "ceiling": 3.0}),
        ("dynamic_clip", {"epsilon_low": 0.16, "epsilon_high": 0.20, "ceiling": 10.0}),
        ("clip_cov", {"low": 1.0, "high": 1.0, "share": 2e-4, "cov_low": 1.0, "cov_high": 5.0}),
        ("soft_gate", {"temperature_positive": 1.0, "temperature_negative": 1.05}),
        ("atr", {"delta": 0.07, "side": "outward", "level": "token"}),
        ("is_kl3", {"delta": 0.07, "form": "kl_new_old"}),
        ("kl1", {"delta": 0.07, "sign": "abs"}),
        ("kl2", {"delta": 0.07}),
        ("full_kl", {"delta": 0.07}),
        ("trgppo", {"delta": 0.05, "epsilon": 0.2}),
        ("trpo", {"delta": 0.01}),
    ],
)
def test_defaults_are_those_of_the_source(spec: str, defaults: dict[str, object]) -> None:
    assert defaults.items() <= tc.method(spec).to_dict().items()


# Clip-Cov --------------------------------------------------------------------------------------


def cov_batch(seed: int = 0, copies: int = 1) -> tc.TokenBatch:
    """The fixture's tokens, on policy; ``copies`` of them leave every mean as it is."""
    logp = row(*known.COV_LOGP).repeat(copies, 1)
    advantages = row(*known.COV_ADVANTAGES).repeat(copies, 1)
    keys = torch.randperm(logp.numel(), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(logp, dtype=torch.bool)
    return tc.TokenBatch(logp, logp.clone(), advantages, mask, keys=keys.view_as(logp))


def dropped(method: tc.Method, batch: tc.TokenBatch) -> set[int]:
    return set((~method.surrogate(batch).kept).flatten().nonzero().flatten().tolist())


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.9])
def test_clip_cov_drops_its_share_of_all_tokens(share: float) -> None:
    """Each candidate on its own: the released code draws a fixed number, the mean is the same."""
    batch = cov_batch(copies=20)
    method = tc.method("clip_cov", share=share)
    logp, advantages = batch.logp.flatten().numpy(), batch.advantages.flatten().numpy()
    tokens = oracle.Tokens(0 * logp, advantages, logp)
    candidates = oracle.clip_cov_candidates(method.to_dict(), tokens)
    assert len(candidates) == 60
    counts = []
    for seed in range(200):
        found = dropped(tc.method("clip_cov", share=share, seed=seed), batch)
        assert found <= candidates
        counts.append(len(found))
    chance = min(share * 120 / 60, 1.0)
    deviation = math.sqrt(60 * chance * (1 - chance) / len(counts))
    assert abs(math.fsum(counts) / len(counts) - 60 * chance) <= 4 * deviation


def test_clip_cov_is_reproducible_and_follows_the_keys() -> None:
    batch = cov_batch(copies=20)
    method = tc.method("clip_cov", share=0.1)
    first = dropped(method, batch)
    assert dropped(method, batch) == first
    assert dropped(tc.method("clip_cov", share=0.1, seed=1), batch) != first
    assert dropped(method, cov_batch(seed=1, copies=20)) != first


def test_clip_cov_never_drops_what_the_clip_cut_or_a_masked_token() -> None:
    batch = cov_batch(copies=20)
    x = torch.linspace(-1, 1, batch.logp.numel(), dtype=DOUBLE).view_as(batch.logp)
    mask = torch.arange(6) != 1
    batch = tc.TokenBatch(
        batch.logp, batch.logp - x, batch.advantages, mask.expand(20, 6), keys=batch.keys
    )
    method = tc.method("clip_cov", low=0.2, high=0.2, share=1.0)
    fields = (batch.log_ratio, batch.advantages, batch.logp_old)
    tokens = oracle.Tokens(*(t[:, mask].flatten().numpy() for t in fields))
    candidates = oracle.clip_cov_candidates(method.to_dict(), tokens)
    (kept,) = oracle.kept("clip_cov", method.to_dict(), tokens)
    cut = {i for i, keeps in enumerate(kept) if not keeps}
    assert candidates
    assert cut
    kept = method.surrogate(batch).kept[:, mask].flatten()
    assert set((~kept).nonzero().flatten().tolist()) == candidates | cut


# TRPO and Truly PPO ----------------------------------------------------------------------------


def test_trpo_stops_all_ranks_or_none() -> None:
    """A mean of 0.0214 here and of 0 on another rank of as many tokens: 0.0107 together."""
    batch = batch_of([0.2, 0.2], [1.0, 1.0])
    for delta, kept in ((0.0106, False), (0.0108, True)):
        method = tc.method("trpo", delta=delta)
        found = method.statistics(batch, lambda sums: sums + sums.new_tensor([0.0, 2.0]))
        assert method.surrogate(replace(batch, statistics=found)).kept.all().item() == kept
        assert not method.surrogate(batch).kept.any()


def truly_batch(logp: Tensor, kl: Tensor) -> tc.TokenBatch:
    old = torch.zeros_like(logp) - 1
    return tc.TokenBatch(
        logp, old, row(2, 2, -2), torch.ones(1, 3, dtype=torch.bool), kl_old_new=kl
    )


def test_a_divergence_without_its_graph_is_refused_where_the_pull_is_its_gradient() -> None:
    leaf = row(-0.5, -0.9, -0.5).requires_grad_()
    for method in (
        tc.method("truly_ppo", variant="truly"),
        tc.method("ppo_penalty", divergence="kl_old_new"),
        tc.method("truly_ppo", variant="truly") & tc.method("clip"),
    ):
        kl = 0.5 * (leaf + 1) ** 2
        loss = tc.policy_loss(method, truly_batch(leaf, kl)).value
        with pytest.raises(ValueError, match=r"`kl_old_new`.*detached"):
            tc.policy_loss(method, truly_batch(leaf, kl.detach()))
        tc.coefficient(method, truly_batch(leaf, kl.detach()))
        # Values alone need no graph.
        assert tc.policy_loss(method, truly_batch(leaf.detach(), kl.detach())).value == loss
        with torch.no_grad():
            assert tc.policy_loss(method, truly_batch(leaf, kl.detach())).value == loss


def test_a_rollback_meets_the_objective_in_value_at_its_bound() -> None:
    """w A on both sides of the bound, with slopes 1 and -0.3."""
    method = tc.method("truly_ppo", variant="ppo_rb")
    e = 1e-9
    for a, bound, outwards in ((2.0, math.log(1.2), 1), (-2.0, math.log(0.8), -1)):
        surrogate = method.surrogate(batch_of([bound - outwards * e, bound + outwards * e], [a, a]))
        assert surrogate.kept[0].tolist() == [True, False]
        inside, outside = surrogate.objective[0].tolist()
        assert inside == pytest.approx(outside, rel=1e-8) == pytest.approx(math.exp(bound) * a)


def test_a_token_on_the_ceiling_of_a_dual_clip_is_kept() -> None:
    for spec in ({"name": "dual_clip", "ceiling": 3.0}, {"name": "bandpo", "dual_ceiling": 3.0}):
        x = [math.log(3.0), math.nextafter(math.log(3.0), math.inf)]
        batch = tc.TokenBatch(row(*x), row(0, 0), row(-1, -1), torch.ones(1, 2, dtype=torch.bool))
        assert tc.as_method(spec).surrogate(batch).kept[0].tolist() == [True, False]
