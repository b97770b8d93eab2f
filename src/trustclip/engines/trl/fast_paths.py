"""Which fast paths a trainer takes, and why it declines the others: ``docs/fast-paths.md``.

A fast path replaces a part of TRL or Transformers only where the outcome is the same: bit for bit
or to rounding for the head, in distribution for the decoder, and in the gradient for skipping.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sized
from typing import Any, Literal

import psutil
import torch
from torch import Tensor, nn

from trustclip.constraints.adaptive import adapts
from trustclip.constraints.base import Trait
from trustclip.engines import limits
from trustclip.engines.trl.additions import addition
from trustclip.engines.trl.sampling import sampled
from trustclip.engines.trl.sampling.llama import unlike_llama
from trustclip.engines.trl.sampling.plain import not_plain, own_generate, unlike_generate
from trustclip.engines.trl.scoring import hidden, sharing
from trustclip.engines.trl.upstream import FUSED_HEAD

#: trustclip's output head, its decoding loop, skipping completions that cannot move the policy, and
#: one pass over each prompt.
FastPath = Literal["head", "decoder", "skipping", "sharing"]

#: Prompts are shared unasked if that saves at least this share of an update's tokens.
_WORTH = 0.05

#: The lengths of so many prompts decide.
_LOOKED_AT = 32

#: Unasked, states for the backward pass may take at most this share of the free memory.
_SPARE = 0.125

#: glibc's numbers of two settings: from which size a block is mapped by itself, and how much free
#: memory at the top of the heap goes back to the system. From malloc.h.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1

#: Precision of the decoder by that of the trainer's passes; None for that of the weights.
DTYPES = {"no": None, "bf16": torch.bfloat16}


def obstacle(path: FastPath, trainer: Any) -> str | None:
    """The reason why a trainer, once TRL has constructed it, cannot take a fast path, or None."""
    return next(_REASONS[path](trainer), None)


def sharing_pays(trainer: Any) -> tuple[bool, str]:
    """Whether an update takes fewer tokens where prompts are shared, and a sentence that says why.

    Of an update's tokens, completions at their longest, sharing saves $(1 - 1/k) S / (S + T)$, with
    $S$ the mean length of prompts, $T$ the longest completion and $k$ the completions of a prompt
    that meet in a micro-batch.
    """
    if reason := obstacle("sharing", trainer):
        return False, f"Prompts are not shared: {reason}."
    if not (lengths := _prompt_lengths(trainer)):
        return False, "Prompts are not shared: their lengths are not known before training."
    prompt, longest = sum(lengths) / len(lengths), trainer.max_completion_length
    together = _completions_together(trainer)
    saved = (1 - 1 / together) * prompt / (prompt + longest)
    of = f"of {prompt:.0f} tokens and completions of up to {longest}"
    if saved < _WORTH:
        return False, f"Prompts are not shared: with prompts {of} that would save {saved:.1%}."
    return True, f"Prompts are shared: with prompts {of} that saves {saved:.1%} of the tokens."


def keep_states(trainer: Any) -> None:
    """Turn TRL's gradient checkpointing off where a CPU's free memory allows, and print so.

    The gradient is the same bit for bit. What a token takes is measured in a pass over 32 of them,
    and taken twice: shared prompts are copied. On a GPU TRL's checkpoints stay.
    """
    args, model = trainer.args, trainer._unwrapped()
    if trainer.accelerator.device.type != "cpu" or unlike_llama(model):
        return
    if not (lengths := _prompt_lengths(trainer)):
        return
    inner, longest = hidden.language_model(model), max(lengths) + trainer.max_completion_length
    tokens = args.per_device_train_batch_size * longest * trainer.accelerator.num_processes
    masks = 4 * tokens * trainer.max_completion_length * inner.config.num_hidden_layers
    needed, free = 2 * _kept(inner) * tokens + masks, psutil.virtual_memory().available
    if needed > _SPARE * free:
        return
    args.gradient_checkpointing = args.activation_checkpointing = False
    model.gradient_checkpointing_disable()
    sizes = f"the states of a micro-batch take {needed / 2**30:.1f} of {free / 2**30:.1f} GiB"
    if trainer.accelerator.is_main_process:
        print(f"Gradient checkpointing is off: {sizes}.")


def keep_memory() -> None:
    """Let glibc keep the memory that an update frees for the next one; the peak is the same.

    Otherwise it returns every large block to the system, which makes each page anew and fills it
    with zeros: a tenth of an update's time on a CPU. Settings in the environment stay in force.
    """
    rules = [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]
    if sys.platform != "linux" or rules:
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, -1)


def _kept(inner: Any) -> float:
    """Bytes that a pass keeps of each token for its backward pass."""
    sizes: dict[int, int] = {p.untyped_storage().data_ptr(): 0 for p in inner.parameters()}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        sizes.setdefault(storage.data_ptr(), storage.nbytes())
        return x

    was_training = inner.training
    inner.eval()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        states = inner.base_model(input_ids=torch.zeros(1, 32, dtype=torch.long), use_cache=False)
    inner.train(was_training)
    del states
    return sum(sizes.values()) / 32


def _prompt_lengths(trainer: Any) -> list[int]:
    """Tokens of the first prompts of the data; empty where they can be seen in training alone."""
    data = trainer.train_dataset
    if not (isinstance(data, Sized) and hasattr(trainer, "_tokenize_prompts")) or trainer.tools:
        return []
    prompts = [data[place]["prompt"] for place in range(min(len(data), _LOOKED_AT))]  # type: ignore[index]
    return [len(ids) for ids in trainer._tokenize_prompts(prompts)[0]]


def _completions_together(trainer: Any) -> float:
    """Completions of one prompt that a micro-batch has, on average."""
    args, each = trainer.args, trainer.num_generations
    if args.whole_groups:
        return min(each, args.per_device_train_batch_size)
    part = args.gradient_accumulation_steps / args.steps_per_generation  # of a generation
    present = 1 - (1 - min(part, 1)) ** each  # share of the prompts that an update has
    return max(1, min(each * part / present, args.per_device_train_batch_size))


def unrecorded(trainer: Any) -> str | None:
    """The reason why nothing gives the log-probabilities of sampling; None if something does."""
    serves = trainer.use_vllm or trainer.rollout_func
    if serves or obstacle("decoder", trainer) is None:
        return None
    return next(_recording_obstacles(trainer), None)


def check_sampler(trainer: Any) -> None:
    """Refuse, as a ValueError, what depends on a model and is known only now."""
    methods = (trainer.method, *trainer.args.watched())
    dependents = [repr(method.name) for method in methods if "logp_rollout" in method.requires]
    if dependents and (reason := unrecorded(trainer)):
        raise ValueError(
            f"{dependents[0]} needs `logp_rollout`, the log-probabilities that completions were "
            f"sampled with, and they cannot be recorded here: {reason}. Set use_vllm=True with "
            "vllm_importance_sampling_correction=False, or pass a rollout_func."
        )
    alone = not (trainer.tools or trainer.rollout_func)
    if alone and (problem := limits.refusal(trainer.method, limits.ALONE)):
        raise ValueError(problem)
    _check_candidates(trainer)
    # TRL refuses it in its own config, and does not see it in a file of accelerate's.
    sizes = trainer.accelerator.parallelism_config
    for by in ("cp_size", "sp_size"):
        if (ranks := getattr(sizes, by, 1)) > 1:
            raise ValueError(
                f"`parallelism_config` has {by} = {ranks}, which shares out the tokens of each "
                "completion, and GRPOTrainer of TRL does not split what it has sampled itself: "
                "set it to 1 (verl splits sequences)."
            )
    exact = any(name.startswith(("kl_", "top_k_")) for name in trainer.method.requires)
    flat = trainer.accelerator.distributed_type == "FSDP" and not trainer.accelerator.is_fsdp2
    if flat and (exact or trainer.args.exact_kl_every):
        raise ValueError(
            "the exact KL divergence needs the output head outside of the model's pass, and FSDP 1 "
            "has it flattened among other weights there: set `fsdp_version: 2`."
        )


def _check_candidates(trainer: Any) -> None:
    if not trainer.args.kept_candidates():
        return
    dependent = "replay" if trainer.args.replay else "candidates"
    if "candidates" in trainer.method.requires:
        dependent = trainer.method.name
    reasons = [f"trustclip's head does not serve this model: {reason}" for reason in _head(trainer)]
    if trainer.rollout_func is not None:
        reasons.append("rollout_func returns that of the sampled token alone")
    elif trainer.use_vllm and not hasattr(trainer.vllm_generation, "logprobs"):
        reasons.append("this release of TRL asks vLLM for that of the sampled token alone")
    elif reason := unrecorded(trainer):
        reasons.append(reason)
    if trainer.tools:
        reasons.append("tools make completions of several turns")
    if reasons:
        raise ValueError(
            f"{dependent!r} needs `candidates`, the sampler's log-probabilities of further tokens, "
            f"and these cannot be recorded here: {reasons[0]}."
        )


def _recording_obstacles(trainer: Any) -> Iterator[str]:
    if trainer.use_transformers_continuous_batching:
        yield "continuous batching returns none"
    model = trainer._unwrapped()
    if own_generate(model):
        yield "the model has a `generate` of its own"
    if trainer.generation_config.do_sample is False:
        yield "generation_config sets do_sample=False"
    settings = {**trainer.generation_config.to_dict(), **dict.fromkeys(sampled.RECORDED, None)}
    defaults = {**model.generation_config.to_dict(), **dict.fromkeys(sampled.RECORDED, 0)}
    yield from not_plain(settings, defaults)


def _head(trainer: Any) -> Iterator[str]:
    model = trainer._unwrapped()
    if trainer.args.head == "trl":
        yield "head='trl'"
    if not FUSED_HEAD:
        yield "this release of TRL, before 1.15, computes logits itself"
    head = hidden.language_model(model).get_output_embeddings()
    if type(head) is not nn.Linear or not head.weight.is_floating_point():
        # Adapted or quantised: its weight alone is not what multiplies the hidden states.
        yield f"its output head is a {type(head).__name__}, not a plain linear layer"
    if trainer.aux_loss_enabled:
        yield "its router has an auxiliary loss"
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        yield "its adapter adds tokens to the prompt"
    if hasattr(trainer.model.config, "vision_config"):
        yield "it reads images"
    if trainer.args.cast_lm_head_to_fp32:
        yield "cast_lm_head_to_fp32 is on"
    yield from _additions(trainer)  # before a pass, which hooks would see
    if reason := hidden.unusual(model):
        yield reason
    requested = trainer.args.head == "trustclip" or trainer.args.kept_candidates()
    if not requested and trainer.accelerator.device.type != "cpu":
        yield "TRL's Triton kernels serve this device"


def _additions(trainer: Any) -> Iterator[str]:
    """What has been added to the model, before TRL wrapped its forward pass or since."""
    if reason := trainer._added or addition(trainer._unwrapped()):
        yield reason


def _decoder(trainer: Any) -> Iterator[str]:
    if trainer.args.decoder != "auto":
        yield f"decoder={trainer.args.decoder!r}"
    if trainer.use_vllm or trainer.use_transformers_continuous_batching:
        yield "another engine samples (vLLM or continuous batching)"
    if trainer.rollout_func is not None:
        yield "rollout_func samples"
    if trainer.accelerator.mixed_precision not in DTYPES:
        yield f"passes run under {trainer.accelerator.mixed_precision} autocast"
    if trainer.accelerator.distributed_type not in ("NO", "MULTI_CPU"):
        yield f"the model is wrapped for {trainer.accelerator.distributed_type}"
    yield from _additions(trainer)
    if trainer._apart is not None:
        yield trainer._apart
    model = trainer._unwrapped()
    yield from unlike_generate(model, trainer.generation_config.to_dict())


def _skipping(trainer: Any) -> Iterator[str]:
    method = trainer.method
    if not trainer.args.skip_zero_advantage:
        yield "skip_zero_advantage=False"
    yield from _additions(trainer)
    if trainer.beta:
        yield "the KL penalty also moves completions without an advantage"
    if trainer._entropy_bonus_enabled:
        yield "the entropy bonus also moves completions without an advantage"
    if trainer.aux_loss_enabled:
        yield "the router's loss is over all completions"
    if trainer.top_entropy_quantile < 1:
        yield "top_entropy_quantile is over the tokens of all completions"
    if Trait.MOVES_WITHOUT_ADVANTAGE in method.traits:
        yield f"{method.name!r} also moves tokens without an advantage"
    if method.statistics_over == "micro_batch":
        yield f"{method.name!r} measures statistics over all tokens of a micro-batch"
    if adapts(method):
        yield f"the threshold of {method.name!r} adapts to metrics over all tokens"


def _sharing(trainer: Any) -> Iterator[str]:
    yield from _head(trainer)
    if trainer.use_transformers_continuous_batching:
        yield "continuous batching needs an attention of its own"
    model = trainer._unwrapped()
    if reason := unlike_llama(model):
        yield f"prompts are shared in the Llama family only, and {reason}"
        return
    config = hidden.language_model(model).config
    if config._attn_implementation not in ("sdpa", sharing.ATTENTION):
        yield f"its attention is {config._attn_implementation!r}, not 'sdpa'"
    if config.attention_dropout:
        yield "its attention has dropout"


_REASONS: dict[FastPath, Callable[[Any], Iterator[str]]] = {
    "head": _head,
    "decoder": _decoder,
    "skipping": _skipping,
    "sharing": _sharing,
}
