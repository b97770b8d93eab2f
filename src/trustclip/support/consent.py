"""Consent to import what a text names: ``"package.module:Class"`` and ``"file.py:name"`` run code.

In a Python program the programmer wrote the text. In a file, whoever wrote the file did, so readers
of files work within `consent`, which says whose names count.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: Allows every name.
ALL = "*"

#: Names that may be imported; None outside of `consent`: the program's own names.
_granted: ContextVar[frozenset[str] | None] = ContextVar("granted", default=None)

#: ``package.module:name`` as a separate word, not in a hub id, a URL or a path; or a path to a
#: Python file with a name in it.
_NAME = re.compile(r"(?<![\w./:@~-])(?:[\w./~-]+\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*(?![\w./:@-])")


@contextmanager
def consent(*names: str) -> Iterator[None]:
    """Within, only these names may be imported, or `ALL`, and those of a surrounding `consent`.

    Example:
      >>> import trustclip as tc
      >>> with consent():
      ...     tc.method("package.module:Class")
      Traceback (most recent call last):
      ...
      ValueError: 'package.module:Class' would import the Python module 'package.module', whose \
code then runs here: if you trust it, allow it with --allow-code.
    """
    token = _granted.set((_granted.get() or frozenset()) | frozenset(names))
    try:
        yield
    finally:
        _granted.reset(token)


def require(name: str) -> None:
    """Refuse to import what a file names unless it is allowed."""
    if is_allowed(name):
        return
    module, _, _ = name.rpartition(":")
    kind = "file" if module.endswith(".py") else "module"
    raise ValueError(
        f"{name!r} would import the Python {kind} {module!r}, whose code then runs here: if you "
        "trust it, allow it with --allow-code."
    )


def is_allowed(name: str) -> bool:
    """Whether the object that ``name`` refers to may be imported.

    Example:
      >>> with consent("a.b:C"):
      ...     print(is_allowed("a.b:C"), is_allowed("d.e:F"))
      True False
    """
    granted = _granted.get()
    return granted is None or bool(granted & {name, ALL})


def names_in(value: Any) -> frozenset[str]:
    """Importable names that a value holds, at any depth.

    Example:
      >>> sorted(names_in({"method": "a.b:C", "shadows": ["{name: d:E}"], "data": "o/d:e"}))
      ['a.b:C', 'd:E']
      >>> sorted(names_in("{name: ../my/rewards.py:polite}"))
      ['../my/rewards.py:polite']
    """
    if isinstance(value, str):
        return frozenset(_NAME.findall(value))
    if isinstance(value, Mapping):
        return names_in([*value.values()])
    if isinstance(value, list | tuple):
        return frozenset().union(*map(names_in, value))
    return names_in(value.to_dict()) if hasattr(value, "to_dict") else frozenset()
