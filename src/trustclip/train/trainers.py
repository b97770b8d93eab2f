"""TRL's trainers that continue exactly after a kill: engine and durability, joined here alone."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from trustclip.engines.settings import config_field
from trustclip.engines.trl.config import ConstrainedGRPOConfig
from trustclip.engines.trl.trainer import ConstrainedGRPOTrainer
from trustclip.engines.trl.upstream import SFTTrainer
from trustclip.train.durable.trainer import Durable
from trustclip.train.settings.stages import RLStage


class DurableSFTTrainer(Durable, SFTTrainer):
    """`trl.SFTTrainer` that continues exactly after a kill: see `Durable.train_durably`."""


@dataclass
class DurableGRPOConfig(ConstrainedGRPOConfig):
    """`ConstrainedGRPOConfig` of a `DurableGRPOTrainer`, which takes the former as well.

    Args:
      save_async: write checkpoints while training goes on, from a copy in CPU memory.

    Raises:
      ValueError: as `ConstrainedGRPOConfig`.

    Example:
      >>> DurableGRPOConfig("out", num_iterations=2, use_cpu=True, bf16=False).save_async
      False
    """

    save_async: bool = config_field("save_async", RLStage)


class DurableGRPOTrainer(Durable, ConstrainedGRPOTrainer):
    """`ConstrainedGRPOTrainer` that does: see `Durable.train_durably`."""

    _carried: ClassVar = ConstrainedGRPOTrainer.carried
    _in_progress: ClassVar = {**Durable._in_progress, **ConstrainedGRPOTrainer.in_progress}
    _shape: ClassVar = (*Durable._shape, *ConstrainedGRPOTrainer.shape)

    def _unwrapped(self) -> nn.Module:
        return ConstrainedGRPOTrainer._unwrapped(self)  # kept: every micro-batch asks for it

    def _progress(self) -> dict[str, Any]:
        return super()._progress() | self.progress()

    def _restore(self, progress: dict[str, Any]) -> None:
        super()._restore(progress)
        self.restore(progress)
