"""The constraints that trainers took up in 2026, against their published rules."""

import dataclasses
import math
import typing

import oracle
import pytest
import torch
from method_cases import changed
from test_published_methods import in_lockstep
from torch import Tensor

import trustclip as tc
from trustclip.constraints.batch import Anchor
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


def flat(batch: tc.TokenBatch) -> oracle.Tokens:
    fields = (batch.log_ratio, batch.advantages, batch.logp_old, batch.given("logp_rollout"))
    x, a, old, rollout = (f[batch.mask].numpy() for f in fields)
    return oracle.Tokens(x, a, old, logp_rollout=rollout)


# prime-rl --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.3])
def test_ipo_is_the_strict_band_of_total_variation(delta: float) -> None:
    batch = tokens()
    band = tc.method("bandpo", divergence="tv", delta=delta, ceiling=None, side="strict")
    for anchor in ("old", "rollout"):
        ipo = tc.method("ipo", delta=delta, anchor=anchor, ceiling=None)
        got, want = tc.coefficient(ipo, batch), tc.coefficient(band, batch.against(anchor))
        torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
        assert got.ne(0).any() and got[batch.mask].eq(0).any()


def test_a_ratio_stops_at_the_ceiling_with_its_gradient_and_its_gate() -> None:
    """Rare tokens of the sampler: up to e^25 in ratio, and almost nothing in probability."""
    rollout = torch.tensor([[-1.5, -5.0, -12.0, -25.0, -400.0]], dtype=torch.float64)
    q = torch.tensor([[0.22, 0.2, 0.05, 0.25, 0.4]], dtype=torch.float64)
    one = torch.ones_like(q)
    for sign in (1.0, -1.0):
        batch = tc.TokenBatch(q.log(), q.log(), sign * one, one > 0, logp_rollout=rollout)
        w = torch.exp(q.log() - rollout).clamp(max=1e4)
        want = sign * w * ((q - rollout.exp()).abs() <= 0.3)
        torch.testing.assert_close(tc.coefficient("ipo", batch), want)
        own = tc.method("anchored", inner="clip", ceiling=1e4)
        want = sign * w * ((w <= 1.2) if sign > 0 else (w >= 0.8))
        torch.testing.assert_close(tc.coefficient(own, batch), want)


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
    other = tc.method(**{**method.to_dict(), "policy": "old"})
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
@pytest.mark.parametrize("anchor", typing.get_args(Anchor))
@pytest.mark.parametrize("budget", [1e-4, 0.01, 0.04, 0.3, 10.0])
def test_m2po_drops_what_the_greedy_rule_drops(side: str, anchor: Anchor, budget: float) -> None:
    method = tc.method("m2po", side=side, anchor=anchor, budget=budget)
    for seed in range(4):
        batch = tokens(rows=20, seed=seed)
        got = method.surrogate(batch).kept[batch.mask].tolist()
        assert got == oracle.kept("m2po", method.to_dict(), flat(batch))[0].tolist()
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


# Divergence of probabilities -------------------------------------------------------------------


def test_drpo_is_spo_with_a_radius_by_probability() -> None:
    """The authors' substitution: epsilon / mu for SPO's epsilon, token by token."""
    batch = tokens(spread=0.6)
    got = tc.coefficient(tc.method("drpo", delta=0.15), batch)
    for row, column in batch.mask.nonzero().tolist()[::17]:
        one = changed(batch, lambda t, r=row, c=column: t[r : r + 1, c : c + 1])
        spo = tc.method("spo", epsilon=0.15 / one.p_old.item())
        assert got[row, column].item() == pytest.approx(
            tc.coefficient(spo, one).item(), rel=1e-9, abs=1e-12
        )


def test_drpo_at_the_edge_of_dppos_region_has_no_gradient_and_pulls_back_beyond() -> None:
    p, q = torch.full((1, 3), 0.4, dtype=DOUBLE), torch.tensor([[0.5, 0.55, 0.6]], dtype=DOUBLE)
    batch = tc.TokenBatch(q.log(), p.log(), torch.ones(1, 3, dtype=DOUBLE), torch.ones(1, 3) > 0)
    c = tc.coefficient(tc.method("drpo", delta=0.15), batch)[0].tolist()
    assert c == pytest.approx([1.25 / 3, 0, -0.5], abs=1e-12)
    assert tc.method("dppo", delta=0.1501).surrogate(batch).kept[0].tolist() == [True, True, False]


@pytest.mark.parametrize(
    "more",
    [
        {"least_weight": 0.3},
        {"least_weight": 0.3, "budget_ceiling": 0.05},
        {"divergence": "binary_kl", "delta": 0.1, "budget": 0.002, "anchor": "rollout"},
    ],
    ids=str,
)
def test_cppo_keeps_what_the_algorithm_keeps(more: dict[str, typing.Any]) -> None:
    method, count = tc.method("cppo", **more), 0
    for seed in range(4):
        batch = tokens(rows=100, spread=0.3, seed=seed)
        kept = method.surrogate(batch).kept
        for row in range(100):
            one = changed(batch, lambda t, row=row: t[row : row + 1])
            want = oracle.kept("cppo", method.to_dict(), flat(one))[0].tolist()
            assert kept[row][batch.mask[row]].tolist() == want
            count += want.count(False)
    assert count > 100


def test_cppo_without_weights_and_with_a_budget_never_spent_is_dppo() -> None:
    batch = tokens()
    dppo = tc.method("dppo", ceiling=1e9)
    loose = tc.method("cppo", delta=0.15, least_weight=1.0, budget=1.0, budget_ceiling=None)
    torch.testing.assert_close(tc.coefficient(loose, batch), tc.coefficient(dppo, batch))
    assert not torch.equal(tc.method("cppo").surrogate(batch).kept, dppo.surrogate(batch).kept)


def test_cppo_allows_the_last_token_more_than_the_first() -> None:
    old = torch.full((2, 4), 0.5, dtype=DOUBLE).log()
    moved = torch.zeros(2, 4, dtype=DOUBLE)
    moved[0, 0] = moved[1, 3] = 0.17  # beyond 0.15, within 0.15 / 0.8
    batch = tc.TokenBatch(
        (0.5 + moved).log(), old, torch.ones(2, 4, dtype=DOUBLE), torch.ones(2, 4) > 0
    )
    kept = tc.method("cppo", delta=0.15, budget_ceiling=None).surrogate(batch).kept
    assert not kept[0, 0] and kept[1, 3] and kept.sum() == 7


def test_cppo_anchored_at_the_sampler_is_the_released_code() -> None:
    """UniRL's mask in its own terms: thresholds c_t from the prefix before, budget of P90."""
    batch = tokens(rows=60, spread=0.4)
    kept = tc.method("cppo", anchor="rollout").surrogate(batch).kept
    closed = 0
    for row in range(60):
        one = batch.mask[row]
        new, mu = (f[row][one].exp() for f in (batch.logp, batch.given("logp_rollout")))
        moved = (new - mu).abs()
        weight = torch.linspace(1.0, 0.8, len(moved), dtype=DOUBLE)
        budget = torch.quantile(moved, 0.9).clamp(0.02, 0.04)
        before = torch.cat([torch.zeros(1, dtype=DOUBLE), (weight * moved).cumsum(0)[:-1]])
        allowed = torch.cat([torch.zeros(1, dtype=DOUBLE), weight.cumsum(0)[:-1]]) * budget
        inside = weight * moved <= (0.2 + allowed - before).clamp(max=0.2)
        want = inside | (batch.advantages[row][one] * (new / mu - 1) <= 0)
        assert kept[row][one].tolist() == want.tolist()
        closed += int((~want).sum())
    assert closed > 20


def test_cppo_counts_the_positions_of_unmasked_tokens() -> None:
    batch = tokens(rows=6)
    holes = batch.mask.clone()
    holes[:, 1::3] = False
    with_holes = dataclasses.replace(batch, mask=holes)
    got = tc.method("cppo", budget=0.01).surrogate(with_holes).kept
    for row in range(6):
        closed = changed(
            changed(batch, lambda t, r=row: t[r : r + 1]),
            lambda t, r=row: t[:, holes[r]],
        )
        want = tc.method("cppo", budget=0.01).surrogate(closed).kept
        assert got[row][holes[row]].tolist() == want[0].tolist()


@pytest.mark.parametrize(("least_weight", "budget", "ceiling"), [(0.0, 0.02, None), (1, 0.1, 0.05)])
def test_what_cppo_cannot_be_is_refused(least_weight: float, budget: float, ceiling: float) -> None:
    with pytest.raises(ValueError, match=r"least_weight|`budget_ceiling` must be at least"):
        tc.method("cppo", least_weight=least_weight, budget=budget, budget_ceiling=ceiling)


def test_kpop_is_wide_for_rare_tokens_and_narrow_for_sure_ones() -> None:
    """0.01 against 0.03 is a ratio of 3 and 0.01 nats; 0.99 against 0.8 one of 1.24, 0.15 nats."""
    sampler = torch.tensor([[0.03, 0.8]], dtype=DOUBLE)
    old = torch.tensor([[0.01, 0.99]], dtype=DOUBLE).log()
    batch = tc.TokenBatch(
        old, old, torch.ones(1, 2, dtype=DOUBLE), torch.ones(1, 2) > 0, logp_rollout=sampler.log()
    )
    assert tc.method("kpop").surrogate(batch).kept[0].tolist() == [True, False]
    assert tc.method("icepop").surrogate(batch).kept[0].tolist() == [False, True]


# Balance and entropy ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.05, 0.4, 0.5, 0.56, 0.9])
@pytest.mark.parametrize("more", [{}, {"low_limit": 0.25, "high_limit": 0.5, "high_step": 0.07}])
def test_bapo_opens_its_bounds_as_the_algorithm_does(target: float, more: dict[str, float]) -> None:
    method = tc.method("bapo", target=target, **more)
    for seed in range(4):
        batch = tokens(rows=20, spread=0.8, seed=seed)
        low, high = oracle.bapo_bounds(method.to_dict(), flat(batch))
        found = [bound.exp().item() for bound in method.statistics(batch).values()]
        assert found == pytest.approx([low, high], rel=1e-9)
        clip = tc.method("clip_higher", low=1 - low, high=high - 1)
        torch.testing.assert_close(tc.coefficient(method, batch), tc.coefficient(clip, batch))


def test_bapo_agrees_over_ranks_and_stays_narrow_where_nothing_is_amiss() -> None:
    batch, method = tokens(spread=0.8), tc.method("bapo", target=0.5)
    fields = torch.stack([batch.logp, batch.logp_old, batch.advantages, batch.mask.to(DOUBLE)])

    def bounds(part: Tensor, reduce) -> list[float]:
        logp, old, advantages, mask = part
        mine = tc.TokenBatch(logp, old, advantages, mask.bool())
        return [b.item() for b in method.statistics(mine, reduce).values()]

    found = in_lockstep(bounds, [fields[:, :7], fields[:, 7:7], fields[:, 7:]])
    assert found == [bounds(fields, lambda x: x)] * 3
    positive = dataclasses.replace(batch, advantages=batch.advantages.abs())
    assert [b.exp().item() for b in method.statistics(positive).values()] == pytest.approx(
        [0.6, 1.2]
    )


def test_bapo_with_limits_on_the_wrong_side_is_refused() -> None:
    with pytest.raises(ValueError, match="the bounds open upwards"):
        tc.method("bapo", low=0.1, low_limit=0.2)


def test_erc_keeps_the_open_interval_and_goes_by_the_inner_method_within() -> None:
    old = torch.full((1, 5), -1.0, dtype=DOUBLE)
    x = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.5]], dtype=DOUBLE)
    before = torch.tensor([[1.0, 1.0, 1.0, 0.0, 1.0]], dtype=DOUBLE)
    now = before * torch.tensor([[0.94, 0.96, 1.06, 1.0, 1.0]], dtype=DOUBLE)
    batch = tc.TokenBatch(
        old + x, old, torch.ones(1, 5, dtype=DOUBLE), torch.ones(1, 5) > 0,
        entropy=now, entropy_old=before,
    )  # fmt: skip
    kept = tc.method("erc").surrogate(batch).kept[0].tolist()
    assert kept == [False, True, False, True, False]  # the last one: DAPO's clip at 1.28


def test_erc_without_the_old_entropy_says_who_has_it() -> None:
    batch = tokens(rows=1)
    with pytest.raises(ValueError, match="`entropy_old` in the batch; it comes from the old pol"):
        tc.coefficient(tc.method("erc"), dataclasses.replace(batch, entropy=-batch.logp))


# Other names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.2])
def test_cfpo_is_spo(epsilon: float) -> None:
    """CFPO, equation 7: r A - |A| / (2 eps) (r - 1)^2, with its gradient by autograd."""
    batch = tokens()
    leaf = batch.logp.clone().requires_grad_()
    r, a = (leaf - batch.logp_old).exp(), batch.advantages
    (r * a - a.abs() / (2 * epsilon) * (r - 1) ** 2)[batch.mask].sum().backward()
    cfpo = tc.method("cfpo", epsilon=epsilon)
    torch.testing.assert_close(tc.coefficient(cfpo, batch), leaf.grad)
    assert cfpo == tc.method("spo", epsilon=epsilon) and cfpo.name == "spo"


def test_decoupled_ppo_is_the_clip_with_the_weight_to_the_sampler() -> None:
    """AReaL: (prox / behav) min(u A, clip(u) A), with u the ratio to the proximal policy."""
    batch = tokens()
    behind = dataclasses.replace(batch, logp_rollout=batch.logp_old - 0.3)
    method = tc.method("decoupled_ppo")
    want = math.exp(0.3) * tc.coefficient(tc.method("clip"), batch)
    torch.testing.assert_close(tc.coefficient(method, behind), want)
    assert method == tc.as_method({"name": "decoupled_ppo"}) == tc.method("tis", inner="clip")
    assert tc.method("decoupled_ppo", ceiling=5).to_dict()["ceiling"] == 5


def test_an_alias_is_listed_and_taken_by_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    from trustclip.cli.main import main

    assert main(["methods"]) == 0
    assert "cfpo is spo; decoupled_ppo is tis --inner clip" in capsys.readouterr().out
    assert main(["bounds", "decoupled_ppo", "--ceiling", "3"]) == 0
    assert "TIS(inner=Clip(" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'cfpo'"):
        tc.method("cfp0")
