"""Training settings converted to the configuration of the TRL engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustclip.support.marks import Trl, marked
from trustclip.train.rewarding import weights
from trustclip.train.settings.stages import RLStage

if TYPE_CHECKING:
    from trustclip.engines.trl import ConstrainedGRPOConfig


def grpo_config(settings: RLStage, output_dir: Path, seed: int = 0) -> "ConstrainedGRPOConfig":
    """Build the engine's configuration; checkpoints go to ``output_dir``.

    Raises:
      ValueError: settings that TRL, Transformers or the engine refuses.
    """
    import torch

    from trustclip.engines.trl import ConstrainedGRPOConfig

    cuda = torch.cuda.is_available()
    arguments: dict[str, Any] = dict(
        output_dir=str(output_dir),
        seed=seed,
        top_k=0,  # off: samples must follow the policy whose ratio is constrained
        reward_weights=weights(settings),
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 500,
        report_to="none",
        disable_tqdm=True,
        # Dropout makes two passes of one policy differ, and so the ratio before any update.
        disable_dropout=True,
        bf16=cuda,
        use_cpu=not cuda,
        **{name: getattr(settings, name) for name in marked(type(settings), Trl)},
    )
    return ConstrainedGRPOConfig(**arguments | settings.trl)
