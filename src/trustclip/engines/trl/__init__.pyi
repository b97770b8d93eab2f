"""The public names, each with the module that it is in."""

from trustclip.engines.trl.config import ConstrainedGRPOConfig as ConstrainedGRPOConfig
from trustclip.engines.trl.observer import observe as observe
from trustclip.engines.trl.trainer import ConstrainedGRPOTrainer as ConstrainedGRPOTrainer
