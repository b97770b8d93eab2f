"""Packages whose public names load on first use, each from the module that their stub states."""

import ast
import importlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any


def public(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__all__``, ``__getattr__`` and ``__dir__`` of a package, by its ``__init__.pyi``.

    Example:
      >>> names, load, _ = public("trustclip")
      >>> "Method" in names, load("Method").__module__
      (True, 'trustclip.constraints.base')
    """
    stub = files(package).joinpath("__init__.pyi").read_text(encoding="utf-8")
    homes = {
        alias.name: str(statement.module)
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        if hasattr(module, "__path__"):  # what a package has is a module
            return importlib.import_module(f"{homes[name]}.{name}")
        return getattr(module, name)

    return [*homes], load, lambda: [*homes]
