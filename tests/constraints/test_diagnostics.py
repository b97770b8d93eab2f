"""What the gate did: every number by hand, and by brute force over the policy it estimates."""

import math

import pytest
import torch

import trustclip as tc
from trustclip.constraints import diagnostics

DOUBLE = torch.float64


def value(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    return (pair[0] / pair[1]).item()


def batch_of(p_old: list[list[float]], ratio: list[list[float]], **fields) -> tc.TokenBatch:
    """Completions padded to one length by None-like zeros of ``p_old``."""
    old = torch.tensor(p_old, dtype=DOUBLE)
    mask = old > 0
    old = old.clamp(min=1e-9).log()
    a = fields.pop("advantages", torch.ones_like(old))
    return tc.TokenBatch(old + torch.tensor(ratio, dtype=DOUBLE).log(), old, a, mask, **fields)


def test_shares_are_among_the_tokens_of_a_kind_and_add_up() -> None:
    p = [[0.005, 0.0099, 0.3, 0.95, 0.6, 0.6, 0.6, 0.6], [0.2, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    batch = batch_of(p, [[2.0, 1, 2, 1, 1, 1, 1, 2], [1, 2, 9, 9, 9, 9, 9, 9]])
    found = tc.policy_loss(tc.method("atr"), batch).metrics
    pairs = {name: tuple(v.item() for v in pair) for name, pair in found.items()}
    assert pairs["gated/p_old_0_0.01"] == (1, 2)
    assert pairs["gated/p_old_0.01_0.1"] == (1, 1)
    assert pairs["gated/p_old_0.1_0.5"] == (1, 2)
    assert pairs["gated/p_old_0.5_0.9"] == (1, 4)
    assert pairs["gated/p_old_0.9_1"] == (0, 1)
    # Of 8 tokens two a quarter; of 2, the first half and the second.
    assert [pairs[f"gated/position_{i}"] for i in (1, 2, 3, 4)] == [(1, 3), (1, 2), (1, 3), (1, 2)]
    for kind in ("p_old", "position"):
        of_kind = [pair for name, pair in pairs.items() if name.startswith(f"gated/{kind}")]
        assert sum(n for n, _ in of_kind) == pairs["gated"][0] == 4
        assert sum(n for _, n in of_kind) == pairs["gated"][1] == 10


def test_quantiles_of_the_ratio_are_within_half_a_bin() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 500, dtype=DOUBLE) * 0.3  # the outermost lie beyond the edges
    old = torch.full_like(x, -9)
    batch = tc.TokenBatch(old + x, old, x, x.abs() < 8, entropy=-old)
    window = diagnostics.Window()
    window.add(batch, tc.method("atr").surrogate(batch), kinds=False)
    read = window.read()
    assert not any("position" in name or "p_old" in name for name in read)
    for name, q in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        want = x.quantile(q).exp().item()
        assert read[f"ratio_{name}"] == pytest.approx(want, rel=0.003), name


def test_by_entropy() -> None:
    entropy = torch.tensor([[0.001, 0.3, 0.6, 4.0, 9.0]], dtype=DOUBLE)
    gated = torch.tensor([[True, False, False, True, False]])
    batch = tc.TokenBatch(-entropy, -entropy, entropy, gated | ~gated, entropy=entropy)
    pairs = diagnostics.parts_gated(batch, gated)
    names = ("0_0.01", "0.01_0.1", "0.1_0.5", "0.5_1", "1_inf")
    got = [tuple(v.item() for v in pairs[f"gated/entropy_{name}"]) for name in names]
    assert got == [(1, 1), (0, 0), (0, 1), (0, 1), (1, 2)]


def test_a_kind_that_no_token_is_of_has_no_share() -> None:
    batch = batch_of([[0.3]], [[2.0]])
    window = diagnostics.Window()
    window.add(batch, tc.method("atr").surrogate(batch))
    read = window.read()
    assert read["gated/p_old_0.1_0.5"] == 1.0 and "gated/p_old_0_0.01" not in read
    assert "gated/entropy_0_0.01" not in read


def test_a_ratio_of_one_is_in_no_quadrant() -> None:
    ratio = [[1.0, 1.0, 2.0, 2.0, 0.5, 0.5]]
    a = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]], dtype=DOUBLE)
    batch = batch_of([[0.3] * 6], ratio, advantages=a)
    got = [among[0].nonzero().tolist() for among in diagnostics.quadrants(batch).values()]
    assert got == [[[2]], [[4]], [[3]], [[5]]]


def test_metrics_are_over_finite_tokens_and_say_how_many_were_not() -> None:
    batch = batch_of([[0.3] * 4], [[1.0, 2.0, 3.0, math.nan]], entropy=torch.ones(1, 4))
    window = diagnostics.Window()
    window.add(batch, tc.method("atr").surrogate(batch))
    read = window.read()
    assert read["nonfinite"] == 0.25 and read["ratio"] == pytest.approx(2.0)
    assert read["gated"] == pytest.approx(2 / 3) and read["ratio_q99"] < math.inf
    nothing = batch_of([[0.3]], [[math.inf]])
    window = diagnostics.Window()
    window.add(nothing, tc.method("atr").surrogate(nothing))
    assert window.read()["nonfinite"] == 1 and math.isnan(window.read()["ratio"])


def test_the_share_of_small_advantages_is_a_share() -> None:
    """Their sum is below 1: it is the denominator all the same."""
    batch = batch_of([[0.5, 0.5]], [[0.5, 1.5]], advantages=torch.tensor([[0.1, -0.3]]))
    window = diagnostics.Window()
    window.add(batch, tc.method("clip").surrogate(batch))
    assert window.read()["advantage_cut"] == 0.0
    batch = batch_of([[0.5, 0.5]], [[0.5, 1.5]], advantages=torch.tensor([[-0.1, -0.3]]))
    window = diagnostics.Window()
    window.add(batch, tc.method("clip").surrogate(batch))
    assert window.read()["advantage_cut"] == pytest.approx(0.25)


def test_effective_sample_size_and_advantage_mass() -> None:
    batch = batch_of([[0.5, 0.5, 0.0]], [[0.5, 1.5, 9.0]], advantages=torch.tensor([[1.0, -3, 9]]))
    found = diagnostics.gate_effects(batch, torch.tensor([[True, False, False]]))
    assert value(found["advantage_cut"]) == pytest.approx(0.25)
    for one, want in (
        (batch, (0.5 + 1.5) ** 2 / (2 * (0.25 + 2.25))),
        (batch_of([[0.5, 0.5]], [[1.0, math.e**30]]), 0.5),
    ):
        window = diagnostics.Window()
        window.add(one, tc.method("atr").surrogate(one))
        assert window.read()["ess"] == pytest.approx(want)


def test_the_slope_of_entropy_is_theorem_5_2s_covariance() -> None:
    """Over every action of a policy, each weighed by the old one: exact, no sample."""
    torch.manual_seed(1)
    logits, old = torch.randn(6, dtype=DOUBLE), torch.randn(6, dtype=DOUBLE).log_softmax(0)
    logp = logits.log_softmax(0)
    a, gated = torch.randn(6, dtype=DOUBLE), torch.tensor([1, 0, 1, 0, 0, 1]) > 0
    p = logp.exp()
    entropy = -(p * logp).sum()
    batch = tc.TokenBatch(
        logp[None], old[None], a[None], torch.ones(1, 6) > 0, entropy=entropy.expand(1, 6)
    )
    for name, chosen in (("cut", gated), ("kept", ~gated)):
        ai = a * chosen
        covariance = (p * (ai - (p * ai).sum()) * (logp - (p * logp).sum())).sum()
        each = torch.zeros(())
        for i in range(6):  # the expectation over the old policy, action by action
            one = tc.TokenBatch(
                *(
                    getattr(batch, n)[:, i : i + 1]
                    for n in ("logp", "logp_old", "advantages", "mask")
                ),
                entropy=entropy.view(1, 1),
            )
            found = diagnostics.gate_effects(one, gated[None, i : i + 1])
            each = each + old[i].exp() * found[f"entropy_slope/{name}"][0]
        assert each.item() == pytest.approx(-covariance.item(), rel=1e-12)
    # A natural-gradient step of size eta changes the entropy by eta times their sum.
    slope = -(p * (a - (p * a).sum()) * logp).sum().item()
    eta = 1e-6
    after = (logits + eta * a).log_softmax(0)
    change = -(after.exp() * after).sum() - entropy
    assert change.item() / eta == pytest.approx(slope, rel=1e-4)


def test_agreement_with_the_exact_gate() -> None:
    x = [[1.5, 1.5, 1.5, 1.0, 0.9]]  # k3: 0.0945 thrice, 0, 0.0054
    kl = torch.tensor([[0.1, 0.01, 0.02, 0.2, 0.2]], dtype=DOUBLE)
    advantages = torch.tensor([[1.0, 1, 1, 1, -1]], dtype=DOUBLE)
    batch = batch_of([[0.3] * 5], x, kl_old_new=kl, advantages=advantages)
    found = tc.policy_loss(tc.method("atr"), batch).metrics
    assert [p.item() for p in found["agreement/precision"]] == [1, 3]
    assert [p.item() for p in found["agreement/recall"]] == [1, 2]  # at ratio 1 neither acts
    for method in (
        tc.method("atr") & tc.method("clip"),
        tc.method("atr", delta={"controller": "target_gate", "share": 0.1}),
    ):
        assert value(tc.policy_loss(method, batch).metrics["agreement/precision"]) > 0
    assert "agreement/recall" not in tc.policy_loss(tc.method("clip"), batch).metrics
    exact = tc.policy_loss(tc.method("full_kl"), batch).metrics
    assert "agreement/recall" not in exact  # it is its own yardstick
