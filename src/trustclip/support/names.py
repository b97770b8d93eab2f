"""Names in error texts: what was given, what is allowed, the nearest right one; some of many."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

#: Of more right names than this only the closest are listed.
MANY, SHOWN = 48, 6
#: Similarity from which on a name is a likely misspelling of another; below it a hint is noise.
LIKE = 0.6


def unknown(kind: str, given: object, allowed: Iterable[str], meant: str | None = None) -> str:
    """Sentence for an unknown name, with the nearest right one, or the one that is meant.

    Example:
      >>> unknown("method", "art", ["atr", "clip"])
      "unknown method 'art'; did you mean 'atr'? Allowed: atr, clip."
    """
    names = sorted(allowed)
    near = meant or nearest(given, names)
    hint = f"; did you mean {near!r}?" if near else "."
    listed = ", ".join(names)
    if len(names) > MANY:
        closest = get_close_matches(str(given), names, n=SHOWN, cutoff=0.0)
        listed = f"{', '.join(closest)} and {len(names) - SHOWN} others"
    return f"unknown {kind} {given!r}{hint} Allowed: {listed}."


def some(items: Sequence[object], most: int = 5) -> str:
    """The first of many, for a sentence that counts them.

    Example:
      >>> some([1, 2, 3]), some("abcdefg", most=2)
      ('1, 2, 3', 'a, b, ...')
    """
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def nearest(given: object, allowed: Iterable[str]) -> str | None:
    """The right name most like ``given``, whatever its case, or None when none is like it.

    Example:
      >>> nearest("ART", ["atr", "clip"]), nearest("nosuch", ["bench", "atr"])
      ('atr', None)
    """
    by_lower = {name.lower(): name for name in sorted(allowed)}
    found = get_close_matches(str(given).lower(), by_lower, n=1, cutoff=LIKE)
    return by_lower[found[0]] if found else None
