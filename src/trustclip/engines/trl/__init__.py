"""TRL: `ConstrainedGRPOTrainer` trains with the method set in `ConstrainedGRPOConfig`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trustclip.engines.trl.config import ConstrainedGRPOConfig as ConstrainedGRPOConfig
    from trustclip.engines.trl.observer import observe as observe
    from trustclip.engines.trl.trainer import ConstrainedGRPOTrainer as ConstrainedGRPOTrainer
    from trustclip.engines.trl.trainer import DurableSFTTrainer as DurableSFTTrainer

_HOMES = {
    "ConstrainedGRPOConfig": "config",
    "ConstrainedGRPOTrainer": "trainer",
    "DurableSFTTrainer": "trainer",
    "observe": "observer",
}

__all__ = ["ConstrainedGRPOConfig", "ConstrainedGRPOTrainer", "DurableSFTTrainer", "observe"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
