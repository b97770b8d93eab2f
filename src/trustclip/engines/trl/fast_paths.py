"""Which fast paths a trainer takes, and why it declines the others: ``docs/fast-paths.md``.

A fast path replaces a part of TRL or Transformers only where the outcome is the same: bit for bit
or to rounding for the head, in distribution for the decoder, and in the gradient for skipping.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from torch import nn
from transformers import GenerationMixin

from trustclip.constraints.base import Method, Trait
from trustclip.engines.trl import decoding, hidden

#: trustclip's output head, its decoding loop, and skipping completions that cannot move the policy.
FastPath = Literal["head", "decoder", "skipping"]

#: Generation settings that do not change the distribution of the next token, at any value.
_IRRELEVANT = {
    "max_new_tokens", "max_length", "temperature", "do_sample", "use_cache", "pad_token_id",
    "bos_token_id", "eos_token_id", "decoder_start_token_id", "disable_compile", "early_stopping",
    "length_penalty", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind",
    "transformers_version", "_from_model_config", "renormalize_logits",
}  # fmt: skip

#: Generation settings that are switched off by 1; the others by 0, False, None or nothing.
_OFF_AT_ONE = {
    "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty", "num_beams",
    "num_beam_groups", "num_return_sequences", "guidance_scale",
}  # fmt: skip


def obstacle(path: FastPath, trainer: Any) -> str | None:
    """The reason why a trainer cannot take a fast path; None if it can.

    Args:
      path: ``"head"``, ``"decoder"`` or ``"skipping"``.
      trainer: a `ConstrainedGRPOTrainer` whose construction by TRL is complete.
    """
    found = {"head": _head, "decoder": _decoder, "skipping": _skipping}[path](trainer)
    return next(found, None)


def sampler_missing(trainer: Any, method: Method) -> str | None:
    """The reason why a method lacks the sampler's log-probabilities; None if it does not."""
    if "logp_rollout" not in method.requires or trainer.use_vllm or trainer.rollout_func:
        return None
    reason = obstacle("decoder", trainer)
    return reason and (
        f"{method.name!r} needs `logp_rollout`, the log-probabilities that completions were "
        "sampled with, and `generate` of Transformers returns none. Set use_vllm=True with "
        "vllm_importance_sampling_correction=False, or pass a rollout_func. (The decoder of "
        f"trustclip cannot sample here: {reason}.)"
    )


def _head(trainer: Any) -> Iterator[str]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.args.head == "trl":
        yield "head='trl'"
    if reason := hidden.unusual(model):
        yield reason
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
    if trainer.is_deepspeed_enabled or trainer.args.cast_lm_head_to_fp32:
        yield "DeepSpeed or cast_lm_head_to_fp32 is on"
    if trainer.args.head == "auto" and trainer.accelerator.device.type != "cpu":
        yield "TRL's Triton kernels serve this device"


def _decoder(trainer: Any) -> Iterator[str]:
    if trainer.args.decoder != "auto":
        yield f"decoder={trainer.args.decoder!r}"
    if trainer.use_vllm or trainer.use_transformers_continuous_batching:
        yield "another engine samples (vLLM or continuous batching)"
    if trainer.rollout_func is not None:
        yield "rollout_func samples"
    if trainer.accelerator.mixed_precision != "no":
        # Its float32 log-probabilities would be compared with those of half-precision passes.
        yield f"passes run under {trainer.accelerator.mixed_precision} autocast"
    if trainer.accelerator.distributed_type not in ("NO", "MULTI_CPU"):
        yield f"the model is wrapped for {trainer.accelerator.distributed_type}"
    model = trainer.accelerator.unwrap_model(trainer.model)
    if reason := decoding.unsupported(model):
        yield reason
    stock = vars(GenerationMixin)["generate"]
    if "generate" in vars(model) or type(model).generate is not stock:
        yield "the model has a `generate` of its own"
    settings = trainer.generation_config.to_dict()
    yield from not_plain(settings, model.generation_config.to_dict())


def not_plain(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Generation settings in force other than plain sampling at some temperature.

    Args:
      settings: a ``GenerationConfig`` as passed to `generate`.
      defaults: the model's own, which applies where the first sets nothing.

    Example:
      >>> list(not_plain({"do_sample": True, "top_k": 0, "top_p": 0.9}, {"suppress_tokens": [7]}))
      ['generation_config sets suppress_tokens=[7]', 'generation_config sets top_p=0.9']
      >>> list(not_plain({"do_sample": True}, {}))  # then Transformers takes the likeliest 50
      ['generation_config sets top_k=50']
    """
    names = sorted({*settings, *defaults, "top_k"} - _IRRELEVANT)
    for name in names:
        value = settings.get(name)
        value = defaults.get(name) if value is None else value
        if name == "top_k" and value is None:
            value = 50
        if value and not (name in _OFF_AT_ONE and value == 1):
            yield f"generation_config sets {name}={value!r}"


def _skipping(trainer: Any) -> Iterator[str]:
    method = trainer.method
    if not trainer.args.skip_zero_advantage:
        yield "skip_zero_advantage=False"
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
    if Trait.ADAPTS in method.traits:
        yield f"the threshold of {method.name!r} adapts to metrics over all tokens"
