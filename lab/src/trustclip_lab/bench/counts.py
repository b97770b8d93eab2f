"""Check that sizes and repetitions are at least 1, shared by all topics."""

from typing import Any


def check_counts(options: Any, *names: str) -> None:
    """Raise a ValueError naming the command-line option unless each is unset or at least 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
