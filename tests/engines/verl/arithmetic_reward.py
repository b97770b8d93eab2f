"""Reward of the end-to-end test: right answers, and plain text on the way there."""

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """1 for the answer at the end; else half the share of printable ASCII: groups differ."""
    if solution_str.strip().endswith(ground_truth):
        return 1.0
    return 0.5 * sum(" " <= c <= "~" for c in solution_str) / max(len(solution_str), 1)
