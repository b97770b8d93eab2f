"""Policy-divergence constraints for GRPO: how far may one update move the policy?

Example:
  >>> import torch, trustclip as tc
  >>> batch = tc.TokenBatch(
  ...     logp=torch.tensor([[-1.0, -0.2]]), logp_old=torch.tensor([[-1.0, -1.0]]),
  ...     advantages=torch.ones(1, 2), mask=torch.ones(1, 2, dtype=torch.bool))
  >>> tc.coefficient(tc.method("atr", delta=0.07), batch)
  tensor([[1., 0.]])
"""

import ast
import importlib
import sys
from importlib.resources import files
from types import ModuleType
from typing import Any

__version__ = "0.2.0"


def _public() -> dict[str, tuple[str, str]]:
    """Public name -> its module and its name there, as ``__init__.pyi`` states them."""
    stub = files(__name__).joinpath("__init__.pyi").read_text(encoding="utf-8")
    return {
        alias.name: (str(statement.module), alias.name)
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


_HOMES = _public()
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


class _Package(ModuleType):
    """Python binds a submodule to its package when it is first loaded; over no public name here:
    `methods` is a function and a folder."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Public names load on first use: torch takes a second, and ``--help`` must not wait for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, inside = _HOMES[name]
    module = importlib.import_module(home)
    if hasattr(module, "__path__"):  # what a package has is a module
        return importlib.import_module(f"{home}.{inside}")
    return getattr(module, inside)


def __dir__() -> list[str]:
    return __all__
