"""What every topic's options have in common: sizes and turns of at least one."""

from typing import Any


def check_counts(options: Any, *names: str) -> None:
    """Raise a ValueError, in words of the command line, unless each is unset or at least 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
