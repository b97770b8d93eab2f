"""Scores and intervals, against scipy.stats and brute force."""

import subprocess
import sys
from itertools import combinations, pairwise
from math import isnan, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from simulated_answers import crossed_seeds, random_answers, rows, variance_parts

from trustclip.stats import (
    Interval,
    Tally,
    mean_curve,
    mean_interval,
    paired_difference,
    pass_curve,
    pass_interval,
    rate_interval,
    tally,
)
from trustclip.stats.confidence import mean_variance
from trustclip.stats.scores import samples

# Scores


def mean_at_k(*data) -> float:
    return mean_interval(*data).value


def pass_at_k(*data) -> float:
    return pass_interval(*data).value


def test_mean_and_macro_average_of_the_papers_base_model():
    counts = {"amc23": (190, 664, 83), "aime24": (16, 240, 30), "aime25": (10, 240, 30)}
    right, strata = [], []
    for name, (correct, _, problems) in counts.items():
        right += [correct // problems + (i < correct % problems) for i in range(problems)]
        strata += [name] * problems
    assert round(100 * mean_at_k(rows(*right), strata), 2) == 13.15
    assert mean_at_k(rows(*right)) == pytest.approx(216 / 1144)


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(case):
    n, right = case
    answers = [1] * right + [0] * (n - right)
    for k in range(1, n + 1):
        subsets = list(combinations(answers, k))
        share = sum(any(s) for s in subsets) / len(subsets)
        assert pass_at_k([answers], k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_is_stable_for_many_samples():
    answers = rows(1, k=10_000)
    assert pass_at_k(answers, 100) == pytest.approx(0.01, rel=1e-12)
    assert pass_at_k(rows(9_950, k=10_000), 60) == 1.0


def test_curves_agree_with_their_points():
    answers = random_answers(0, 30)
    curve = pass_curve(answers)
    assert curve == pytest.approx([pass_at_k(answers, k) for k in range(1, 9)])
    assert (np.diff(curve) >= 0).all()
    assert mean_curve(answers) == pytest.approx([answers[:, :k].mean() for k in range(1, 9)])


def test_curves_stop_at_the_smallest_number_of_samples():
    assert len(pass_curve([[1, 0, 0], [0, 1]])) == len(mean_curve([[1, 0, 0], [0, 1]])) == 2
    assert mean_curve([[1, 0, 1], [0, 1]]).tolist() == [0.5, 0.5]


def test_unequal_numbers_of_samples_weigh_problems_equally():
    assert mean_at_k([[1], [0, 0, 0, 0]]) == 0.5
    assert mean_at_k([[[1], [0, 0]], [[1, 1], [1]]]) == 0.75


def test_tally_accepts_bools_lists_and_itself():
    counts = tally(np.array([[True, False]]))
    assert counts.right.tolist() == [[1]]
    assert counts.total.tolist() == [[2]]
    assert tally(counts) is counts


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0, 2]], "from 0 to 1.*got 2"),
        ([[0, 1], [1.5]], "problem 1 must hold only numbers from 0 to 1"),
        ([["a"]], "correct must hold only numbers from 0 to 1.*: could not convert"),
        ([[{}]], "correct must hold only numbers from 0 to 1"),
        ([[float("nan"), 1]], "only numbers from 0 to 1"),
        ([0, 1], r"shape \(2,\)"),
        ([], "shape"),
        (np.zeros((3, 0)), "shape"),
        ([[1, 0], []], "problem 1 needs at least one sample"),
        ([[[1], [0, 1]], [[1]]], "every seed needs the same problems"),
    ],
)
def test_bad_answers_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        tally(bad)


@pytest.mark.parametrize("k", [0, 3])
def test_pass_at_k_refuses_k_beyond_the_samples(k):
    with pytest.raises(ValueError, match=r"1\.\.2.*got " + str(k)):
        pass_at_k([[1, 0], [1, 0, 1]], k)


def test_tally_refuses_impossible_counts():
    with pytest.raises(ValueError, match="right <= total"):
        Tally(np.array([[9]]), np.array([[8]]))
    with pytest.raises(ValueError, match="shape"):
        Tally(np.array([[1, 2]]), np.array([[8]]))


def test_strata_must_name_every_problem():
    with pytest.raises(ValueError, match="each of the 2 problems; got 1"):
        mean_at_k([[1], [0]], ["amc"])


# Intervals


def test_single_samples_give_nearly_wilsons_interval():
    answers = np.array([[1]] * 180 + [[0]] * 420)
    ours = mean_interval(answers)
    theirs = scipy_stats.binomtest(180, 600).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=5e-4)


def test_interval_is_clustered_and_not_that_of_independent_answers():
    answers = rows(*[8] * 30 + [0] * 70)
    once = mean_interval(answers[:, :1])
    eight_times = mean_interval(answers)
    assert (eight_times.low, eight_times.high) == pytest.approx((once.low, once.high))


def test_mean_interval_is_students_where_nothing_is_extreme():
    answers = random_answers(1, 500, mean=0.5)
    scores = answers.mean(axis=1)
    half = scipy_stats.t.ppf(0.975, 499) * scores.std(ddof=1) / sqrt(500)
    ours = mean_interval(answers)
    assert ours.high - ours.low == pytest.approx(2 * half, rel=0.01)


@pytest.mark.parametrize("count", [0, 8])
def test_interval_stays_open_when_all_answers_agree(count):
    few, many = (mean_interval(rows(*[count] * n)) for n in (30, 500))
    assert 0.1 < few.high - few.low < 0.15
    assert 0 < many.high - many.low < 0.01
    assert few.value == count / 8
    assert 0 <= few.low <= few.value <= few.high <= 1


def test_one_more_right_answer_never_moves_the_bounds_down():
    bounds = [mean_interval(rows(*[1] * c + [0] * (30 - c))) for c in range(10)]
    assert all(a.low <= b.low for a, b in pairwise(bounds))


@pytest.mark.parametrize("problems", [30, 83, 128])
def test_more_right_answers_never_narrow_the_bound_beyond_that_of_none(problems):
    """With 0 right of 128 x 8 the upper bound was 3.0 %, with 1 right 1.9 %."""

    def bounds(right: int) -> Interval:
        counts = np.zeros((1, problems), int)
        counts[0, :right] = 1
        return mean_interval(Tally(counts, np.full((1, problems), 8)))

    several = [bounds(right) for right in range(12)]
    assert all(a.high <= b.high and a.low <= b.low for a, b in pairwise(several))
    right = Tally(np.full((1, problems), 8), np.full((1, problems), 8))
    assert mean_interval(right).low == pytest.approx(1 - several[0].high)


@pytest.mark.parametrize(("right", "problems"), [(0, 30), (29, 30), (2, 83)])
def test_rare_outcomes_get_the_exact_interval_of_korn_and_graubard(right, problems):
    ours = mean_interval([[1]] * right + [[0]] * (problems - right))
    share = right / problems
    scores = np.repeat([1.0, 0.0], [right, problems - right])
    u = min(right, problems - right)
    plain = share * (1 - share) / problems
    variance = scores.var(ddof=1) / problems
    variance += (plain - variance) / (u + 1)
    size = share * (1 - share) / variance if u else problems
    x = share * size
    low = scipy_stats.beta.ppf(0.025, x, size - x + 1) if x else 0
    high = scipy_stats.beta.ppf(0.975, x + 1, size - x) if x < size else 1
    assert (ours.low, ours.high) == pytest.approx((low, high))


def test_one_problem_has_no_bounds():
    for interval in (mean_interval([[1, 0]]), pass_interval([[1, 0]], 2)):
        assert isnan(interval.low)
        assert isnan(interval.high)
    assert mean_interval([[1, 0]]).value == 0.5


def test_a_benchmark_of_one_problem_has_no_bounds():
    assert isnan(mean_interval(rows(1, 2, 3), ["a", "a", "b"]).low)


def test_macro_interval_adds_the_variances_of_its_benchmarks():
    a, b = random_answers(2, 400, mean=0.5), random_answers(3, 100, mean=0.5)
    both = mean_interval(np.vstack([a, b]), ["a"] * 400 + ["b"] * 100)
    errors = [x.mean(axis=1).std(ddof=1) / sqrt(len(x)) for x in (a, b)]
    assert both.value == pytest.approx((a.mean() + b.mean()) / 2)
    half = 1.97 * sqrt(errors[0] ** 2 + errors[1] ** 2) / 2
    assert (both.high - both.low) / 2 == pytest.approx(half, rel=0.02)


def test_pass_interval_of_all_samples_is_the_mean_interval_of_solved():
    answers = random_answers(4, 60)
    solved = answers.max(axis=1, keepdims=True)
    assert pass_interval(answers, 8) == mean_interval(solved)


def test_copied_seeds_hardly_change_the_interval():
    answers = random_answers(5, 143)
    one, three = mean_interval(answers), mean_interval(np.stack([answers] * 3))
    assert three.low == pytest.approx(one.low, abs=1e-9)
    assert three.high == pytest.approx(one.high, abs=1e-9)


def test_seeds_that_differ_alone_give_students_interval_of_the_seeds():
    shares = [3, 4, 5]
    answers = np.stack([np.tile(rows(c), (400, 1)) for c in shares])
    ours = mean_interval(answers)
    spread = np.std(np.array(shares) / 8, ddof=1) / sqrt(3)
    size = 0.25 / (spread**2 + 0.25 / 400)
    t = scipy_stats.t.ppf(0.975, 2)
    half = t * sqrt(0.25 / size + t**2 / (4 * size**2)) / (1 + t**2 / size)
    assert (ours.high - ours.low) / 2 == pytest.approx(half)


def test_crossed_variance_against_sums_of_squares():
    arm = crossed_seeds(0, 4, 25).mean(axis=2)
    by_problem, by_seed, cross = variance_parts(arm)
    found = mean_variance(arm.mean(axis=0), [arm], [np.arange(25)])
    assert found.total == pytest.approx(by_problem + by_seed - cross)
    assert (found.seeds, found.cross) == pytest.approx((by_seed, cross))
    counted = 3 * by_seed
    expected = (by_problem + counted) ** 2 / (by_problem**2 / 24 + counted**2 / 3)
    assert found.freedom == pytest.approx(expected)


def test_crossed_variance_of_benchmarks_adds_up():
    arm = crossed_seeds(1, 3, 30).mean(axis=2)
    groups = [np.arange(20), np.arange(20, 30)]
    parts = [variance_parts(arm[:, group]) for group in groups]
    by_problem, cross = (sum(part[i] for part in parts) / 4 for i in (0, 2))
    averages = (arm[:, :20].mean(axis=1) + arm[:, 20:].mean(axis=1)) / 2
    by_seed = averages.var(ddof=1) / 3
    found = mean_variance(arm.mean(axis=0), [arm], groups)
    assert found.total == pytest.approx(by_problem + by_seed - cross)


def test_variance_is_never_below_that_of_its_problems_or_seeds():
    even = np.tile(crossed_seeds(2, 1, 30).mean(axis=2), (3, 1))
    opposite = np.array([[0.0, 1.0] * 10, [1.0, 0.0] * 10])
    for arm in (even, opposite):
        by_problem, by_seed, _ = variance_parts(arm)
        groups = [np.arange(arm.shape[1])]
        assert mean_variance(arm.mean(axis=0), [arm], groups).total >= max(by_problem, by_seed)


def test_wider_level_wider_interval():
    answers = random_answers(6, 50)
    assert mean_interval(answers, level=0.99).low < mean_interval(answers).low
    for level in (0, 1, 95):
        with pytest.raises(ValueError, match=f"level must be in .*; got {level}"):
            mean_interval(answers, level=level)


def test_import_needs_no_torch():
    code = "import sys, trustclip.stats; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.slow
def test_intervals_cover_and_the_test_keeps_its_size():
    rng = np.random.default_rng(0)
    covered = covered_pair = rejected = 0
    for _ in range(1000):
        chances = rng.beta(0.13 * 0.7, 0.87 * 0.7, 143)
        a, b = (Tally(rng.binomial(8, chances)[None], np.full((1, 143), 8)) for _ in range(2))
        interval = mean_interval(a)
        found = paired_difference(a, b, resamples=1000)
        covered += interval.low <= 0.13 <= interval.high
        covered_pair += found.low <= 0 <= found.high
        rejected += found.p <= 0.05
    assert 0.925 <= covered / 1000 <= 0.975
    assert 0.925 <= covered_pair / 1000 <= 0.975
    assert rejected / 1000 <= 0.065


def test_a_rate_has_clopper_and_pearsons_interval():
    for runs in (1, 3, 20):
        for hits in range(runs + 1):
            found = rate_interval(hits, runs)
            exact = scipy_stats.binomtest(hits, runs).proportion_ci(method="exact")
            assert (found.value, found.low, found.high) == pytest.approx(
                (hits / runs, exact.low, exact.high)
            )
    for hits, runs in ((0, 0), (4, 3), (-1, 3)):
        with pytest.raises(ValueError, match=f"got {hits} of {runs}"):
            rate_interval(hits, runs)


STRATA = ["a"] * 2 + ["b"] * 6
UNEVEN = rows(4, 3, 0, 1, 0, 2, 0, 0, k=4)


def test_every_score_is_the_plain_mean_over_benchmarks():
    parts = [UNEVEN[:2], UNEVEN[2:]]
    scores: tuple[Any, ...] = (
        mean_at_k,
        mean_curve,
        pass_curve,
        lambda a, s=None: pass_at_k(a, 2, s),
    )
    for score in scores:
        want = np.mean([score(part) for part in parts], axis=0)
        assert score(UNEVEN, STRATA) == pytest.approx(want)
        assert score(UNEVEN, STRATA) != pytest.approx(score(UNEVEN))


@pytest.mark.parametrize("right", [(0,) * 30, (1, *(0,) * 29), (8, 8, 1, *(0,) * 27), (4, 5) * 15])
def test_an_interval_of_wrong_answers_mirrors_that_of_right_ones(right):
    found = mean_interval(rows(*right, k=8))
    mirrored = mean_interval(rows(*(8 - r for r in right), k=8))
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high))
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_few_right_answers_of_several_seeds_have_korn_and_graubards_bounds():
    scores = np.zeros((3, 40, 8))
    for seed, problems in enumerate(((0, 1, 2), (0, 2, 3, 4, 5), (0, 6))):
        scores[seed, list(problems), :4] = 1
    found, per_problem = mean_interval(scores), scores.mean(axis=(0, 2))
    variance = mean_variance(per_problem, [scores.mean(axis=2)], [np.arange(40)])
    of_problems = mean_variance(per_problem, [], [np.arange(40)])
    worst = found.value * (1 - found.value)
    shrunk = (worst / 40 - of_problems.total) / ((per_problem > 0).sum() + 1)
    t, of_one_seed = (scipy_stats.t.ppf(0.975, df) for df in (variance.freedom, 39))
    size = worst / (variance.total + shrunk) * (of_one_seed / t) ** 2
    right, wrong = size * found.value, size * (1 - found.value)
    assert (
        0.1 < right < 5 and of_one_seed / t < 0.99
    )  # so few are right that Wilson's interval would be too narrow
    assert found.low == pytest.approx(scipy_stats.beta.ppf(0.025, right, wrong + 1))
    assert found.high == pytest.approx(scipy_stats.beta.ppf(0.975, right + 1, wrong))


def test_the_variance_is_never_less_than_one_of_its_parts():
    like_runs = np.array([[1.0, 0.0, 0.5], [1.0, 0.5, 0.0], [0.5, 0.5, 0.5]])
    for scores in (like_runs, like_runs.T):  # means of the seeds are equal, then of the problems
        of_problems, of_seeds, of_cross = variance_parts(scores)
        total = mean_variance(scores.mean(axis=0), [scores], [np.arange(3)]).total
        assert min(of_problems, of_seeds) == 0 < of_cross
        assert total == pytest.approx(max(of_problems, of_seeds))


def test_without_any_spread_the_freedom_is_that_of_the_problems():
    found = mean_variance(np.zeros(5), [], [np.arange(2), np.arange(2, 5)])
    assert (found.total, found.freedom) == (0.0, 3)


def test_samples_and_counts_are_numbers_of_their_kind():
    assert samples([[1, 0], [True, False]]).dtype == np.float64
    assert samples([[1], [0, 1]]).dtype == np.float64
    assert tally([[1, 0], [1, 1]]).right.dtype.kind == "i"
