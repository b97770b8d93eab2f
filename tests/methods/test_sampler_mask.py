"""A token that a mask against the sampler drops has no gradient, in any composition."""

import itertools
from typing import Any

import pytest
import torch
from method_cases import random_batch

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
