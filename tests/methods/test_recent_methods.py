"""The constraints that trainers took up in 2026, against their published rules."""

import dataclasses

import pytest
import torch
from method_cases import changed
from test_published_methods import in_lockstep
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


# M2PO ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("least_weight", "budget", "ceiling"), [(0.0, 0.02, None), (1, 0.1, 0.05)])
def test_what_cppo_cannot_be_is_refused(least_weight: float, budget: float, ceiling: float) -> None:
    with pytest.raises(ValueError, match=r"least_weight|`budget_ceiling` must be at least"):
        tc.method("cppo", least_weight=least_weight, budget=budget, budget_ceiling=ceiling)


# Balance and entropy ---------------------------------------------------------------------------


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
    from trustclip.cli.main import main

    assert main(["methods"]) == 0
    assert "cfpo is spo; decoupled_ppo is tis --inner clip" in capsys.readouterr().out
    assert main(["bounds", "decoupled_ppo", "--ceiling", "3"]) == 0
    assert "TIS(inner=Clip(" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'cfpo'"):
        tc.method("cfp0")
