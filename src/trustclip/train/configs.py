"""Settings as TRL's and PEFT's configurations."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustclip.support.marks import Trl, marked
from trustclip.train.settings.stages import Lora, RLStage, SFTSettings, Training

if TYPE_CHECKING:
    from trustclip.engines.trl.upstream import SFTConfig
    from trustclip.train.trainers import DurableGRPOConfig


def grpo_config(settings: RLStage, output_dir: Path, seed: int = 0) -> "DurableGRPOConfig":
    """Build the engine's configuration; checkpoints go to ``output_dir``.

    Raises:
      ValueError: settings that TRL, Transformers or the engine refuses.
    """
    from trustclip.train.trainers import DurableGRPOConfig

    arguments: dict[str, Any] = _arguments(settings, output_dir, seed) | {
        "top_k": 0,  # off: samples must follow the policy whose ratio is constrained
        "reward_weights": settings.reward_weights,
        # Dropout makes two passes of one policy differ, and so the ratio before any update.
        "disable_dropout": True,
    }
    # A recipe's numbers are those of earlier releases, to the last digit, unless it says otherwise.
    given: dict[str, Any] = {"share_prompts": False, **arguments, **settings.trl}
    return DurableGRPOConfig(**given)


def sft_config(settings: SFTSettings, output_dir: Path) -> "SFTConfig":
    """Build TRL's configuration of fine-tuning; checkpoints go to ``output_dir``."""
    from trustclip.engines.trl.upstream import SFTConfig

    arguments = _arguments(settings, output_dir, settings.seed)
    return SFTConfig(**arguments, dataset_num_proc=None, gradient_checkpointing=False)


def _arguments(settings: Training, output_dir: Path, seed: int) -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(output_dir),
        "seed": seed,
        "save_strategy": "steps" if settings.save_steps else "no",
        "save_steps": settings.save_steps or 500,
        "report_to": "none",
        "run_name": output_dir.absolute().parent.name,
        "disable_tqdm": True,
        "bf16": cuda,
        "use_cpu": not cuda,
        **{name: getattr(settings, name) for name in marked(type(settings), Trl)},
    }


def lora_config(r: int, alpha: int | None = None, lora: Lora | None = None) -> Any:
    """LoRA configuration; None for r = 0. By default every linear layer, without dropout.

    Dropout would make the ratio differ from 1 before any update: each pass draws its own mask.
    """
    if r == 0:
        return None
    from peft import LoraConfig

    lora = lora or Lora()
    modules = lora.target_modules
    return LoraConfig(
        r=r,
        lora_alpha=2 * r if alpha is None else alpha,
        lora_dropout=lora.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        modules_to_save=list(lora.modules_to_save) or None,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        bias=lora.bias,
        task_type="CAUSAL_LM",
    )
