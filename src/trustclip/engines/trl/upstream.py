"""Everything this engine uses from TRL: the only module that imports `trl`.

`GRPOTrainer` has few documented hooks, so `ConstrainedGRPOTrainer` overrides and reads members that
a release may change. They are listed below; ``tests/engines/trl/test_trl_upstream.py`` derives the
same lists from the source of the engine, so that they stay complete. The parity tests decide
whether their meaning is unchanged: on the releases in `TESTED` it is. Importing this module with
another release looks for the members in its code: where one is missing that is an error, and a
notice otherwise.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from types import CodeType, FunctionType
from typing import Any

# trustclip reports no usage data, and importing TRL on a user's behalf must not either.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import socket

from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig as GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer as GRPOTrainer
from trl.trainer.sft_config import SFTConfig as SFTConfig
from trl.trainer.sft_trainer import SFTTrainer as SFTTrainer

from trustclip.constraints.base import Method

#: Releases on which the parity tests pass. Plain TRL 1.15 does not train on a CPU where Triton is
#: installed, so there is nothing to compare with.
TESTED = ("1.10", "1.11", "1.12", "1.13", "1.14", "1.16")

#: Whether TRL asks a model for log-probabilities, since 1.15; before, it computes them from logits,
#: and trustclip's head has no place.
FUSED_HEAD = hasattr(grpo_trainer, "add_fused_lm_head")

#: Members that TRL's `GRPOTrainer` defines and this engine overrides, calls, reads or sets.
MEMBERS = (
    "_buffered_inputs",
    "_calculate_rewards",
    "_compute_loss",
    "_current_train_step_time",
    "_entropy_bonus_enabled",
    "_entropy_window_stats",
    "_generate",
    "_generate_and_score_completions",
    "_generate_single_turn",
    "_get_per_token_logps_and_entropies",
    "_last_world_entropy",
    "_logs",
    "_metrics",
    "_name",
    "_prepare_inputs",
    "_step",
    "_tag_names",
    "_total_train_tokens",
    "aux_loss_enabled",
    "beta",
    "entropy_coef",
    "eos_token_ids",
    "epsilon_high",
    "epsilon_low",
    "generation_config",
    "get_train_dataloader",
    "importance_sampling_level",
    "log",
    "log_completions",
    "loss_type",
    "max_completion_length",
    "num_generations",
    "num_iterations",
    "reward_func_names",
    "reward_weights",
    "rollout_func",
    "temperature",
    "tools",
    "top_entropy_quantile",
    "training_step",
    "use_transformers_continuous_batching",
    "use_vllm",
    "vllm_generation",
    "vllm_importance_sampling_correction",
)

#: Keys of the dictionary that `GRPOTrainer._generate_and_score_completions` returns and
#: `GRPOTrainer._compute_loss` takes, and of what a `rollout_func` returns.
INPUT_KEYS = (
    "advantages",
    "completion_ids",
    "completion_mask",
    "image_sizes",
    "importance_sampling_ratio",
    "logprobs",
    "mm_token_type_ids",
    "num_images",
    "old_per_token_logps",
    "pixel_values",
    "prompt_ids",
    "prompt_mask",
    "sampling_per_token_logps",
    "token_type_ids",
    "tool_mask",
)

#: Private members of Transformers' `Trainer` that `trustclip.train.durable.trainer.Durable`
#: overrides, reads or sets.
TRANSFORMERS_MEMBERS = (
    "_globalstep_last_logged",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_scaler",
    "_maybe_log_save_evaluate",
    "_prepare_for_training",
    "_save_checkpoint",
    "_tr_loss",
)


@contextlib.contextmanager
def announced_level(args: Any, method: Method) -> Iterator[None]:
    """Show TRL the level of a method while it checks a config, so that its warnings apply.

    The loss of TRL is computed at token level: the method's level is in the gradient it gets.
    """
    twin = method.twins.get("TRL")
    own = getattr(method, "level", "token")
    level = own if twin is None else twin.get("importance_sampling_level", "token")
    original = args.importance_sampling_level
    args.importance_sampling_level = "sequence" if level == "sequence" else original
    try:
        yield
    finally:
        args.importance_sampling_level = original


def end_tokens(trainer: Any) -> list[int]:
    """Ids that end a completion; before TRL 1.15 there was one, the tokenizer's."""
    if hasattr(trainer, "eos_token_ids"):
        return list(trainer.eos_token_ids)
    tokenizer = trainer.processing_class
    return [getattr(tokenizer, "tokenizer", tokenizer).eos_token_id]


def lacking(trainer: type) -> list[str]:
    """Members and keys of the lists above that a class does not mention anywhere in its code."""
    names = set(vars(trainer))
    for value in vars(trainer).values():
        function = getattr(value, "__wrapped__", value)
        if isinstance(function, FunctionType):
            names |= _mentioned_names(function.__code__)
    return sorted({*MEMBERS, *INPUT_KEYS} - {"eos_token_ids"} - names)


def _mentioned_names(code: CodeType) -> set[str]:
    names: set[str] = {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _mentioned_names(constant)
        elif isinstance(constant, tuple | frozenset):
            names |= {c for c in constant if isinstance(c, str)}
    return names


def check_release(release: str, trainer: type) -> None:
    """Compare a release that was not tested with what this engine uses of it.

    Raises:
      ImportError: something is missing; the message names it.
    """
    if ".".join(release.split(".")[:2]) in TESTED:
        return
    if missing := lacking(trainer):
        raise ImportError(
            f"trl {release} is not supported: its GRPOTrainer has no {', '.join(missing)}, which "
            f"trustclip.engines.trl uses. Install a tested release: {', '.join(TESTED)}."
        )
    warnings.warn(
        f"trl {release} was not tested with this release of trustclip ({TESTED[0]} to "
        f"{TESTED[-1]} were): every member that it uses is there, their meaning is taken to be "
        "unchanged.",
        stacklevel=2,
    )


check_release(version("trl"), GRPOTrainer)


def own_port() -> None:
    """Give the process group of a vLLM in this process a port of its own, unless one is set.

    TRL would take the first of four that is free, and open it when the engine has started: two
    runs that begin together would choose the same.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.setdefault("MASTER_PORT", str(probe.getsockname()[1]))
