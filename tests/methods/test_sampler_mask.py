"""A token that a mask against the sampler drops has no gradient, in any composition."""

import itertools
from typing import Any

import pytest
import rosetta_cases
import torch
from method_cases import random_batch
from torch import Tensor

import trustclip as tc

AROUND: list[dict[str, Any]] = [
    *({"name": name} for name in ("tis", "icepop", "kpop", "trm", "opsm")),
    {"name": "icepop", "level": "geometric", "ceiling": 1.5},
    {"name": "trm", "reduction": "mean", "divergence": "kl_old_new"},
    {"name": "opsm", "anchor": "rollout", "delta": 0.02},
    {"name": "erc", "low": 0.02, "high": 0.1},
    {"name": "sampler", "floor": 0.7, "ceiling": 1.3, "weigh_by": "token"},
    {"name": "sampler", "measure": "k3", "ceiling": 0.1},
]
INSIDE: list[Any] = [
    *("clip", "gspo", "gmpo", "luspo", "vespo", "dppo"),
    *(
        {"name": name, "level": level}
        for name in ("clip", "atr", "clip_higher")
        for level in ("prefix", "sequence")
    ),
]


@pytest.mark.parametrize("inner", INSIDE, ids=str)
def test_a_dropped_token_has_no_gradient_in_any_composition(inner: Any) -> None:
    """Around methods of sequences, too: GSPO with IcePop is what trains mixtures of experts."""
    methods = [tc.as_method({**around, "inner": inner}) for around in AROUND]
    methods += [tc.method("both", first=inner, second={"name": "atr", "delta": 0.001})]
    dropped = 0
    for method in methods:
        assert tc.Trait.REVERSES not in method.traits
        batch = random_batch(method)
        cut = batch.mask & ~method.surrogate(batch).kept
        assert not tc.coefficient(method, batch)[cut].any(), method
        dropped += int(cut.sum())
    assert dropped > 100


def test_a_drop_is_the_token_of_its_own_and_the_others_keep_their_weight() -> None:
    """The mean of a sequence is not shared: one token in a hundred with a mismatch of e^2.5."""
    old = torch.full((4, 64), -1.0)
    mismatch = torch.zeros(4, 64)
    mismatch[:, ::16] = 2.5
    batch = tc.TokenBatch(old, old, torch.ones(4, 64), old < 0, logp_rollout=old - mismatch)
    c = tc.coefficient(tc.method("icepop", inner="gspo"), batch)
    assert not c[:, ::16].any()
    assert torch.equal(c[:, 1:16], torch.ones(4, 15))


def test_masks_are_joined_by_nesting() -> None:
    token = {"measure": "k2", "ceiling": 0.3}
    sequence = {"measure": "k3", "level": "sequence", "ceiling": 0.2}
    inside = tc.method("sampler", inner="clip", **token)
    both = tc.method("sampler", inner=inside, **sequence)
    batch = random_batch(both)
    keeps = [tc.method("sampler", inner="clip", **one) for one in (token, sequence)]
    first, second = (one.surrogate(batch).kept for one in keeps)
    assert torch.equal(both.surrogate(batch).kept, first & second)
    assert (first ^ second).any()


def test_what_is_no_mask_is_refused() -> None:
    for wrong, said in (
        ({"ceiling": 0.9}, r"agree 'ratio' is 1: every such token would be dropped\."),
        ({"measure": "k3", "floor": 0.1}, r"is 0: .* dropped; it takes a ceiling alone\."),
        ({"measure": "kl_old_new"}, "between new and old"),
        ({"ceiling": None}, "nothing masks and nothing weighs"),
        ({"weight_floor": 2.0, "weight_ceiling": 1.0}, "`weight_floor` 2 is above"),
    ):
        with pytest.raises(ValueError, match=said):
            tc.method("sampler", **wrong)
    for measure, floor in itertools.product(("ratio",), (0.5, 1.0)):
        assert tc.method("sampler", measure=measure, floor=floor).requires == ("logp_rollout",)


# verl's presets of rollout correction ------------------------------------------------------------

#: Preset -> (rejection sampling, importance weights), from its documentation.
PRESETS: dict[str, tuple[str | None, str | None]] = {
    "decoupled_token_is": (None, "token"),
    "decoupled_seq_is": (None, "sequence"),
    "decoupled_token_icepop": (None, "0.5_5.0"),
    "decoupled_seq_is_rs": ("seq_sum_k1 0.5_2.0", "sequence"),
    "decoupled_geo_rs": ("seq_mean_k1 0.999_1.001", None),
    "decoupled_geo_rs_seq_tis": ("seq_mean_k1 0.999_1.001", "sequence"),
    "decoupled_geo_rs_token_tis": ("seq_mean_k1 0.999_1.001", "token"),
    "decoupled_k3_rs": ("seq_mean_k3 0.01", None),
    "decoupled_k3_rs_seq_tis": ("seq_mean_k3 0.01", "sequence"),
    "decoupled_k3_rs_token_tis": ("seq_mean_k3 0.01", "token"),
    "bypass_ppo_clip": (None, None),
    "bypass_ppo_clip_geo_rs": ("seq_mean_k1 0.999_1.001", None),
    "bypass_ppo_clip_k3_rs": ("seq_mean_k3 0.01", None),
    "bypass_pg_is": (None, "sequence"),
    "bypass_pg_token_icepop": (None, "0.5_5.0"),
    "bypass_pg_geo_rs": ("seq_mean_k1 0.999_1.001", None),
    "bypass_pg_geo_rs_seq_tis": ("seq_mean_k1 0.999_1.001", "sequence"),
    "bypass_pg_geo_rs_token_tis": ("seq_mean_k1 0.999_1.001", "token"),
}


def of_verl(name: str, batch: tc.TokenBatch) -> Tensor:
    """The preset's gradient in each log-probability, from the formulas of verl's documentation."""
    rejection, weights = PRESETS[name]
    mask, rollout = batch.mask, batch.given("logp_rollout")
    logp = batch.logp.clone().requires_grad_()
    old = rollout if name.startswith("bypass") else batch.logp_old
    ours = logp.detach() if name.startswith("bypass") else batch.logp_old
    x = torch.where(mask, ours - rollout, 0.0).clamp(-20, 20)
    keep = mask
    if rejection is not None:
        (over, k), bound = rejection.split()[0][4:].split("_"), rejection.split()[1]
        values = {"k1": -x, "k2": x**2 / 2, "k3": x.exp() - 1 - x}[k]
        found = torch.where(mask, values, 0.0).sum(dim=1, keepdim=True)
        found = found / mask.sum(dim=1, keepdim=True).clamp(min=1) if over == "mean" else found
        if k == "k1":
            low, high = (torch.tensor(float(b)).double().log() for b in bound.split("_"))
            keep = keep & (found >= low) & (found <= high)
        else:
            keep = keep & (found <= float(bound))
    weight = torch.ones_like(x)
    if weights == "sequence":
        weight = x.sum(dim=1, keepdim=True).clamp(-20, 20).exp().clamp(max=2.0)
    elif weights == "token":
        weight = x.exp().clamp(max=2.0)
    elif weights is not None:
        weight = torch.where((x.exp() >= 0.5) & (x.exp() <= 5.0), x.exp(), 0.0)
    a = batch.advantages
    if "_pg_" in name:
        loss = -a * logp * weight
    else:
        weight = torch.ones_like(weight) if name.startswith("bypass") else weight
        ratio = torch.where(mask, logp - old, 0.0).exp()
        clipped = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
        loss = torch.where(a < 0, torch.minimum(clipped, -3 * a), clipped) * weight
    return -torch.autograd.grad(torch.where(keep, loss, 0.0).sum(), logp)[0]


def test_every_preset_of_verl_has_a_row() -> None:
    rows = {
        row.name for _, row in rosetta_cases.rows("package", "verl") if rosetta_cases.is_preset(row)
    }
    assert rows == {*PRESETS} and len(rows) == 18


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_of_verl_has_the_gradient_of_its_formulas(name: str) -> None:
    batch = rosetta_cases.near_tokens()
    want = of_verl(name, batch)
    got = tc.coefficient(tc.preset("verl", name), batch)
    assert want.any() and (PRESETS[name][0] is None or not want[batch.mask].all())
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-8)  # verl's weights stop at e^-20
