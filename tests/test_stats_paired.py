"""Paired tests, runs, corrections and power, against scipy.stats and sums of squares."""

from math import inf, isnan, nan, sqrt

import numpy as np
import pytest
from scipy import stats as scipy_stats
from simulated_answers import crossed_seeds, random_answers, rows, variance_parts

from trustclip.stats import (
    Budget,
    Difference,
    Required,
    RunSummary,
    Tally,
    align,
    compare,
    holm,
    mean_interval,
    paired_difference,
    pass_at_k,
    pass_interval,
    required,
    tally,
    verdict,
    welch,
)
from trustclip.stats.paired import _bootstrap_bounds

# Paired difference


def test_bootstrap_interval_is_students_for_many_problems():
    a, b = random_answers(7, 400, mean=0.5), random_answers(8, 400, mean=0.5)
    d = a.mean(axis=1) - b.mean(axis=1)
    ours = paired_difference(a, b)
    theirs = scipy_stats.ttest_1samp(d, 0)
    interval = theirs.confidence_interval()
    assert ours.value == pytest.approx(d.mean())
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), abs=2e-3)
    assert ours.p == pytest.approx(theirs[1], abs=0.02)


def test_bootstrap_interval_is_as_wide_as_students_for_few_problems():
    rng = np.random.default_rng(3)
    a, b = (Tally(rng.binomial(64, 0.5, (1, 12)), np.full((1, 12), 64)) for _ in range(2))
    d = (a.right - b.right)[0] / 64
    half = scipy_stats.t.ppf(0.975, 11) * d.std(ddof=1) / sqrt(12)
    unseen = 1 - 0.025 ** (1 / 12)
    different = 12 - np.unique(d, return_counts=True)[1].max()
    opened = sqrt((different * half**2 + unseen**2) / (different + 1))
    ours = paired_difference(a, b)
    assert (ours.high - ours.low) / 2 == pytest.approx(opened, rel=0.03)


def test_resampled_spread_is_that_of_the_sample_variance():
    d = np.random.default_rng(4).normal(size=10)
    low, high = _bootstrap_bounds(d, [np.arange(10)], 1.0, 200_000, np.random.default_rng(0))
    assert (high - low) / 2 == pytest.approx(d.std(ddof=1) / sqrt(10), rel=0.02)


def test_one_differing_problem_does_not_close_the_interval():
    ours = paired_difference(rows(*[4] * 29 + [5]), rows(*[4] * 30))
    unseen = 1 - 0.025 ** (1 / 30)
    assert (ours.high - ours.low) / 2 == pytest.approx(unseen / sqrt(2), rel=0.01)


def test_paired_seeds_give_students_interval_of_the_crossed_variance():
    a, b = crossed_seeds(4, 3, 60), crossed_seeds(5, 4, 60)
    arms = [x.mean(axis=2) for x in (a, b)]
    d = arms[0].mean(axis=0) - arms[1].mean(axis=0)
    parts = [variance_parts(arm) for arm in arms]
    by_problem = d.var(ddof=1) / 60
    variance = by_problem + sum(part[1] - part[2] for part in parts)
    seeds = [3 * part[1] for part in parts]
    freedom = (by_problem + sum(seeds)) ** 2 / (
        by_problem**2 / 59 + seeds[0] ** 2 / 2 + seeds[1] ** 2 / 3
    )
    half = scipy_stats.t.ppf(0.975, freedom) * sqrt(variance)
    ours = paired_difference(a, b)
    assert (ours.high - ours.low) / 2 == pytest.approx(half)
    student = 2 * scipy_stats.t.sf(abs(d.mean()) / sqrt(variance), freedom)
    assert ours.p == pytest.approx(student)


def test_paired_macro_average_is_stratified():
    a, b = random_answers(9, 130, mean=0.5), random_answers(10, 130, mean=0.5)
    strata = ["x"] * 100 + ["y"] * 30
    d = a.mean(axis=1) - b.mean(axis=1)
    parts = [d[:100], d[100:]]
    half = 2 * sqrt(sum(p.var(ddof=1) / p.size for p in parts)) / 2
    ours = paired_difference(a, b, strata)
    assert ours.value == pytest.approx((parts[0].mean() + parts[1].mean()) / 2)
    assert (ours.high - ours.low) / 2 == pytest.approx(half, rel=0.05)


@pytest.mark.parametrize(("only_a", "only_b"), [(5, 0), (8, 2), (6, 6), (1, 0)])
def test_single_answers_give_the_exact_mcnemar_test(only_a, only_b):
    a = [[1]] * only_a + [[0]] * only_b + [[1]] * 10
    b = [[0]] * only_a + [[1]] * only_b + [[1]] * 10
    exact = scipy_stats.binomtest(only_a, only_a + only_b).pvalue
    assert paired_difference(a, b).p == pytest.approx(exact)


def test_sampled_sign_flips_agree_with_the_exact_test():
    a = [[1]] * 30 + [[0]] * 14
    b = [[0]] * 30 + [[1]] * 14
    exact = scipy_stats.binomtest(30, 44).pvalue
    assert paired_difference(a, b).p == pytest.approx(exact, abs=0.004)


def test_swapping_the_models_mirrors_the_difference():
    a, b = random_answers(11, 8), random_answers(12, 8)
    ab, ba = paired_difference(a, b), paired_difference(b, a)
    assert ba.value == pytest.approx(-ab.value)
    assert ba.p == ab.p
    assert (-ba.high, -ba.low) == pytest.approx((ab.low, ab.high), abs=0.02)


def test_equal_models_keep_an_open_interval():
    a = random_answers(13, 30)
    same = paired_difference(a, a)
    assert same.value == 0
    assert same.p == 1
    assert same.high == pytest.approx(1 - 0.025 ** (1 / 30))
    assert same.low == pytest.approx(-same.high)


def test_all_right_against_all_wrong():
    found = paired_difference(rows(*[8] * 30), rows(*[0] * 30))
    assert found.value == found.high == 1
    assert 0.85 < found.low < 0.9
    assert found.p < 0.001


def test_one_problem_decides_nothing():
    found = paired_difference([[1, 1]], [[0, 0]])
    assert (found.value, found.p) == (1, 1)
    assert isnan(found.low)
    assert isnan(found.high)


def test_same_seed_same_result():
    a, b = random_answers(14, 40), random_answers(15, 40)
    assert paired_difference(a, b) == paired_difference(a, b)
    assert paired_difference(a, b, seed=1) != paired_difference(a, b)


def test_pass_at_k_difference_and_unequal_samples():
    a, b = random_answers(16, 40, samples=8), random_answers(17, 40, samples=16)
    found = paired_difference(a, b, k=4)
    assert found.value == pytest.approx(pass_at_k(a, 4) - pass_at_k(b, 4))


def test_unmatched_problems_and_seeds_are_refused():
    with pytest.raises(ValueError, match="a has 3, b has 2"):
        paired_difference(rows(1, 2, 3), rows(1, 2))
    with pytest.raises(ValueError, match="each at least two"):
        paired_difference(np.stack([rows(1, 2)] * 3), rows(1, 2))


def test_seeds_that_differ_as_a_whole_widen_the_difference():
    base = random_answers(18, 143)
    shift = [
        np.maximum(base, random_answers(19 + s, 143, mean=m)) for s, m in enumerate((0.1, 0.5))
    ]
    seeds_a, seeds_b = np.stack(shift), np.stack([base, base])
    across = paired_difference(seeds_a, seeds_b)
    pooled = paired_difference(np.hstack(shift), np.hstack([base, base]))
    assert across.value == pytest.approx(pooled.value)
    assert across.high - across.low > 2 * (pooled.high - pooled.low)
    assert pooled.p < 0.001 < 0.05 < across.p


def test_seeds_without_any_spread():
    right, wrong = np.ones((3, 30, 4)), np.zeros((3, 30, 4))
    assert paired_difference(right, right).p == 1
    assert 0 < paired_difference(right, wrong).p < 0.001


# Runs


def test_welch_agrees_with_scipy():
    a, b = [0.21, 0.25, 0.24, 0.3], [0.2, 0.19, 0.22]
    theirs = scipy_stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval()
    ours = welch(RunSummary.of(a), RunSummary.of(b))
    assert ours.p == pytest.approx(theirs[1])
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))


def test_run_summary_uses_the_sample_std():
    scores = [1.0, 2.0, 6.0]
    summary = RunSummary.of(scores)
    assert summary.std == pytest.approx(np.std(scores, ddof=1))
    population = RunSummary.from_population_std(3.0, float(np.std(scores)), 3)
    assert population.std == pytest.approx(summary.std)
    theirs = scipy_stats.ttest_1samp(scores, 0).confidence_interval()
    ours = summary.interval()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_runs_without_spread_or_number_are_not_tested():
    flat = RunSummary(1.0, 0.0, 3)
    assert RunSummary.of([1.0, 2.0]).runs == 2
    assert isnan(welch(flat, RunSummary(2.0, 0.0, 3)).p)
    with pytest.raises(ValueError, match="at least 2 runs; got 1"):
        RunSummary.of([1.0])
    with pytest.raises(ValueError, match="at least 2 runs; got 1"):
        RunSummary(1.0, 0.1, 1)
    with pytest.raises(ValueError, match="std must be >= 0"):
        RunSummary(1.0, -0.1, 3)


def test_holm_matches_published_adjustments():
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.5, 0.9, 0.001]) == pytest.approx([1.0, 1.0, 0.003])
    assert holm([]).size == 0


def test_holm_leaves_untested_comparisons_out():
    adjusted = holm([0.04, nan, 0.01])
    assert adjusted[[0, 2]] == pytest.approx([0.04, 0.02])
    assert isnan(adjusted[1])
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        holm([1.2])


# Power and verdict


UNEVEN = rows(*[3, 7, 4, 5] * 15), rows(*[3, 3, 4, 1] * 15)
NOISE_ONLY = random_answers(30, 60, mean=0.45), random_answers(31, 60, mean=0.4)


@pytest.mark.parametrize(("a", "b"), [UNEVEN, NOISE_ONLY])
def test_required_solves_the_power_equation(a, b):
    p_a, p_b = a.mean(axis=1), b.mean(axis=1)
    d = p_a - p_b
    target = (d.mean() / (scipy_stats.norm.ppf(0.975) + scipy_stats.norm.ppf(0.8))) ** 2
    total = d.var(ddof=1) / 60
    one = float((p_a * (1 - p_a) + p_b * (1 - p_b)).mean() * 8 / 7 / 60)
    floor = max(total - one / 8, 0)
    needed = required(a, b).needed
    assert needed.problems == np.ceil(60 * total / target)
    assert needed.samples == (np.ceil(one / (target - floor)) if target > floor else inf)
    assert isnan(needed.seeds)


def test_the_two_cases_above_differ_in_what_suffices():
    assert required(*UNEVEN).needed.samples < inf
    assert required(*NOISE_ONLY).needed.samples == inf


def test_more_samples_suffice_only_if_the_gain_is_even():
    a, b = rows(*[3, 4, 5, 2] * 8), rows(*[2, 4, 4, 2] * 8)
    even = required(a, b)
    assert even.have == Budget(8, 32, 1)
    assert 8 < even.needed.samples < 100
    uneven = required(rows(*[8] * 9 + [0] * 8), rows(*[0] * 8 + [8] * 8 + [0]))
    assert uneven.needed.samples == inf
    assert uneven.needed.problems > 17


def test_required_with_seeds_names_seeds():
    rng = np.random.default_rng(0)
    a = np.stack([rng.random((200, 8)) < share for share in (0.3, 0.4, 0.5)])
    b = np.stack([rng.random((200, 8)) < share for share in (0.25, 0.35, 0.45)])
    needed = required(a, b).needed
    assert needed.samples == needed.problems == inf
    assert 3 < needed.seeds < 100


def test_required_splits_the_variance_of_crossed_seeds():
    a, b = crossed_seeds(6, 3, 80), crossed_seeds(7, 3, 80)
    b = b * (np.random.default_rng(8).random(b.shape) < 0.5)
    arms = [x.mean(axis=2) for x in (a, b)]
    d = arms[0].mean(axis=0) - arms[1].mean(axis=0)
    parts = [variance_parts(arm) for arm in arms]
    cross = sum(part[2] for part in parts)
    of_seeds = sum(part[1] for part in parts) - cross
    of_rest = d.var(ddof=1) / 80
    one = sum(float((arm * (1 - arm)).mean() * 8 / 7 / 80 / 3) for arm in arms)
    target = (d.mean() / (scipy_stats.norm.ppf(0.975) + scipy_stats.norm.ppf(0.8))) ** 2
    needed = required(a, b).needed
    assert target > of_seeds + max(of_rest - one / 8, 0)
    assert needed.samples == np.ceil(one / (target - of_seeds - max(of_rest - one / 8, 0)))
    assert needed.problems == np.ceil(80 * of_rest / (target - of_seeds))
    assert needed.seeds == np.ceil(3 * (of_seeds + cross) / (target - of_rest + cross))


def test_the_budget_at_hand_is_that_of_the_poorer_model():
    a, b = random_answers(50, 12, samples=4), random_answers(51, 12, samples=8)
    assert required(a, b).have == required(b, a).have == Budget(4, 12, 1)
    three, four = crossed_seeds(9, 3, 12), crossed_seeds(10, 4, 12)
    assert required(three, four).have == Budget(8, 12, 3)


def test_required_is_unknown_or_infinite_where_it_must_be():
    single = required([[1], [0], [1]], [[0], [0], [1]]).needed
    assert isnan(single.samples)
    assert single.problems > 3
    assert isnan(required(rows(1, 2, 3), [[0], [0], [1]]).needed.samples)
    equal = required(rows(1, 2), rows(1, 2)).needed
    assert equal == Budget(inf, inf, inf)
    assert isnan(required([[1, 0]], [[0, 0]]).needed.problems)
    assert isnan(required(rows(1, 2, 3), rows(1, 0, 2), k=8).needed.samples)


def test_more_power_or_confidence_needs_more():
    a, b = rows(*[3, 4, 5, 2] * 8), rows(*[2, 4, 4, 2] * 8)
    plain = required(a, b).needed.problems
    assert required(a, b, power=0.9).needed.problems > plain
    assert required(a, b, level=0.99).needed.problems > plain


GAP = Difference(0.0115, -0.01, 0.03, 0.3)


@pytest.mark.parametrize(
    ("difference", "needed", "sentence"),
    [
        (GAP, (70, 900, nan), "not resolvable with 8 samples; about 70 would be needed"),
        (GAP, (inf, 1234, nan), "not resolvable with 143 problems; about 1,300 would be needed"),
        (GAP, (nan, 900, nan), "not resolvable with 143 problems; about 900 would be needed"),
        (GAP, (inf, inf, 7), "not resolvable with 3 seeds; about 7 would be needed"),
        (GAP, (inf, inf, inf), "not resolvable with 8 samples on 143 problems"),
        (GAP, (8, 150, nan), "not resolvable with 143 problems; about 150 would be needed"),
        (GAP, (1, 2, nan), "not resolvable with 8 samples on 143 problems"),
        (
            Difference(0.0, -0.1, 0.1, 1.0),
            (inf, inf, inf),
            "no difference observed with 8 samples on 143 problems",
        ),
        (Difference(0.05, 0, 0.1, 0.05), (1, 1, 1), "A is better than B by 5.0 points (p = 0.05)"),
        (Difference(-0.1, 0, 0, 0.01), (1, 1, 1), "B is better than A by 10.0 points (p = 0.01)"),
        (
            Difference(0.5, nan, nan, nan),
            (nan, nan, nan),
            "not resolvable with 8 samples on 143 problems",
        ),
    ],
)
def test_verdicts(difference, needed, sentence):
    assert verdict(difference, Required(Budget(8, 143, 3), Budget(*needed))) == sentence


def test_compare_corrects_for_the_family_and_says_so():
    runs = {name: random_answers(40, 60, mean=0.4) for name in ("clip", "same")}
    runs["better"] = np.maximum(runs["clip"], random_answers(41, 60, mean=0.4))
    runs["noise"] = random_answers(42, 60, mean=0.4)
    table = compare(runs)
    assert [row.name for row in table] == list(runs)
    assert (table[0].difference, table[0].verdict) == (None, "reference")
    raw = [row.difference.p for row in table[1:] if row.difference]
    assert [row.p_adjusted for row in table[1:]] == pytest.approx(holm(raw).tolist())
    assert table[1].verdict == "no difference observed with 8 samples on 60 problems"
    assert table[2].verdict.startswith("better is better than clip by ")
    assert table[3].verdict.startswith("not resolvable with ")
    assert table[2].score == mean_interval(runs["better"])
    budget = required(runs["noise"], runs["clip"], level=1 - 0.05 / 3)
    assert table[3].difference is not None
    assert table[3].verdict == verdict(table[3].difference, budget)
    assert table[3].verdict != verdict(table[3].difference, required(runs["noise"], runs["clip"]))


def test_compare_by_pass_at_k_and_with_one_run():
    a, b = random_answers(43, 30), random_answers(44, 30)
    table = compare({"a": a, "b": b}, k=4)
    assert table[1].score == pass_interval(b, 4)
    assert table[1].difference == paired_difference(b, a, k=4)
    with pytest.raises(ValueError, match="at least 2 runs"):
        compare({"a": a})


def test_align_orders_by_the_first_run_and_names_strangers():
    problems, runs = align({"a": {"p": [1], "q": [0]}, "b": {"q": [1], "p": [0]}})
    assert problems == ["p", "q"]
    assert runs == {"a": [[1], [0]], "b": [[0], [1]]}
    with pytest.raises(ValueError, match=r"a and b must hold the same problems; 2 .* only: q, r"):
        align({"a": {"p": [1], "q": [0]}, "b": {"p": [1], "r": [0]}})


def test_align_turns_seeds_outwards():
    _, runs = align({"a": {"p": [[1, 0], [1]], "q": [[0], [0, 1]]}})
    assert tally(runs["a"]).right.tolist() == [[1, 0], [1, 1]]
    with pytest.raises(ValueError, match="same number of seeds"):
        align({"a": {"p": [[1], [1]], "q": [[0]]}})
