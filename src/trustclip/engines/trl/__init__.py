"""TRL: `ConstrainedGRPOTrainer` trains with the method set in `ConstrainedGRPOConfig`."""

from trustclip.support.lazy import public

__all__, __getattr__, __dir__ = public(__name__)
