"""Marks on the formulas for ``torch.compile``, without importing it."""

from collections.abc import Callable
from typing import TypeVar

_F = TypeVar("_F", bound=Callable[..., object])


def constant(function: _F) -> _F:
    """Mark a function whose result, for the arguments it is compiled with, is always the same.

    What `torch.compiler.assume_constant_result` does; that imports the compiler, which takes as
    long as all of torch, for every command that reads a method's name.

    Example:
      >>> @constant
      ... def fields(method):
      ...     return method.requires
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
