"""Everything this engine uses from TRL: the only module that imports `trl`.

`GRPOTrainer` has few documented hooks, so `ConstrainedGRPOTrainer` overrides and reads members that
a release may change. The parity tests decide whether their meaning is unchanged: on the releases in
`TESTED` it is. Importing this module with another release looks for the names in `RELIED_ON`: one
that is missing is an error, else there is a notice. Whether its loss has a method's gradient is
seen in the first update (`trustclip.engines.trl.gradient_check`). A trainer that Unsloth has put in
TRL's place is refused: what is said of it was read in its source, and not run.
"""

import contextlib
import inspect
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import version
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

#: What nobody would miss if TRL gave it another name: methods that this engine overrides, what it
#: sets for TRL to read, and what it reads only where it is there. All else fails where it is used.
RELIED_ON = (
    *("_calculate_rewards", "_compute_loss", "_generate", "_generate_and_score_completions"),
    *("_generate_single_turn", "_get_per_token_logps_and_entropies", "_prepare_inputs"),
    *("advantages", "beta", "epsilon_high", "epsilon_low", "importance_sampling_level"),
    *("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps", "tool_mask"),
    *("eos_token_ids", "mm_token_type_ids", "num_images", "pixel_values", "rollout_func"),
    *("_buffered_inputs", "_metrics", "_step"),
)
#: The same in TRL's `AsyncGRPOTrainer`.
RELIED_ON_ASYNC = (
    *("_metrics", "_sync_weight", "advantages", "epsilon_high", "epsilon_low", "old_log_probs"),
    *("rollout_queue", "token_index"),
)

#: Keywords that `_get_per_token_logps_and_entropies` takes in TRL 1.16. Another one may ask for
#: other probabilities, which trustclip's head and decoder would not give.
SCORING = (
    "batch_size compute_entropy compute_aux_loss pixel_values image_grid_thw num_images "
    "pixel_attention_mask spatial_shapes num_tiles image_sizes token_type_ids mm_token_type_ids "
    "image_position_ids"
)


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
    args.importance_sampling_level = "sequence" if level == "sequence" else "token"
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
        from trl.experimental.async_grpo import async_grpo_trainer
    except ImportError:
        missing = ["trl.experimental.async_grpo"]
    else:
        if not (missing := unmentioned(inspect.getsource(async_grpo_trainer), RELIED_ON_ASYNC)):
            return async_grpo_trainer.AsyncGRPOTrainer
    raise ImportError(
        f"the AsyncGRPOTrainer of trl {RELEASE} is not supported: it has no {', '.join(missing)}, "
        "which trustclip.engines.trl.asynchronous uses. Install trl 1.16."
    )


def unmentioned(source: str, names: Iterable[str] = RELIED_ON) -> list[str]:
    """Names that are no word of TRL's source."""
    return sorted({*names} - {*re.findall(r"\w+", source)})


def check_release(release: str, source: str) -> None:
    """Look in the source of a release that was not tested for what would be missed in silence.

    Raises:
      ImportError: something is missing; the message names it.
    """
    if is_tested(release):
        return
    if missing := unmentioned(source):
        raise ImportError(
            f"trl {release} is not supported: its GRPOTrainer has no {', '.join(missing)}, which "
            f"trustclip.engines.trl uses. Install a tested release: {', '.join(TESTED)}."
        )
    warnings.warn(
        f"trl {release} was not tested with this release of trustclip ({', '.join(TESTED)} "
        "were). The first update compares the gradient of its loss with the method's.",
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
check_release(RELEASE, inspect.getsource(grpo_trainer))


def own_port() -> None:
    """Give the process group of a vLLM in this process a port of its own, unless one is set.

    TRL would take the first of four that is free, and open it when the engine has started: two
    runs that begin together would choose the same.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.setdefault("MASTER_PORT", str(probe.getsockname()[1]))
