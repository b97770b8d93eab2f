"""Conditions under which training continues exactly: required settings, unchanged inputs."""

from pathlib import Path
from typing import Any

from trustclip.durable import states, weights

#: Settings of `TrainingArguments` and TRL: the value they must have, and why.
_REQUIRED: dict[str, tuple[Any, str]] = {
    "load_best_model_at_end": (False, "checkpoints are not kept by their score"),
    "save_only_model": (False, "training could not continue from it"),
    "push_to_hub": (False, "checkpoints stay on this machine; push the final model"),
    "ignore_data_skip": (False, "the data would start again"),
    "auto_find_batch_size": (False, "the batch size would depend on the memory left"),
    "sync_ref_model": (False, "the moving reference model is not stored"),
}


def check_settings(trainer: Any) -> None:
    """Raise a ValueError for settings under which training could not continue exactly."""
    args = trainer.args
    problems = [
        f"{name} must be {required!r}: {why}."
        for name, (required, why) in _REQUIRED.items()
        if getattr(args, name, required) != required
    ]
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        problems.append(
            "FSDP and DeepSpeed shard weights and optimizer over ranks in their own formats; "
            "use DDP."
        )
    if args.train_sampling_strategy == "group_by_length":
        problems.append(
            "the order of train_sampling_strategy='group_by_length' cannot be restored."
        )
    if not args.accelerator_config.use_seedable_sampler:
        problems.append("accelerator_config.use_seedable_sampler must be True for a fixed order.")
    if problems:
        raise ValueError(
            f"cannot keep checkpoints with these settings: {' '.join(problems)} "
            "save_strategy='no' trains without checkpoints."
        )


def identity(trainer: Any) -> dict[str, Any]:
    """The settings and inputs that must be the same when a checkpoint is continued."""
    data = trainer.train_dataset
    return {
        **{name: getattr(trainer.args, name) for name in trainer._shape},
        "processes": trainer.accelerator.num_processes,
        "device": trainer.accelerator.device.type,
        "examples": len(data) if hasattr(data, "__len__") else None,
        "base model": weights.frozen(trainer.accelerator.unwrap_model(trainer.model)),
    }


def check_identity(trainer: Any, checkpoint: Path) -> None:
    """Raise a ValueError if the checkpoint has other settings, data or another base model."""
    stored, own = states.load(checkpoint, "shared")["identity"], identity(trainer)
    changed = [
        f"{name} was {stored.get(name)!r} and is {own.get(name)!r}"
        for name in sorted({**stored, **own})
        if stored.get(name) != own.get(name)
    ]
    if changed:
        raise ValueError(f"{checkpoint} cannot be continued: {', '.join(changed)}.")
