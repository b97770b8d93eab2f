"""Lifts: the definition on whole data, and intervals that cover where clusters differ."""

import math

import numpy as np
import pytest

from trustclip.stats.lift import Lifts


def clusters(random, count=80):
    """(sizes, hits) of three categories; the true lift of the first is 4.

    Clusters differ in length, in how often they use the first category, and in how often they are
    hit at all, so that items of one are alike.
    """
    for _ in range(count):
        length = int(random.integers(20, 200))
        often = random.beta(2, 18)
        first = random.binomial(length, often)
        second = random.binomial(length - first, 0.3)
        base = random.gamma(4, 0.01 / 4)
        sizes = np.array([first, second, length - first - second])
        yield sizes, random.binomial(sizes, np.minimum([8 * base, base, base], 1))


TRUE = 8 / (0.1 * 8 + 0.9)


def added(data):
    lifts = Lifts()
    for sizes, hits in data:
        there = np.flatnonzero(sizes)
        lifts.add(there, sizes[there], hits[there])
    return lifts


def test_the_sums_are_those_of_the_definition():
    data = list(clusters(np.random.default_rng(0)))
    lifts = added(data)
    n = np.array([sizes for sizes, _ in data], dtype=float)
    x = np.array([hits for _, hits in data], dtype=float)
    for category in range(3):
        own_x, own_n, all_x, all_n = x[:, category], n[:, category], x.sum(1), n.sum(1)
        lift = lifts.lift(category)
        assert lift.value == pytest.approx(
            (own_x.sum() / own_n.sum()) / (all_x.sum() / all_n.sum())
        )
        z = own_x / own_x.sum() - own_n / own_n.sum() - all_x / all_x.sum() + all_n / all_n.sum()
        spread = math.sqrt(len(z) / (len(z) - 1) * (z**2).sum())
        from scipy.stats import t

        half = t.ppf(0.975, (own_n > 0).sum() - 1) * spread
        assert math.log(lift.high / lift.low) == pytest.approx(2 * half, rel=1e-9)
    assert lifts.share == pytest.approx(x.sum() / n.sum())
    assert lifts.most_hit(2) == list(np.argsort(-x.sum(0), kind="stable")[:2])


def test_intervals_cover():
    random = np.random.default_rng(1)
    covered = total = 0
    for _ in range(600):
        lift = added(clusters(random)).lift(0)
        total += 1
        covered += lift.low <= TRUE <= lift.high
    # 95 % of 600 is 570, with a standard deviation of 5.3.
    assert 0.92 <= covered / total <= 0.985


def test_what_is_hit_in_one_cluster_alone_has_no_interval():
    lifts = Lifts()
    lifts.add(np.array([0, 5]), np.array([3, 4]), np.array([3, 0]))
    lifts.add(np.array([5]), np.array([4]), np.array([0]))
    lift = lifts.lift(0)
    assert lift.value == pytest.approx((3 / 3) / (3 / 11))
    assert math.isnan(lift.low) and math.isnan(lift.high)
    assert math.isnan(lifts.lift(3).value)
    empty = Lifts()
    assert empty.most_hit(5) == [] and math.isnan(empty.share)
