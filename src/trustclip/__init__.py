"""Policy-divergence constraints for GRPO: how far may one update move the policy?

Example:
  >>> import torch, trustclip as tc
  >>> batch = tc.TokenBatch(
  ...     logp=torch.tensor([[-1.0, -0.2]]), logp_old=torch.tensor([[-1.0, -1.0]]),
  ...     advantages=torch.ones(1, 2), mask=torch.ones(1, 2, dtype=torch.bool))
  >>> tc.coefficient(tc.method("atr", delta=0.07), batch)
  tensor([[1., 0.]])
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Loss": "batch",
    "Surrogate": "batch",
    "TokenBatch": "batch",
    "Method": "method",
    "as_method": "method",
    "definition": "method",
    "interval": "method",
    "method": "method",
    "methods": "method",
    "coefficient": "loss",
    "policy_loss": "loss",
}

#: Modules that are public by their own name.
_MODULES = ("controllers",)

__all__ = [
    "Loss",
    "Method",
    "Surrogate",
    "TokenBatch",
    "__version__",
    "as_method",
    "coefficient",
    "controllers",
    "definition",
    "interval",
    "method",
    "methods",
    "policy_loss",
]

if TYPE_CHECKING:
    from trustclip import controllers as controllers
    from trustclip.batch import Loss as Loss
    from trustclip.batch import Surrogate as Surrogate
    from trustclip.batch import TokenBatch as TokenBatch
    from trustclip.loss import coefficient as coefficient
    from trustclip.loss import policy_loss as policy_loss
    from trustclip.method import Method as Method
    from trustclip.method import as_method as as_method
    from trustclip.method import definition as definition
    from trustclip.method import interval as interval
    from trustclip.method import method as method
    from trustclip.method import methods as methods


class _Public(ModuleType):
    """This package: names load on first use, and a submodule never hides one of them.

    Torch takes a second to import, and ``trustclip --help`` must not wait for it. Importing the
    submodules ``method`` and ``methods`` would set attributes of those names here, over the
    functions that users call.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name not in _HOMES:
            raise AttributeError(f"module 'trustclip' has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Public
