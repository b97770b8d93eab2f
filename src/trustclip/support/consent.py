"""Imports of what a text names, ``"package.module:name"`` or ``"folder/file.py:name"``, by consent.

An import runs code. In a Python program the programmer wrote the text. In a file, whoever wrote the
file did, so readers of files work within `consent`, which says whose names count.
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from trustclip.support.names import nearest

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


def import_object(path: str, kind: str) -> Any:
    """The object that a text names, within the caller's `consent`.

    A module is looked for where Python looks, then in the working directory; a file by its path.

    Example:
      >>> import_object("math:hypot", "reward")(3, 4)
      5.0
      >>> import_object("math:hypott", "reward")
      Traceback (most recent call last):
      ...
      ValueError: cannot load reward 'math:hypott': 'math' has no 'hypott'; did you mean 'hypot'?
    """
    where, _, name = path.rpartition(":")
    if not is_allowed(path):
        what = "file" if where.endswith(".py") else "module"
        raise ValueError(
            f"{path!r} would import the Python {what} {where!r}, whose code then runs here: if you "
            "trust it, allow it with --allow-code."
        )
    try:
        if where.endswith(".py"):
            module = _module_of_file(Path(where))
        else:
            _add_to_path(Path.cwd())
            module = importlib.import_module(where)
    except Exception as error:  # whatever the module's own code raises
        prefix = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        reason = f"{prefix}{error}{_location(error, where)}"
        end = "" if reason.endswith("?") else "."
        raise ValueError(f"cannot load {kind} {path!r}: {reason}{end}") from error
    if not hasattr(module, name):
        near = nearest(name, (own for own in vars(module) if not own.startswith("_")))
        hint = f"; did you mean {near!r}?" if near else "."
        raise ValueError(f"cannot load {kind} {path!r}: {where!r} has no {name!r}{hint}")
    return getattr(module, name)


def names_code(text: object) -> bool:
    """Whether a text names something to import, rather than something of this library.

    Example:
      >>> names_code("rewards.py:polite"), names_code("correct")
      (True, False)
    """
    return isinstance(text, str) and ":" in text


def _module_of_file(path: Path) -> ModuleType:
    """The module of a file, whose name is the path, so that its classes are named after it."""
    name, file = str(path), path.resolve()
    cached = sys.modules.get(name)
    if cached is not None and getattr(cached, "__file__", None) == str(file):
        return cached
    if not file.is_file():
        others = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        near = nearest(path.name, others)
        hint = f"; did you mean {str(path.parent / near)!r}?" if near else ""
        raise ImportError(f"no file {name!r}{hint}")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _add_to_path(file.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _add_to_path(folder: Path) -> None:
    """Let a module import those beside it; the folder comes last, so that it hides no package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _location(error: Exception, where: str) -> str:
    """Place of an error within the file, as `` (file.py, line 3)``; empty if elsewhere."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        if os.path.basename(trace.tb_frame.f_code.co_filename) == os.path.basename(where):
            place = f" ({where}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
