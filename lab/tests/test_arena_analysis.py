"""The arena's statistics: published values, planted effects, and what they must not find."""

import numpy as np
import pytest
from arena_analysis import (
    Question,
    Runs,
    answers,
)
from arena_scores import improvement, profile
from arena_tuning import at_equal, width_effects
from made_up_runs import EFFECTS, table
from paired_rates import mcnemar, paired_rates

from trustclip.stats import RunSummary
from trustclip_lab.stats.aggregates import interquartile_interval, interquartile_mean
from trustclip_lab.stats.equivalence import contrasts, equivalence_p, paired_runs

# Eleven runs in three tasks; what rliable 1.2.0 makes of them stands in the tests.
A = np.array([
    [0.626, 0.666, 0.266], [0.528, 0.378, 0.36], [0.214, 0.508, 0.533], [0.247, 0.35, 0.584],
    [0.324, 0.361, 0.747], [0.583, 0.818, 0.298], [0.317, 0.21, 0.483], [0.183, 0.305, 0.232],
    [0.57, 0.494, 0.377], [0.858, 0.227, 0.267], [0.587, 0.49, 0.243],
])  # fmt: skip
B = np.array([
    [0.275, 0.104, 0.443], [0.443, 0.413, 0.435], [0.36, 0.311, 0.466], [0.492, 0.252, 0.418],
    [0.245, 0.268, 0.623], [0.137, 0.42, 0.256], [0.34, 0.301, 0.39], [0.353, 0.756, 0.294],
    [0.138, 0.148, 0.328], [0.489, 0.631, 0.419], [0.534, 0.458, 0.363],
])  # fmt: skip
TASKS_A, TASKS_B = ([x[:, [i]] for i in range(3)] for x in (A, B))
# Statsmodels 0.15 (`DescrStatsW`) has the values of their tests.
SOME = [0.012, -0.004, 0.009, 0.003, -0.001, 0.006, 0.011, -0.002]


def test_aggregates_are_those_of_rliable() -> None:
    assert interquartile_mean(A) == pytest.approx(0.40841176470588236)
    assert interquartile_interval(TASKS_B).value == pytest.approx(0.37094117647058816)
    assert improvement(TASKS_A, TASKS_B).value == pytest.approx(0.5702479338842975)
    above = [found.value for found in profile(TASKS_A, np.array([0.2, 0.4, 0.6]))]
    assert above == pytest.approx([(threshold < A).mean() for threshold in (0.2, 0.4, 0.6)])


def others(ours: np.ndarray, theirs: np.ndarray, seeds: np.ndarray) -> float:
    """Chance of ours above theirs, among pairs of two seeds."""
    won = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
    return float(won[seeds[:, None] != seeds].mean())


def test_bootstrap_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(5)
    means, chances = [], []
    for _ in range(4000):
        drawn = [rng.integers(0, 11, 11) for _ in range(3)]
        means.append(interquartile_mean(np.concatenate([A[d, i] for i, d in enumerate(drawn)])))
        chances.append(np.mean([others(A[d, i], B[d, i], d) for i, d in enumerate(drawn)]))
    chances = np.array(chances) - np.mean(chances) + 0.5702479338842975
    for found, drawn in (
        (interquartile_interval(TASKS_A), means),
        (improvement(TASKS_A, TASKS_B), chances),
    ):
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert found.low == pytest.approx(low, abs=0.012)
        assert found.high == pytest.approx(high, abs=0.012)


def test_equivalence_has_the_values_of_statsmodels() -> None:
    summary = RunSummary.of(SOME)
    assert equivalence_p(summary, 0.01) == pytest.approx(0.016934796224259765)
    found = paired_runs(summary)
    assert found.p == pytest.approx(0.09290918011457137)
    assert (found.low, found.high) == pytest.approx((-0.0009180894165914683, 0.009418089416591469))


def test_identical_runs_are_equivalent_and_no_difference() -> None:
    none = RunSummary(0.0, 0.0, 24)
    assert paired_runs(none) == type(paired_runs(none))(0.0, 0.0, 0.0, 1.0)
    assert contrasts([none], 0.01)[0].conclusion == "equivalent"
    always = RunSummary(0.02, 0.0, 24)
    assert (paired_runs(always).p, equivalence_p(always, 0.01)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("pair", "p"), [((1, 7), 0.0703125), ((3, 12), 0.03515625), ((0, 6), 0.03125), ((5, 5), 1.0)]
)
def test_mcnemar_is_exact(pair: tuple[int, int], p: float) -> None:
    assert mcnemar(*pair) == pytest.approx(p)
    assert mcnemar(*pair[::-1]) == pytest.approx(p)


# Examples of Newcombe (1998), method 10: cells e, f, g, h and the bounds.
@pytest.mark.parametrize(
    ("cells", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((54, 0, 0, 0), -0.0664, 0.0664),
    ],
)
def test_paired_rates_are_those_of_newcombe(
    cells: tuple[int, int, int, int], low: float, high: float
) -> None:
    e, f, g, h = cells
    ours = [1] * e + [1] * f + [0] * g + [0] * h
    theirs = [1] * e + [0] * f + [1] * g + [0] * h
    found = paired_rates(ours, theirs)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


@pytest.fixture(scope="module")
def runs() -> Runs:
    return table()


def test_planted_effects_are_found_and_the_twin_is_not(runs: Runs) -> None:
    questions = [Question("", name, "plain") for name in EFFECTS if name != "plain"]
    found = {a.question.ours: a for a in answers(runs.where(stage="test"), questions)}
    assert found["twin"].contrast.difference == type(found["twin"].contrast.difference)(0, 0, 0, 1)
    assert found["twin"].better.value == 0.5
    words = {name: answer.contrast.conclusion for name, answer in found.items()}
    assert words == {
        "twin": "equivalent", "close": "equivalent", "better": "larger", "none": "smaller",
    }  # fmt: skip
    for name in ("close", "better"):
        difference = found[name].contrast.difference
        assert difference.low < EFFECTS[name] < difference.high
    assert found["none"].collapse.low < 0.2 < found["none"].collapse.high
    assert found["none"].seeds == 64


def test_a_threshold_is_not_chosen_on_the_seed_it_is_judged_by() -> None:
    """Where rates differ by noise alone, the best of many is no better than the others."""
    rng = np.random.default_rng(3)
    rows = [
        (task, f"c-{w}", float(w), rate, seed, 0.5 + 0.1 * rng.standard_normal())
        for task in "abcdefgh" for w in (1, 2, 3) for rate in range(1, 1 + (20 if w == 1 else 1))
        for seed in range(40)
    ]  # fmt: skip
    names = ("task", "label", "width", "learning_rate", "seed", "end")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    few = Runs({**columns, "depth": [4] * len(rows), "constraint": ["c"] * len(rows)})
    many_rates, _, _ = width_effects(few)["c"]
    assert many_rates.low < 0 < many_rates.high  # the best of 20 on the same seeds is +0.03


def test_equal_threshold_is_not_equal_width(runs: Runs) -> None:
    """A constraint whose thresholds are twice as wide is no better at the same distance moved."""
    plain = runs.where(stage="tuning", constraint="plain")
    wide = Runs({**plain.columns, "width": plain["width"] / 2})  # the same under other names
    found = at_equal(wide, plain, "k3")
    assert found is not None
    assert found.mean == pytest.approx(0, abs=1e-12)
