"""Groups without a signal: how many of them chance alone leaves, and how many samples help."""

from math import ceil, log


def silent(p: float, samples: int) -> float:
    """Share of groups in which all answers are right, or all wrong: $p^G + (1 - p)^G$.

    $p$ is the chance that an answer is right, $G$ the answers per group, which are independent. Of
    problems that differ, the share is larger than at their mean (the function is convex).

    Raises:
      ValueError: p is no probability, or fewer than 1 sample.

    Example:
      >>> [round(silent(0.1, samples), 3) for samples in (2, 8, 32)]
      [0.82, 0.43, 0.034]
    """
    if not 0 <= p <= 1 or samples < 1:
        raise ValueError(f"p must be between 0 and 1 and samples 1 or more, got {p}, {samples}.")
    return float(p**samples + (1 - p) ** samples)


def samples_for(p: float, share: float) -> int:
    """Fewest answers per group, 2 or more, that leave at most a share of groups without a signal.

    Raises:
      ValueError: p is 0 or 1, where no number of answers helps, or a share not between 0 and 1.

    Example:
      >>> samples_for(0.1, 0.3), samples_for(0.5, 0.3), samples_for(0.01, 0.3)
      (12, 3, 120)
    """
    if not 0 < p < 1 or not 0 < share < 1:
        raise ValueError(f"p and share must lie between 0 and 1, got {p} and {share}.")
    count = max(2, ceil(log(share) / log(max(p, 1 - p))))  # of the likelier end alone
    while silent(p, count) > share:
        count += 1
    return count
