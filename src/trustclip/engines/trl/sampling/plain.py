"""When the decoder samples as `generate` of Transformers does: at some temperature, nothing else.

Training and evaluation ask here before they decode with `trustclip.engines.trl.sampling.decoding`.
It knows an architecture and its weights. Hooks and modules that it does not know are seen
(`trustclip.engines.trl.additions`); a function that was replaced elsewhere shows only where its
log-probabilities are compared with the model's, once a run.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
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

#: Rounding alone makes at most this mean difference of log-probabilities (nats a token).
_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.1}

#: At most so many completions are compared.
_COMPARED = 4


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


@torch.no_grad()
def disagreement(
    trainer: Any,
    prompts: Sequence[Sequence[int]],
    decoded: Sequence[decoding.Decoded],
    dtype: torch.dtype,
) -> str | None:
    """How a model's own pass differs from its decoder beyond rounding; None if it does not.

    A difference is warned of. Some completions are compared, in one pass of the model.
    Every rank must ask for it, and all get the same answer.
    """
    batch = min(trainer.args.per_device_train_batch_size, _COMPARED)
    prompts, decoded = prompts[:batch], decoded[:batch]
    length = max(len(one.tokens) for one in decoded)
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest + length, dtype=torch.long)
    mask, logps = torch.zeros_like(ids), torch.zeros(len(prompts), length)
    for row, (prompt, one) in enumerate(zip(prompts, decoded, strict=True)):
        place = slice(longest - len(prompt), longest + len(one.tokens))
        ids[row, place], mask[row, place] = torch.tensor([*prompt, *one.tokens]), 1
        logps[row, : len(one.tokens)] = torch.tensor(one.logps)
    scored, *_ = trainer._score(None, trainer.model, ids, mask, length, batch)
    apart = (scored.float() - logps).abs()[mask[:, longest:].bool()].mean()
    mean = trainer.accelerator.gather(apart).max().item()
    if mean <= _ROUNDING[dtype]:
        return None
    reason = f"its log-probabilities are {mean:.2g} nats a token from those of the model's own pass"
    warnings.warn(
        f"the decoder does not sample from this model: {reason}. So the model computes more than "
        "its weights say, and `generate` of Transformers samples from here on, as with "
        "decoder='transformers'.",
        stacklevel=3,
    )
    return reason
