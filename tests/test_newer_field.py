"""The constraints that trainers took up in 2026, against their published rules."""

import dataclasses
import math

import pytest
import torch
import wider_oracle
from method_cases import changed
from test_wider_field import in_lockstep
from torch import Tensor

import trustclip as tc
from trustclip.constraints.selection import within_mean

DOUBLE = torch.float64


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


def flat(batch: tc.TokenBatch) -> list[wider_oracle.Token]:
    fields = (batch.log_ratio, batch.advantages, batch.logp_old, batch.given("logp_rollout"))
    values = zip(*(f[batch.mask].tolist() for f in fields), strict=True)
    return [wider_oracle.Token(x, a, old, logp_rollout=b) for x, a, old, b in values]


# prime-rl --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.3])
def test_ipo_is_the_strict_band_of_total_variation(delta: float) -> None:
    batch = tokens()
    band = tc.method("bandpo", divergence="tv", delta=delta, ceiling=None, side="strict")
    for anchor in ("old", "rollout"):
        ipo = tc.method("ipo", delta=delta, anchor=anchor)
        got, want = tc.coefficient(ipo, batch), tc.coefficient(band, batch.against(anchor))
        torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
        assert got.ne(0).any() and got[batch.mask].eq(0).any()


def test_ipo_drops_a_step_back_too_and_dppo_does_not() -> None:
    p, q = torch.tensor([[0.8]]).log(), torch.tensor([[0.3]]).log()
    batch = tc.TokenBatch(q, p, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert tc.coefficient(tc.method("ipo", anchor="old"), batch).item() == 0
    assert tc.coefficient(tc.method("dppo", delta=0.3), batch).item() == pytest.approx(0.375)


def test_icepop_of_the_new_policy_is_the_masked_ratio_to_the_sampler() -> None:
    """INTELLECT-3, equation 1: M(k) = k for k in [alpha, beta], else 0."""
    batch = tokens(spread=1.0)
    method = tc.method("icepop", inner="importance_sampling", policy="new", floor=0.5, ceiling=2.0)
    k = (batch.logp - batch.given("logp_rollout")).exp()
    inside = (k >= 0.5) & (k <= 2.0) & batch.mask
    want = torch.where(inside, k, 0.0) * batch.advantages
    torch.testing.assert_close(tc.coefficient(method, batch), want, rtol=1e-12, atol=0)
    assert inside.any() and (batch.mask & ~inside).any()
    other = dataclasses.replace(method, policy="old")
    assert not torch.equal(other.surrogate(batch).kept, method.surrogate(batch).kept)


def test_icepop_of_a_ratio_beyond_all_numbers_stays_finite() -> None:
    x = torch.tensor([[300.0, -300.0, 0.1]])
    old = torch.full((1, 3), -400.0)
    batch = tc.TokenBatch(
        old + x, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), logp_rollout=old
    )
    method = tc.method("icepop", inner="importance_sampling", policy="new")
    c = tc.coefficient(method, batch)
    assert c[0, :2].tolist() == [0, 0] and c[0, 2].item() == pytest.approx(math.exp(0.1), rel=1e-4)


# M2PO ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["outward", "strict"])
@pytest.mark.parametrize("anchor", ["old", "rollout"])
@pytest.mark.parametrize("budget", [1e-4, 0.01, 0.04, 0.3, 10.0])
def test_m2po_drops_what_the_greedy_rule_drops(side: str, anchor: str, budget: float) -> None:
    method = tc.method("m2po", side=side, anchor=anchor, budget=budget)
    for seed in range(4):
        batch = tokens(rows=20, seed=seed)
        got = method.surrogate(batch).kept[batch.mask].tolist()
        assert got == wider_oracle.m2po_kept(method.to_dict(), flat(batch))
        want = torch.where(method.surrogate(batch).kept, batch.against(anchor).log_ratio.exp(), 0.0)
        torch.testing.assert_close(tc.coefficient(method, batch), want * batch.advantages)


def test_m2po_on_eight_tokens() -> None:
    """The mean of the squares: 0.179 over all, 0.021 without the largest three."""
    x = torch.tensor([[0.02, -0.05, 0.4, -0.6, 0.1, 0.9, -0.3, 0.01]], dtype=DOUBLE)
    a = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0]], dtype=DOUBLE)
    batch = tc.TokenBatch(x - 2, torch.full_like(x, -2.0), a, torch.ones_like(x, dtype=torch.bool))
    for side in ("outward", "strict"):
        kept = tc.method("m2po", side=side).surrogate(batch).kept
        assert kept[0].tolist() == [True, True, False, False, True, False, True, True]
    # 0.3 among those that leave, not among all: (0.0004 + 0.0001 + 0.09) / 3 = 0.0302.
    tight = {side: tc.method("m2po", side=side, budget=0.025) for side in ("outward", "strict")}
    assert [m.surrogate(batch).kept[0, 6].item() for m in tight.values()] == [False, True]


def test_m2po_cuts_nothing_within_budget_and_everything_that_leaves_when_none_fits() -> None:
    x = torch.tensor([[0.5, -0.5, 0.6, 0.0]])
    batch = tc.TokenBatch(x - 2, torch.full_like(x, -2.0), torch.ones(1, 4), torch.ones(1, 4) > 0)
    assert tc.method("m2po", budget=1.0).surrogate(batch).kept.all()
    assert tc.method("m2po", budget=0.01).surrogate(batch).kept[0].tolist() == [
        False, True, False, True,
    ]  # fmt: skip
    assert tc.method("m2po").surrogate(changed(batch, lambda t: t[:, :0])).kept.numel() == 0


def test_m2po_within_budget_in_every_part_is_within_budget_as_a_whole() -> None:
    batch, method = tokens(), tc.method("m2po", budget=0.03)
    parts = [changed(batch, lambda t, rows=rows: t[rows]) for rows in (slice(7), slice(7, 40))]
    squares = torch.cat(
        [
            part.log_ratio[
                method.surrogate(part).kept & (part.log_ratio * part.advantages > 0)
            ] ** 2
            for part in parts
        ]
    )  # fmt: skip
    assert 0 < squares.mean() <= 0.03


def test_m2po_agrees_over_ranks() -> None:
    batch, method = tokens(), tc.method("m2po", anchor="rollout")
    rollout = batch.given("logp_rollout")
    fields = torch.stack(
        [batch.logp, batch.logp_old, batch.advantages, batch.mask.to(DOUBLE), rollout]
    )

    def bound(part: Tensor, reduce) -> Tensor:
        logp, old, advantages, mask, rollout = part
        mine = tc.TokenBatch(logp, old, advantages, mask.bool(), logp_rollout=rollout)
        return method.statistics(mine, reduce)["bound"]

    ranks = [fields[:, :7], fields[:, 7:7], fields[:, 7:]]
    found = in_lockstep(bound, ranks)
    assert found == [method.statistics(batch)["bound"]] * 3 and found[0].isfinite()


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
