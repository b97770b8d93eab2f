"""A method measured from the sampler, or from the line between it and the current policy."""

import pytest
import torch
from method_cases import random_batch

import trustclip as tc
from trustclip.engines.limits import ENGINES, refusal


def test_it_is_refused_where_nobody_knows_the_lag() -> None:
    method = tc.method("anchored", anchor="interpolated")
    assert refusal(method, ENGINES["TRL"]) is None
    for engine in ("verl", "prime-rl", "SkyRL"):
        text = refusal(method, ENGINES[engine])
        assert text is not None and "needs `lag`" in text and "trustclip.engines.trl" in text
    batch = random_batch(tc.method("tis"))
    with pytest.raises(ValueError, match="needs `lag` in the batch"):
        tc.coefficient(method, batch)
    with pytest.raises(ValueError, match="`ceiling` must be a ratio above 0, got -1"):
        batch.capped(-1)
    with pytest.raises(ValueError, match="'clip_cov' measures a generation"):
        tc.method("anchored", inner="clip_cov", anchor="interpolated")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_sampler_is_the_anchor_to_the_last_bit(dtype: torch.dtype) -> None:
    """Where the new policy is the sampler, the log-ratio is 0, however far the old one is."""
    generator = torch.Generator().manual_seed(0)
    new = -torch.rand(50, 40, generator=generator).to(dtype) * 9
    old = (new - 3 * torch.rand(50, 40, generator=generator).to(dtype)).clamp(max=0)
    rollout = new.clone()
    rollout[:, ::7] = torch.nan
    ones, mask = torch.ones_like(new), torch.ones(50, 40, dtype=torch.bool)
    moved = tc.TokenBatch(new, old, ones, mask, logp_rollout=rollout).against("rollout")
    none = rollout.isnan()
    assert not moved.log_ratio[~none].any()
    assert torch.equal(moved.logp_old[none], old[none])


def test_what_does_nothing_where_old_policy_and_sampler_are_one_says_so_by_a_trait() -> None:
    weighs = tc.Trait.WEIGHS_OLD_POLICY
    for name in ("tis", "icepop", "kpop"):
        assert weighs in tc.method(name).traits
        assert weighs not in tc.method("both", first=name).traits  # its part is named
        found = refusal(tc.method("both", first=name), ENGINES["prime-rl"])
        assert found is not None and f"'{name}' would do nothing" in found
    for name in ("icepop", "kpop"):
        method = tc.method(name, policy="new")
        assert weighs not in method.traits and refusal(method, ENGINES["prime-rl"]) is None
