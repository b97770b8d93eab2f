"""The drift of an update, on the page, in words, and beside shadows."""

from dataclasses import replace
from pathlib import Path

import pytest
from golden_runs import DRIFT, SAMPLER, rows, write
from method_cases import candidates_for, random_batch

import trustclip as tc
from trustclip.constraints.drift import drift_metrics
from trustclip.constraints.loss import gradient
from trustclip.constraints.shadow import Shadows
from trustclip.report.collect import collect
from trustclip.report.console import explain
from trustclip.report.page import render


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


def test_the_ledger_is_on_the_page_and_in_words(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rows(**SAMPLER, **DRIFT))
    text = " ".join(explain(run))
    assert "The drift, which holds no reward, was 5 % of the squared update" in text
    assert "towards the sampler, by 0.0003 nats" in text
    page = render(collect([run]), "t")
    assert "Drift and signal over updates" in page and "Pull towards the sampler" in page
    assert "drift %" in page and "-0.0002" in page
    without = write(tmp_path / "other", rows(**SAMPLER))
    assert "drift" not in " ".join(explain(without)).lower()
    assert "Drift and signal" not in render(collect([without]), "t")
