"""verl: a policy loss for any method, through verl's own registry; see `loss`.

`TrustclipLossConfig` is what ``policy_loss._target_`` names in verl's configuration.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trustclip.engines.verl.loss import TrustclipLossConfig as TrustclipLossConfig

__all__ = ["TrustclipLossConfig"]


def __getattr__(name: str) -> Any:
    if name != "TrustclipLossConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # verl is imported with the loss alone: the checks of a configuration do without it.
    from trustclip.engines.verl import loss

    return loss.TrustclipLossConfig


def __dir__() -> list[str]:
    return __all__
