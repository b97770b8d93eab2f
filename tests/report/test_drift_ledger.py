"""The drift of an update, on the page, in words, and beside shadows."""

from dataclasses import replace

import pytest
from method_cases import candidates_for, random_batch

import trustclip as tc
from trustclip.constraints.drift import drift_metrics
from trustclip.constraints.loss import gradient
from trustclip.constraints.shadow import Shadows


def test_shadows_have_the_drift_that_they_would_have_made() -> None:
    batch = random_batch(tc.method("icepop"))
    batch = replace(batch, candidates=candidates_for(batch.logp_old))
    shadows = Shadows([tc.method("reinforce"), tc.method("atr"), tc.method("gspo")])
    c, surrogate = gradient(tc.method("clip"), batch)
    for _ in range(2):  # sums add up
        shadows.add(batch, c, surrogate.kept)
    seen = shadows.read()
    for name in ("reinforce", "atr"):
        found = drift_metrics(batch, tc.method(name))
        for key in ("share", "pull", "pull_positive", "pull_negative"):
            total, count = found[f"drift/{key}"]
            assert seen[f"shadow/{name}/drift/{key}"] == pytest.approx((total / count).item())
    assert not any(key.startswith("shadow/gspo/drift") for key in seen)
    plain = Shadows([tc.method("atr")])
    plain.add(replace(batch, candidates=None), c, surrogate.kept)
    assert not any("drift" in key for key in plain.read())


def test_shadows_of_an_earlier_checkpoint_go_on() -> None:
    batch = random_batch(tc.method("clip"))
    c, surrogate = gradient(tc.method("clip"), batch)
    shadows = Shadows([tc.method("atr")])
    shadows.add(batch, c, surrogate.kept)
    state = shadows.state_dict()
    earlier = Shadows([tc.method("atr")])
    earlier.load_state_dict({**state, "sums": state["sums"][:3]})
    assert earlier.read() == shadows.read()
