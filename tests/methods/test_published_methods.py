"""Methods beyond the paper's tables: over ranks and batches, composed, refused, and renamed."""

import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from method_cases import changed
from patience import NEVER
from torch import Tensor

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints import divergences
from trustclip.constraints.selection import nth_largest, within_mean

DOUBLE = torch.float64


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=DOUBLE)


def tokens(rows: int = 40, spread: float = 0.4, seed: int = 0) -> tc.TokenBatch:
    """Ragged sequences of tokens of any probability, moved by ``spread`` nats."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, 12)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=DOUBLE)

    old = -torch.rand(shape, generator=generator, dtype=DOUBLE).exponential_(generator=generator)
    advantages = torch.randn(rows, 1, generator=generator, dtype=DOUBLE).expand(shape)
    lengths = torch.randint(1, 13, (rows,), generator=generator)
    return tc.TokenBatch(
        (old + normal(spread)).clamp(max=-1e-3), old, advantages,
        torch.arange(12) < lengths[:, None], logp_rollout=(old + normal(0.2)).clamp(max=-2e-3),
        keys=torch.arange(rows * 12).view(shape),
    )  # fmt: skip


# Relations ---------------------------------------------------------------------------------------


def test_operators_join_methods() -> None:
    a, b, c = tc.method("atr"), tc.method("clip"), tc.method("kl2")
    assert a & b == tc.method("both", first=a, second=b)
    assert (a & b) | c == tc.method("either", first=tc.method("both", first=a, second=b), second=c)


# Penalties ---------------------------------------------------------------------------------------


def test_ppo_penalty_follows_the_exact_divergence() -> None:
    leaf = row(-0.5, -0.9).requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)
    batch = tc.TokenBatch(leaf, row(-1, -1), row(2, 2), mask, kl_old_new=0.5 * (leaf + 1) ** 2)
    objective = (
        tc.method("ppo_penalty", beta=3.0, divergence="kl_old_new").surrogate(batch).objective
    )
    (got,) = torch.autograd.grad(objective.sum(), leaf)
    want = [2 * math.exp(0.5) - 3 * 0.5, 2 * math.exp(0.1) - 3 * 0.1]
    assert got[0].tolist() == pytest.approx(want, rel=1e-12)


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


@pytest.mark.parametrize(
    ("name", "given"),
    [("kl_cov", {"share": 0.05}), ("m2po", {"anchor": "rollout"}), ("bapo", {"target": 0.5})],
)
def test_statistics_agree_over_ranks(name: str, given: dict[str, Any]) -> None:
    """One of three ranks has no sequence."""
    batch, method = tokens(spread=0.8), tc.method(name, **given)

    def measured(rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        mine = changed(batch, lambda x: x[rows])
        return {key: x.item() for key, x in method.statistics(mine, reduce).items()}

    found = in_lockstep(measured, [torch.arange(7), torch.arange(0), torch.arange(7, 40)])
    assert found == [measured(torch.arange(40), lambda x: x)] * 3
    assert all(map(math.isfinite, found[0].values()))


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
    batch = tokens(seed=3)
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
        (
            {"name": "tis", "inner": "art"},
            ["tis: `inner`: unknown method 'art'; did you mean 'atr'"],
        ),
        ({"name": "tis", "inner": {"name": "atr", "delat": 1}}, ["'delat'", "'delta'"]),
        ({"name": "tis", "inner": {"delta": 1}}, ["inner", "`name`"]),
        ({"name": "tis", "inner": 3}, ["inner", "mapping", "3"]),
        (["atr"], ["mapping"]),
        ({"name": "both", "second": None}, ["second", "None"]),
        (
            {"name": "both", "first": "trpo", "second": "clip_cov"},
            ["trpo", "clip_cov", "generation"],
        ),
        ({"name": "trm", "divergence": "kl_old_new", "anchor": "rollout"}, ["anchor", "k3"]),
        ({"name": "cppo", "least_weight": 0.0, "budget_ceiling": None}, ["least_weight"]),
        ({"name": "cppo", "budget": 0.1, "budget_ceiling": 0.05}, ["`budget_ceiling` must be at"]),
        ({"name": "bapo", "low": 0.1, "low_limit": 0.2}, ["the bounds open upwards"]),
        ({"name": "bapo", "high_step": 1e-9}, ["`high_step` should be", "0.001"]),
        ({"name": "anchored", "inner": "full_kl"}, ["'full_kl' needs `kl_old_new`, which no eng"]),
        ("none", ["did you mean 'importance_sampling'"]),
        ("DAPO", ["did you mean 'clip_higher'"]),
    ],
)
def test_what_makes_no_method_is_refused(spec: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        tc.as_method(spec)
    for word in words:
        assert word in str(error.value)


# M2PO ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.0, 1e-6, 1e-3, 0.5, 2.0, 1e6])
def test_the_bound_of_a_mean(limit: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(499, generator=generator) * 10.0 ** torch.randint(
        -6, 3, (499,), generator=generator
    )
    x[::13] = 0.0
    x[5::17] = x[4]  # ties
    bound = within_mean(x, limit)
    ordered = x.sort().values.double()
    means = ordered.cumsum(0) / torch.arange(1, 500)
    stay = [v for v in x.tolist() if v < bound]
    count = int((means <= limit).sum())
    assert len(stay) <= count and (not stay or sum(stay) / len(stay) <= limit * (1 + 1e-9))
    assert bound.isinf() == (count == 499)
    # One value more would be over: of equal numbers all go.
    assert bound.isinf() or bound == ordered[count].float()


# Balance and entropy ---------------------------------------------------------------------------


def test_erc_without_the_old_entropy_says_who_has_it() -> None:
    batch = tokens(rows=1)
    with pytest.raises(ValueError, match="`entropy_old` in the batch; it comes from the old pol"):
        tc.coefficient(tc.method("erc"), dataclasses.replace(batch, entropy=-batch.logp))


# Other names -----------------------------------------------------------------------------------


def test_another_name_is_the_method_with_what_it_sets() -> None:
    assert tc.method("cfpo", epsilon=0.1) == tc.method("spo", epsilon=0.1)
    method = tc.method("decoupled_ppo", ceiling=5)
    assert method == tc.method("tis", inner="clip", ceiling=5) and method.name == "tis"


def test_an_alias_is_listed_and_taken_by_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    assert "cfpo is spo(); decoupled_ppo is tis(clip)" in capsys.readouterr().out
    assert main(["bounds", "decoupled_ppo", "--ceiling", "3"]) == 0
    assert "TIS(inner=Clip(" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'cfpo'"):
        tc.method("cfp0")
