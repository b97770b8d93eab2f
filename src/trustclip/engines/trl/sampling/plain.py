"""When the decoder samples as `generate` of Transformers does: at some temperature, nothing else.

Training and evaluation ask here before they decode with `trustclip.engines.trl.sampling.decoding`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import GenerationMixin

from trustclip.engines.trl.sampling import decoding
from trustclip.engines.trl.scoring import hidden

#: Transformers' own, whatever is put in its place later.
_STOCK = vars(GenerationMixin)["generate"]

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


def unlike_generate(model: Any, settings: Mapping[str, Any]) -> Iterator[str]:
    """Reasons why the decoder would not sample as the model's `generate` does; none if it would.

    What ``settings``, those passed to `generate`, leave out or set to None is the model's own.
    """
    if reason := decoding.unsupported(model):
        yield reason
    if own_generate(model):
        yield "the model has a `generate` of its own"
    yield from not_plain(settings, model.generation_config.to_dict())


def own_generate(model: Any) -> bool:
    """Whether something has replaced `generate` of Transformers in a model or its base."""
    inner = hidden.language_model(model)
    return any("generate" in vars(m) for m in (model, inner)) or type(inner).generate is not _STOCK


def not_plain(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Generation settings in force other than plain sampling at some temperature.

    The defaults are the model's own, which apply where the settings passed to `generate` set
    nothing.

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
