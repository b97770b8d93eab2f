"""The smallest gap that a number of seeds finds: `trustclip.stats.power` the other way round."""

from math import sqrt

from scipy.special import nctdtrinc

from trustclip.stats.confidence import t_quantile


def gap_for(
    std: float, seeds: int, *, paired: bool = True, level: float = 0.95, power: float = 0.8
) -> float:
    """Smallest gap that so many seeds find: the inverse of `trustclip.stats.power.seeds_for`.

    Args:
      std: of a pair's difference, or of a run where seeds are not paired; any unit.
      seeds: at least 2.
      paired: whether runs share their seeds.
      level: confidence of the two-sided test, in (0, 1).
      power: chance to find it, in (0, 1).

    Returns:
      The gap, in the unit of `std`.

    Raises:
      ValueError: there is one seed.

    Example:
      >>> print(f"{gap_for(0.05, 24):.4f}")
      0.0299
    """
    if seeds < 2:
        raise ValueError(f"a test needs 2 seeds or more; got {seeds}")
    freedom = (1 if paired else 2) * (seeds - 1)
    error = std * sqrt((1 if paired else 2) / seeds)
    return float(nctdtrinc(freedom, 1 - power, t_quantile(level, freedom))) * error
