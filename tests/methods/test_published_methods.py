"""Methods beyond the paper's tables: known values, hand-computed cases, and how they relate."""

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import reference_values as known
import torch
from patience import NEVER
from torch import Tensor

import trustclip as tc
from trustclip.constraints import divergences
from trustclip.constraints.selection import nth_largest

DOUBLE = torch.float64


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=DOUBLE)


def batch_of(
    log_ratio: Sequence[float], advantages: Sequence[float], p_old: float = 0.5, **optional: Any
) -> tc.TokenBatch:
    """One sequence."""
    old = torch.full((1, len(log_ratio)), math.log(p_old), dtype=DOUBLE)
    mask = torch.ones_like(old, dtype=torch.bool)
    return tc.TokenBatch(old + row(*log_ratio), old, row(*advantages), mask, **optional)


# Relations ---------------------------------------------------------------------------------------


def random_batch(seed: int = 0, spread: float = 0.5, **optional: Any) -> tc.TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(40, 12, dtype=DOUBLE, generator=generator).exponential_(generator=generator)
    x = spread * torch.randn(40, 12, dtype=DOUBLE, generator=generator)
    a = torch.randn(40, 1, dtype=DOUBLE, generator=generator).expand(40, 12)
    mask = torch.arange(12) < torch.randint(1, 13, (40, 1), generator=generator)
    return tc.TokenBatch((old + x).clamp(max=-1e-4), old, a, mask, **optional)


def test_operators_join_methods() -> None:
    a, b, c = tc.method("atr"), tc.method("clip"), tc.method("kl2")
    assert a & b == tc.method("both", first=a, second=b)
    assert (a & b) | c == tc.method("either", first=tc.method("both", first=a, second=b), second=c)


# Penalties ---------------------------------------------------------------------------------------


def test_ppo_penalty_follows_the_exact_divergence() -> None:
    leaf = row(-0.5, -0.9).requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)
    batch = tc.TokenBatch(leaf, row(-1, -1), row(2, 2), mask, kl_old_new=0.5 * (leaf + 1) ** 2)
    objective = tc.method("ppo_penalty", beta=3.0, estimator="exact").surrogate(batch).objective
    (got,) = torch.autograd.grad(objective.sum(), leaf)
    want = [2 * math.exp(0.5) - 3 * 0.5, 2 * math.exp(0.1) - 3 * 0.1]
    assert got[0].tolist() == pytest.approx(want, rel=1e-12)


def cov_batch(copies: int = 1, shift: float = -0.01) -> tc.TokenBatch:
    old = row(*known.COV_LOGP).repeat(copies, 1)
    advantages = row(*known.COV_ADVANTAGES).repeat(copies, 1)
    keys = torch.arange(old.numel()).view_as(old)
    mask = torch.ones_like(old, dtype=torch.bool)
    return tc.TokenBatch(old + shift, old, advantages, mask, keys=keys)


def test_kl_cov_prices_the_token_of_largest_covariance() -> None:
    surrogate = tc.method("kl_cov").surrogate(cov_batch())
    assert surrogate.extras["selected"][0].nonzero().flatten().tolist() == [3]
    assert surrogate.kept.all()


def test_kl_cov_selects_its_share_of_equals() -> None:
    """Half of the tokens tie at the top: as many of them are selected as the share asks for."""
    old = torch.cat([torch.zeros(20, 100), torch.full((20, 100), -2.0)], dim=1).double()
    a = torch.ones(20, 1, dtype=DOUBLE).expand(20, 200) * 0.5
    a = torch.cat([a, -a])
    old = torch.cat([old, old])
    keys = torch.arange(old.numel()).view_as(old)
    batch = tc.TokenBatch(old, old, a, torch.ones_like(old, dtype=torch.bool), keys=keys)
    counts = [
        tc.method("kl_cov", share=0.05, seed=seed).surrogate(batch).extras["selected"].sum().item()
        for seed in range(20)
    ]
    assert abs(sum(counts) / 20 - 0.05 * old.numel()) < 0.1 * 0.05 * old.numel()
    chosen = tc.method("kl_cov", share=0.05).surrogate(batch).extras["selected"]
    assert not chosen[:20, 100:].any() and not chosen[20:, :100].any()


def test_kl_cov_agrees_over_ranks() -> None:
    batch, method = random_batch(1), tc.method("kl_cov", share=0.05)
    fields = torch.stack([batch.logp, batch.logp_old, batch.advantages, batch.mask.to(DOUBLE)])

    def least(part: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        logp, old, advantages, mask = part
        batch = tc.TokenBatch(logp, old, advantages, mask.bool())
        return method.statistics(batch, reduce)["least_covariance"]

    found = in_lockstep(least, [fields[:, :7], fields[:, 7:]])
    assert found == [method.statistics(batch)["least_covariance"]] * 2


def test_kl_cov_selects_its_share_however_the_batch_is_split() -> None:
    batch = random_batch(1, keys=torch.arange(480).view(40, 12))
    method = tc.method("kl_cov", share=0.05)
    whole = dataclasses.replace(batch, statistics=method.statistics(batch))
    selected = method.surrogate(whole).extras["selected"]
    assert selected.sum() == int(0.05 * batch.mask.sum())
    parts = []
    for rows in (slice(0, 7), slice(7, 40)):
        fields = (batch.logp, batch.logp_old, batch.advantages, batch.mask)
        assert batch.keys is not None
        part = tc.TokenBatch(
            *(t[rows] for t in fields), keys=batch.keys[rows], statistics=whole.statistics
        )
        parts.append(method.surrogate(part).extras["selected"])
    assert torch.equal(torch.cat(parts), selected)


def test_the_nth_largest_over_ranks() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(997, generator=generator) * 10 ** torch.randint(-5, 5, (997,)).float()
    x[::7] = 0.0
    x[::11] = x[3]  # ties
    ordered = x.sort(descending=True).values
    ranks = [x[:300], x[300:300], x[300:]]
    for n in (1, 2, 10, 400, 996, 997):
        found = in_lockstep(
            lambda mine, reduce, n=n: nth_largest(mine, torch.tensor(n), reduce), ranks
        )
        least = ordered[n - 1]
        share = (n - (x > least).sum()) / (x == least).sum()
        for value, due in (*found, nth_largest(x, torch.tensor(n))):
            assert value == least and due.item() == pytest.approx(share.item())


def in_lockstep(
    function: Callable[[Tensor, Callable[[Tensor], Tensor]], Any], ranks: list[Tensor]
) -> list[Any]:
    """The function on every rank at once, with a sum over all of them to call."""
    told: list[Tensor] = [torch.empty(0)] * len(ranks)
    barrier = threading.Barrier(len(ranks), timeout=NEVER)

    def run(rank: int) -> Any:
        def total(x: Tensor) -> Tensor:
            told[rank] = x
            barrier.wait()
            result = torch.stack(told).sum(dim=0)
            barrier.wait()
            return result

        return function(ranks[rank], total)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, range(len(ranks))))


# Top-K divergences -------------------------------------------------------------------------------


def test_a_few_tokens_and_the_rest() -> None:
    old = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=DOUBLE)
    new = torch.tensor([0.4, 0.35, 0.1, 0.15], dtype=DOUBLE)
    tokens = torch.tensor([0, 3])
    a, b = (divergences.with_rest(p.log(), tokens) for p in (old, new))
    kl = 0.5 * math.log(0.5 / 0.4) + 0.05 * math.log(0.05 / 0.15) + 0.45 * math.log(0.45 / 0.45)
    assert divergences.categorical_kl(a, b).item() == pytest.approx(kl, rel=1e-12)
    assert divergences.categorical_tv(a, b).item() == pytest.approx(0.1, rel=1e-12)
    everything = divergences.with_rest(old.log(), torch.arange(4))
    assert everything[-1].exp() < 1e-15
    # One token and the rest is the binary divergence; more tokens never make it smaller.
    binary = (
        divergences.with_rest(old.log(), tokens[:1]),
        divergences.with_rest(new.log(), tokens[:1]),
    )
    assert divergences.categorical_kl(*binary).item() == pytest.approx(
        divergences.binary_kl_old_new(old[0].log(), new[0].log()).item(), rel=1e-12
    )
    assert divergences.categorical_kl(*binary) <= divergences.categorical_kl(a, b)


# Composition -------------------------------------------------------------------------------------


def test_a_composite_needs_what_its_parts_need() -> None:
    method = tc.method("tis", inner={"name": "full_kl", "order": "new_old"})
    assert method.requires == ("kl_new_old", "logp_rollout")
    joined = tc.method("truly_ppo", variant="ppo_rb") & tc.method("clip_cov")
    assert joined.requires == ("keys",)
    assert tc.Trait.REVERSES | tc.Trait.CUTS | tc.Trait.ACTS_ON_POLICY in joined.traits
    assert joined.statistics_over == "generation"
    assert tc.Trait.CUTS not in tc.method("tis", inner="cispo").traits
    assert tc.Trait.CUTS in tc.method("icepop", inner="cispo").traits


def test_parts_have_statistics_of_their_own() -> None:
    batch = dataclasses.replace(random_batch(3), keys=torch.arange(480).view(40, 12))
    parts = [tc.method("clip_cov", cov_low=0.0, share=0.2, seed=s) for s in (0, 1)]
    joined = parts[0] & parts[1]
    statistics = joined.statistics(batch)
    assert sorted({name.split("/")[0] for name in statistics}) == ["0", "1"]
    given = dataclasses.replace(batch, statistics=statistics)
    kept = joined.surrogate(given).kept
    assert torch.equal(kept, joined.surrogate(batch).kept)
    assert torch.equal(kept, parts[0].surrogate(batch).kept & parts[1].surrogate(batch).kept)
    assert not torch.equal(kept, parts[0].surrogate(batch).kept)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "tis", "inner": "art"}, ["inner", "'art'", "did you mean 'atr'"]),
        ({"name": "tis", "inner": {"name": "atr", "delat": 1}}, ["'delat'", "'delta'"]),
        ({"name": "tis", "inner": {"delta": 1}}, ["inner", "`name`"]),
        ({"name": "tis", "inner": 3}, ["inner", "mapping", "3"]),
        ({"name": "both", "second": None}, ["second", "None"]),
        (
            {"name": "both", "first": "trpo", "second": "clip_cov"},
            ["trpo", "clip_cov", "generation"],
        ),
        ({"name": "trm", "divergence": "kl_old_new", "anchor": "rollout"}, ["anchor", "k3"]),
        ({"name": "pspo", "alpha": 1.0}, ["alpha", "less than 1"]),
        ({"name": "icepop", "floor": 1.5}, ["floor", "1.5"]),
    ],
)
def test_what_makes_no_method_is_refused(spec: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        tc.as_method(spec)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("wrong", [3, None, ["atr"]])
def test_what_is_no_specification_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="mapping"):
        tc.as_method(wrong)  # type: ignore[arg-type]
