"""Everything this engine uses from TRL: the only module that imports `trl`.

`GRPOTrainer` has few documented hooks, so `ConstrainedGRPOTrainer` overrides and reads members that
a release may change. They are listed below; ``tests/engines/trl/test_trl_upstream.py`` derives the
same lists from the source of the engine, so that they stay complete. The parity tests decide
whether their meaning is unchanged: on the releases in `TESTED` it is. Importing this module with
another release looks at how it defines them: where one is missing, or takes other parameters, that
is an error, and a notice otherwise. Whether its loss has a method's gradient is seen in the first
update (`trustclip.engines.trl.gradient_check`). A trainer that Unsloth has put in TRL's place is
refused: what is said of it was read in its source, and not run.
"""

import contextlib
import dis
import inspect
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from types import CodeType
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

#: Members that TRL's `GRPOTrainer` defines and this engine calls, reads or sets, beside those of
#: `PARAMETERS`, which it overrides.
MEMBERS = (
    "_buffered_inputs",
    "_current_train_step_time",
    "_entropy_bonus_enabled",
    "_entropy_window_stats",
    "_last_world_entropy",
    "_logs",
    "_metrics",
    "_name",
    "_step",
    "_tag_names",
    "_tokenize_prompts",
    "_total_train_tokens",
    "aux_loss_enabled",
    "beta",
    "entropy_coef",
    "eos_token_ids",
    "epsilon_high",
    "epsilon_low",
    "generation_config",
    "importance_sampling_level",
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
    "use_transformers_continuous_batching",
    "use_vllm",
    "vllm_generation",
    "vllm_importance_sampling_correction",
)

#: Members that a tested release did without: TRL 1.14 had one end, and Transformers' loading.
_ADDED = {"eos_token_ids", "_load_optimizer_and_scheduler", "_tokenize_prompts"}

#: Parameters of TRL's methods that this engine overrides: all, or those before "...".
PARAMETERS = {
    "__init__": "model reward_funcs args ...",
    "_calculate_rewards": "inputs prompts completions completion_ids_list",
    "_compute_loss": "model inputs",
    "_generate": "prompts",
    "_generate_and_score_completions": "inputs",
    "_generate_single_turn": "prompt_ids ...",
    "_get_per_token_logps_and_entropies": "model input_ids attention_mask logits_to_keep ...",
    "_load_optimizer_and_scheduler": "checkpoint",
    "_prepare_inputs": "generation_batch",
    "get_train_dataloader": "",
    "log": "logs start_time",
    "training_step": "model inputs num_items_in_batch",
}

#: Keywords that `_get_per_token_logps_and_entropies` takes in TRL 1.16. Another one may ask for
#: other probabilities, which trustclip's head and decoder would not give.
SCORING = (
    "batch_size compute_entropy compute_aux_loss pixel_values image_grid_thw num_images "
    "pixel_attention_mask spatial_shapes num_tiles image_sizes token_type_ids mm_token_type_ids "
    "image_position_ids"
)

#: How many values those return that the engine takes apart.
RETURNED = {"_generate_single_turn": 2, "_get_per_token_logps_and_entropies": 3}

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
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "token_type_ids",
    "tool_mask",
)

#: Members of TRL's `AsyncGRPOTrainer`, and keys of the inputs of its `compute_loss`, in use.
ASYNC_MEMBERS = (
    "_metrics",
    "_step_forward_s",
    "_sync_weight",
    "_tag_names",
    "compute_loss",
    "epsilon_high",
    "epsilon_low",
    "get_train_dataloader",
    "log",
    "model_version",
    "rollout_queue",
)
ASYNC_KEYS = ("advantages", "old_log_probs", "segment_id", "token_index")


@contextlib.contextmanager
def announced(args: Any, method: Method) -> Iterator[None]:
    """Show TRL the level of a method while it checks a config, so that its warnings apply, and a
    price where the method needs the reference model, which TRL loads for its own penalty alone.

    The loss of TRL is computed at token level: the method's level is in the gradient it gets.
    """
    twin = method.twins.get("TRL")
    own = getattr(method, "level", "token")
    level = own if twin is None else twin.get("importance_sampling_level", "token")
    original = args.importance_sampling_level, args.beta
    args.importance_sampling_level = "sequence" if level == "sequence" else original[0]
    args.beta = args.beta or float("logp_ref" in method.requires)
    try:
        yield
    finally:
        args.importance_sampling_level, args.beta = original


def end_tokens(trainer: Any) -> list[int]:
    """Ids that end a completion; before TRL 1.15 there was one, the tokenizer's."""
    if hasattr(trainer, "eos_token_ids"):
        return list(trainer.eos_token_ids)
    tokenizer = trainer.processing_class
    return [getattr(tokenizer, "tokenizer", tokenizer).eos_token_id]


def asynchronous_trainer() -> type:
    """TRL's trainer whose samples come from a server while it trains.

    Raises:
      ImportError: this release has none, or another one.
    """
    try:
        from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
    except ImportError:
        missing = ["trl.experimental.async_grpo"]
    else:
        if not (missing := lacking(AsyncGRPOTrainer, ASYNC_MEMBERS, ASYNC_KEYS)):
            return AsyncGRPOTrainer
    raise ImportError(
        f"the AsyncGRPOTrainer of trl {RELEASE} is not supported: it has no {', '.join(missing)}, "
        "which trustclip.engines.trl.asynchronous uses. Install trl 1.16."
    )


def lacking(
    trainer: type,
    members: Iterable[str] = (*MEMBERS, *PARAMETERS),
    keys: Iterable[str] = INPUT_KEYS,
) -> list[str]:
    """Members listed above that a class does not define, and keys that it does not mention."""
    others = ("transformers.", "builtins")
    own = [vars(c) for c in trainer.__mro__ if not c.__module__.startswith(others)]
    names, mentioned = set[str]().union(*own), set[str]()
    for value in itertools.chain(*(of_class.values() for of_class in own)):
        function = inspect.unwrap(value) if callable(value) else value
        for part in _within(getattr(function, "__code__", None)):
            if isinstance(part, CodeType):
                steps = dis.get_instructions(part)
                names |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
            elif isinstance(part, str):
                mentioned.add(part)
    return sorted({*members} - _ADDED - names | {*keys} - mentioned)


def _within(constant: Any) -> Iterator[Any]:
    """A constant of a function's code, and those inside: of a tuple, or of a function in it."""
    yield constant
    inner = constant.co_consts if isinstance(constant, CodeType) else constant
    for part in inner if isinstance(inner, tuple | frozenset) else ():
        yield from _within(part)


def misfits(trainer: type) -> Iterator[str]:
    """Methods of a class that take or return something else than the engine's overrides."""
    for name, known in PARAMETERS.items():
        found = [*inspect.signature(getattr(trainer, name)).parameters][1:]
        named, more, _ = known.partition(" ...")
        if (found[: len(named.split())] if more else found) != named.split():
            yield f"{name} takes ({', '.join(found)}) and not ({', '.join(known.split())})"
    for name, count in RETURNED.items():
        steps = [*dis.get_instructions(inspect.unwrap(getattr(trainer, name)).__code__)]
        returned = {
            step.argval
            for step, after in itertools.pairwise(steps)
            if (step.opname, after.opname) == ("BUILD_TUPLE", "RETURN_VALUE")
        }
        for other in sorted(returned - {count}):
            yield f"{name} returns {other} values and not {count}"


def check_release(release: str, trainer: type) -> None:
    """Compare a release that was not tested with what this engine uses of it.

    Raises:
      ImportError: something is missing, or takes other parameters; the message names it.
    """
    if is_tested(release):
        return
    problem = ""
    if missing := lacking(trainer):
        problem = f"no {', '.join(missing)}, which trustclip.engines.trl uses"
    elif changed := [*misfits(trainer)]:
        problem = f"methods of another shape: {'; '.join(changed)}"
    if problem:
        raise ImportError(
            f"trl {release} is not supported: its GRPOTrainer has {problem}. "
            f"Install a tested release: {', '.join(TESTED)}."
        )
    warnings.warn(
        f"trl {release} was not tested with this release of trustclip ({', '.join(TESTED)} "
        "were): it defines every member that is used here, in the known shape. The "
        "first update compares the gradient of its loss with the method's.",
        stacklevel=2,
    )


def is_tested(release: str) -> bool:
    """Whether the parity tests pass on a release of TRL."""
    return ".".join(release.split(".")[:2]) in TESTED


def by_unsloth(trainer: type) -> str:
    """Why a trainer is Unsloth's and trains no method, as a sentence; empty for TRL's own."""
    if not any(cls.__name__.lstrip("_").startswith("Unsloth") for cls in trainer.__mro__):
        return ""
    return (
        "Unsloth has put a trainer of its own in the place of TRL's GRPOTrainer, and its "
        "`compute_loss` asks trustclip for nothing, so that no method would act: train in a "
        "process without `import unsloth`."
    )


#: The installed release.
RELEASE = version("trl")

if _problem := by_unsloth(GRPOTrainer):
    raise ImportError(_problem)
check_release(RELEASE, GRPOTrainer)


def own_port() -> None:
    """Give the process group of a vLLM in this process a port of its own, unless one is set.

    TRL would take the first of four that is free, and open it when the engine has started: two
    runs that begin together would choose the same.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.setdefault("MASTER_PORT", str(probe.getsockname()[1]))
