"""Answers of an evaluation, as tables and comparisons take them."""

from trustclip.logs.answers import usual, whole

#: Two answers to each of three problems of one benchmark, eight to each of five of another.
ANSWERS, BENCHMARKS = [[1, 0]] * 3 + [[1, 0] * 4] * 5, ["amc"] * 3 + ["aime"] * 5


def test_benchmarks_of_unequal_samples_are_all_in_pass_at_k():
    assert usual(ANSWERS, BENCHMARKS) == 2
    (kept,), benchmarks = whole([ANSWERS], BENCHMARKS, 2)
    assert benchmarks == BENCHMARKS and len(kept) == 8
