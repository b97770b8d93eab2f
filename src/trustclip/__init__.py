"""Policy-divergence constraints for GRPO: how far may one update move the policy?

Example:
  >>> import torch, trustclip as tc
  >>> batch = tc.TokenBatch(
  ...     logp=torch.tensor([[-1.0, -0.2]]), logp_old=torch.tensor([[-1.0, -1.0]]),
  ...     advantages=torch.ones(1, 2), mask=torch.ones(1, 2, dtype=torch.bool))
  >>> tc.coefficient(tc.method("atr", delta=0.07), batch)
  tensor([[1., 0.]])
"""

import sys
from types import ModuleType

from trustclip.support.lazy import public

__version__ = "0.3.0"

# Torch takes a second, and ``--help`` must not wait for it.
_names, __getattr__, _ = public(__name__)
__all__ = ["__version__", *_names]  # pyright: ignore[reportUnsupportedDunderAll]


class _Package(ModuleType):
    """Python binds a submodule to its package when it is first loaded; over no public name here:
    `methods` is a function and a folder."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _names or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return __all__
