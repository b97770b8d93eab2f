"""Guards over generations: each on series that have the failure, and on series that have not."""

import math
import random

import numpy as np
import pytest
from test_guards import feed, guards_and_said

from trustclip.findings.live import trends

UPDATES = 4  # of a generation


def rows(generations):
    """Log rows of a run: the first of each generation has the metrics of its completions."""
    for values in generations:
        for update in range(UPDATES):
            begins = {"frac_reward_zero_std": 0.2, "reward": 0.5} if update == 0 else {}
            yield {**begins, **values, "loss": 0.1}


def alarms(metric, series):
    guards, said = guards_and_said()
    feed(guards, rows([{metric: value} for value in series]))
    return said


def noisy(values, sd=0.2, seed=0):
    rng = random.Random(seed)
    return [v * math.exp(sd * rng.gauss(0, 1)) for v in values]


RISING = noisy([1e-3 * 1.04**i for i in range(60)])
FLAT = noisy([1e-3] * 60)


def test_a_mismatch_that_grows_is_told_once_and_in_time() -> None:
    said = alarms(trends.MISMATCH, RISING)
    assert [name for _, name, _ in said] == ["mismatch_drift"]
    step, _, text = said[0]
    assert 15 * UPDATES < step < 45 * UPDATES and "agree less and less" in text
    assert alarms(trends.MISMATCH, FLAT) == []


def test_fresh_samples_that_jump_away_are_told_at_once() -> None:
    """The numbers of a real engine whose transfer left one layer out; and of one that was well."""
    exact = [9.1e-6, 9.4e-6, 8.8e-6]
    (told,) = alarms(trends.FRESH, [*exact, 8.2e-3, 9.7e-3])
    assert told[:2] == (3 * UPDATES + 1, "weight_sync")
    assert "0.0082 nats per token, 872 times as much as in any generation before (3)" in told[2]
    assert alarms(trends.FRESH, [0.035, 0.047, 0.033, 0.041]) == []  # half precision
    assert alarms(trends.FRESH, [0.033, 0.108])[0][1] == "weight_sync"  # and no transfer
    assert alarms(trends.FRESH, [0.1, 0.033, 0.108]) == []  # no further than once before
    assert alarms(trends.FRESH, [1e-6, 2e-5, 3e-5]) == []  # rounding
    assert alarms(trends.FRESH, [v * 30 for v in FLAT]) == []


def test_an_effective_sample_size_that_falls() -> None:
    said = alarms(trends.ESS, [0.9 * 0.96**i * v / 1e-3 for i, v in enumerate(FLAT)])
    assert [name for _, name, _ in said] == ["ess_fall"] and "few completions" in said[0][2]
    assert alarms(trends.ESS, [min(900 * v, 1.0) for v in FLAT]) == []
    assert alarms(trends.ESS, [0.1 * 1.04**i for i in range(50)]) == []  # it recovers


def test_within_a_generation_the_sample_size_falls_and_that_is_no_trend() -> None:
    """The policy moves away from the sampler with every update, and is back with new samples."""
    guards, said = guards_and_said()
    for generation in range(60):
        for update, ess in enumerate((0.99, 0.6, 0.3, 0.1)):
            begins = {"frac_reward_zero_std": 0.0} if update == 0 else {}
            guards.read(UPDATES * generation + update, {**begins, trends.ESS: ess})
    assert said == []


def test_an_entropy_that_rises() -> None:
    said = alarms(trends.ENTROPY, noisy([0.3 * 1.03**i for i in range(60)], sd=0.05))
    assert [name for _, name, _ in said] == ["entropy_rise"] and "random" in said[0][2]
    # Three times as high, but from nothing to next to nothing; and one that comes back.
    assert alarms(trends.ENTROPY, noisy([0.02 * 1.03**i for i in range(60)], sd=0.05)) == []
    assert (
        alarms(trends.ENTROPY, noisy([0.4 + 0.05 * math.sin(i / 4) for i in range(60)], 0.1)) == []
    )


def test_the_trend_is_that_of_least_squares_with_correlated_errors() -> None:
    """Against NumPy's fit; in white noise the statistic has the variance of a normal one."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        y = 0.3 * rng.standard_normal(60)
        found.append(trends.trend(np.exp(y).tolist())[1])
    assert np.std(found) == pytest.approx(1.0, abs=0.15) and abs(np.mean(found)) < 0.15
    y = 0.05 * np.arange(40) + 0.3 * rng.standard_normal(40)
    factor, _ = trends.trend(np.exp(y).tolist())
    assert math.log(factor) == pytest.approx(39 * np.polyfit(np.arange(40), y, 1)[0])
    assert trends.trend([1.0] * 5) == (1.0, 0.0)
    assert trends.trend([2.0] * 30)[1] == 0.0


def test_a_resumed_run_follows_the_same_series() -> None:
    import json

    told = list(rows([{trends.MISMATCH: v} for v in RISING]))
    whole, said = guards_and_said()
    feed(whole, told)
    for cut in (30, 101):
        first, _ = guards_and_said()
        feed(first, told[:cut])
        resumed, later = guards_and_said()
        for name, value in json.loads(json.dumps(first.state()["attributes"])).items():
            setattr(resumed, name, value)
        feed(resumed, told[cut:], start=cut + 1)
        assert later == [one for one in said if one[0] > cut]
        assert resumed.state() == whole.state()
