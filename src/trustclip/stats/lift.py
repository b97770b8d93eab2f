"""Lift: how much more often than average the members of a category are hit, with an interval."""

from math import exp, log, nan, sqrt

import numpy as np

from trustclip.stats.confidence import Interval, t_quantile
from trustclip.stats.scores import Floats, Ints

#: Columns of the sums over clusters: of hits x and size n of a category, and those of all, X and N.
_X, _N, _XX, _NN, _XN, _XX_ALL, _XN_ALL, _NX_ALL, _NN_ALL, _CLUSTERS, _HIT = range(11)


class Lifts:
    r"""Lifts of many categories, from clusters that are added one by one and not kept.

    Among $N$ items $X$ are hit; of the $n$ items of a category, $x$. Its lift is $(x/n)/(X/N)$: 1
    if it is hit as often as all items. Items come in clusters (the tokens of one completion), which
    are independent while items of one are not. The bounds are those of its logarithm, linearised:
    with $z_i = x_i/x - n_i/n - X_i/X + N_i/N$ of cluster $i$ and $m$ clusters, its variance is
    $\frac{m}{m-1}\sum_i z_i^2$, and Student's quantile has one degree of freedom less than there
    are clusters with the category.

    Example:
      >>> lifts = Lifts()
      >>> for i in range(30):  # category 0 is hit in every second cluster, category 1 never
      ...     lifts.add(np.array([0, 1]), np.array([2, 8]), np.array([i % 2, 0]))
      >>> lift = lifts.lift(0)
      >>> print(f"{lift.value:.1f}, {lifts.hits(0)} of {lifts.size(0)}")
      5.0, 15 of 60
      >>> print(lifts.lift(1).value, lifts.most_hit(3))
      0.0 [0]
    """

    def __init__(self) -> None:
        self._sums = np.zeros((0, _HIT + 1))
        self._all = np.zeros(_HIT + 1)

    def add(self, categories: Ints, sizes: Ints, hits: Ints) -> None:
        """Add one cluster: its categories (numbers from 0, each once), their items, those hit."""
        short = int(categories.max(initial=-1)) + 1 - len(self._sums)
        if short > 0:
            room = max(short, len(self._sums))
            self._sums = np.concatenate([self._sums, np.zeros((room, _HIT + 1))])
        x, n = hits.astype(float), sizes.astype(float)
        self._sums[categories] += _terms(x, n, x.sum(), n.sum())
        whole = _terms(x.sum(keepdims=True), n.sum(keepdims=True), x.sum(), n.sum())
        self._all += whole[0]

    def most_hit(self, count: int) -> list[int]:
        """The categories with the most hits, the first first; none without a hit."""
        order = np.argsort(-self._sums[:, _X], kind="stable")[:count]
        return [int(i) for i in order if self._sums[i, _X] > 0]

    def hits(self, category: int) -> int:
        """Hit items of a category."""
        return int(self._sums[category, _X])

    def size(self, category: int) -> int:
        """Items of a category."""
        return int(self._sums[category, _N])

    @property
    def items(self) -> int:
        """Items of all categories."""
        return int(self._all[_N])

    @property
    def share(self) -> float:
        """Share of all items that are hit; nan without items."""
        return float(self._all[_X] / self._all[_N]) if self._all[_N] else nan

    def lift(self, category: int, level: float = 0.95) -> Interval:
        """Lift of a category; its bounds are nan where fewer than two clusters of it are hit."""
        own, every = self._sums[category], self._all
        if not every[_X] or not own[_N]:
            return Interval(nan, nan, nan)
        value = (own[_X] / own[_N]) / (every[_X] / every[_N])
        if own[_HIT] < 2:
            return Interval(float(value), nan, nan)
        # (x_i/x - n_i/n - X_i/X + N_i/N) squared and summed over clusters.
        a, b, c, d = 1 / own[_X], -1 / own[_N], -1 / every[_X], 1 / every[_N]
        squares = a * a * own[_XX] + b * b * own[_NN] + c * c * every[_XX] + d * d * every[_NN]
        products = a * b * own[_XN] + a * c * own[_XX_ALL] + a * d * own[_XN_ALL]
        products += b * c * own[_NX_ALL] + b * d * own[_NN_ALL] + c * d * every[_XN]
        m = every[_CLUSTERS]
        spread = sqrt(max(squares + 2 * products, 0.0) * m / (m - 1))
        half = t_quantile(level, own[_CLUSTERS] - 1) * spread
        return Interval(float(value), exp(log(value) - half), exp(log(value) + half))


def _terms(x: Floats, n: Floats, every_x: float, every_n: float) -> Floats:
    """What a cluster adds to the sums of its categories. Shape [categories, columns]."""
    products = [x, n, x * x, n * n, x * n, x * every_x, x * every_n, n * every_x, n * every_n]
    return np.stack([*products, (n > 0).astype(float), (x > 0).astype(float)], axis=1)
