"""Names in error texts: the unknown one, those allowed, the nearest of them; some of many."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

#: Of more right names than this only the closest are listed.
MANY, CLOSEST = 48, 6
#: Similarity from which on a name is a likely misspelling of another; below it a hint is noise.
LIKE = 0.6


def unknown(
    kind: str, name: object, allowed: Iterable[str], intended: str | None = None, of: str = ""
) -> str:
    """Sentence for an unknown name, with the nearest right one, or the intended one ("": none).

    Example:
      >>> unknown("method", "art", ["atr", "clip"])
      "unknown method 'art'; did you mean 'atr'? Allowed: atr, clip."
      >>> unknown("setting", "shre", ["share"], of="target_gate")
      "unknown setting 'shre' of target_gate; did you mean 'share'? Allowed: share."
    """
    names = sorted(allowed)
    near = nearest(name, names) if intended is None else intended
    hint = f"; did you mean {near!r}?" if near else "."
    choices = ", ".join(names)
    if len(names) > MANY:
        closest = get_close_matches(str(name), names, n=CLOSEST, cutoff=0.0)
        choices = f"{', '.join(closest)} and {len(names) - CLOSEST} others"
    owner = f" of {of}" if of else ""
    return f"unknown {kind} {name!r}{owner}{hint} Allowed: {choices}."


def listed(text: str) -> list[str]:
    """The names in a comma-separated text.

    Example:
      >>> listed("amc23, aime24,")
      ['amc23', 'aime24']
    """
    return [name for part in text.split(",") if (name := part.strip())]


def some(items: Sequence[object], most: int = 5) -> str:
    """The first of many, for a sentence that counts them.

    Example:
      >>> some([1, 2, 3]), some("abcdefg", most=2)
      ('1, 2, 3', 'a, b, ...')
    """
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def nearest(word: object, allowed: Iterable[str]) -> str | None:
    """The right name most like ``word``, whatever its case, or None when none is like it.

    Example:
      >>> nearest("ART", ["atr", "clip"]), nearest("nosuch", ["bench", "atr"])
      ('atr', None)
    """
    by_lower = {name.lower(): name for name in sorted(allowed)}
    matches = get_close_matches(str(word).lower(), by_lower, n=1, cutoff=LIKE)
    return by_lower[matches[0]] if matches else None


class TrainingError(RuntimeError):
    """Training cannot go on; the message states why."""
