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
from typing import TYPE_CHECKING, Any

# Loaded here so that no later import of a method's file puts the folder of this name over the
# function `methods` below: Python binds a submodule to its package when it is first loaded.
from trustclip import methods

del methods

__version__ = "0.1.0"

_HOMES = {
    "Loss": "constraints.batch",
    "Method": "constraints.base",
    "Recorder": "recipes.watch.recorder",
    "Surrogate": "constraints.batch",
    "TokenBatch": "constraints.batch",
    "Trait": "constraints.base",
    "as_method": "constraints.registry",
    "check": "constraints.check",
    "coefficient": "constraints.loss",
    "definition": "constraints.base",
    "interval": "constraints.registry",
    "method": "constraints.registry",
    "methods": "constraints.base",
    "penalty": "constraints.registry",
    "policy_loss": "constraints.loss",
    "preset": "constraints.rosetta",
    "presets": "constraints.rosetta",
}

#: Modules that are public by their own name, and where they are.
_MODULES = {
    "controllers": "constraints.controllers",
    "divergences": "constraints.divergences",
    "gates": "constraints.gates",
    "head": "head",
}

__all__ = [
    "Loss",
    "Method",
    "Recorder",
    "Surrogate",
    "TokenBatch",
    "Trait",
    "__version__",
    "as_method",
    "check",
    "coefficient",
    "controllers",
    "definition",
    "divergences",
    "gates",
    "head",
    "interval",
    "method",
    "methods",
    "penalty",
    "policy_loss",
    "preset",
    "presets",
]

if TYPE_CHECKING:
    from trustclip import head as head
    from trustclip.constraints import controllers as controllers
    from trustclip.constraints import divergences as divergences
    from trustclip.constraints import gates as gates
    from trustclip.constraints.base import Method as Method
    from trustclip.constraints.base import Trait as Trait
    from trustclip.constraints.base import definition as definition
    from trustclip.constraints.base import methods as methods
    from trustclip.constraints.batch import Loss as Loss
    from trustclip.constraints.batch import Surrogate as Surrogate
    from trustclip.constraints.batch import TokenBatch as TokenBatch
    from trustclip.constraints.check import check as check
    from trustclip.constraints.loss import coefficient as coefficient
    from trustclip.constraints.loss import policy_loss as policy_loss
    from trustclip.constraints.registry import as_method as as_method
    from trustclip.constraints.registry import interval as interval
    from trustclip.constraints.registry import method as method
    from trustclip.constraints.registry import penalty as penalty
    from trustclip.constraints.rosetta import preset as preset
    from trustclip.constraints.rosetta import presets as presets
    from trustclip.recipes.watch.recorder import Recorder as Recorder


def __getattr__(name: str) -> Any:
    """Public names load on first use: torch takes a second, and ``--help`` must not wait for it."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
