"""Conditions under which training continues exactly: required settings, unchanged inputs."""

from pathlib import Path
from typing import Any

from trustclip.train.durable import states, weights

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
    if trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2:
        problems.append("fsdp_version must be 2: FSDP1 flattens what it shards.")
    if trainer.is_deepspeed_enabled:
        problems.append(
            "DeepSpeed's checkpoints are not exact: shard with FSDP2, or train with "
            "ConstrainedGRPOTrainer, which keeps Transformers' own checkpoints."
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
    """The settings and inputs that must be the same when a checkpoint is continued.

    Every rank must ask for it, before training has begun.
    """
    data = trainer.train_dataset
    return {
        **{name: getattr(trainer.args, name) for name in trainer._shape},
        "processes": trainer.accelerator.num_processes,
        "device": trainer.accelerator.device.type,
        "examples": len(data) if hasattr(data, "__len__") else None,
        "base model": weights.frozen(trainer._unwrapped()),
    }


def check_identity(own: dict[str, Any], checkpoint: Path) -> None:
    """Refuse a checkpoint of other settings, data or base model, or of another number of ranks."""
    stored: dict[str, Any] = {**states.shared(checkpoint)["identity"]}
    if stored["processes"] != own["processes"]:
        raise ValueError(
            f"{checkpoint} was written by {stored['processes']} ranks and this job has "
            f"{own['processes']}: start it again with {stored['processes']}."
        )
    changed = [
        f"{name} was {stored.get(name)!r} and is {own.get(name)!r}"
        for name in sorted({**stored, **own})
        if stored.get(name) != own.get(name)
    ]
    if changed:
        raise ValueError(f"{checkpoint} cannot be continued: {', '.join(changed)}.")
