"""A Qwen3 of 0.4 or 3 million parameters with a byte-level tokenizer, to train on a CPU."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


#: Models that are made on the spot, by the names given in place of a path: 0.4 and 3.2 million
#: parameters.
BUILT_IN: dict[str, dict[str, int]] = {
    "tiny": {"layers": 2, "hidden": 128},
    "small": {"layers": 4, "hidden": 256},
}

PAD, EOS = "<|pad|>", "<|eos|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role not in ["system", "user", "assistant"] -%}
{{- raise_exception("role must be system, user or assistant, got " ~ message.role) -}}
{%- endif -%}
{{- "<|" ~ message.role ~ "|>" -}}
{%- if message.role == "assistant" -%}
{%- generation -%}{{- message.content ~ eos_token -}}{%- endgeneration -%}
{%- else -%}
{{- message.content -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|>" -}}{%- endif -%}
"""


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """Byte-level tokenizer: any text round-trips, chat marks and answer tags are single tokens.

    The answer tags are not special tokens, so ``decode(skip_special_tokens=True)`` keeps them.

    Returns:
      A tokenizer of 265 tokens: 256 bytes, ``<|pad|>``, ``<|eos|>``, three roles, four tags.

    Example:
      >>> tokenizer = tiny_tokenizer()
      >>> ids = tokenizer.encode("√2 <SOLUTION>7</SOLUTION>")
      >>> len(ids), tokenizer.decode(ids, skip_special_tokens=True)
      (8, '√2 <SOLUTION>7</SOLUTION>')
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in (PAD, EOS, *ROLES)])
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=4096,
    )


def tiny_model(
    seed: int = 0, *, layers: int = 2, hidden: int = 128
) -> "tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]":
    """Randomly initialised Qwen3 in float32 with tied embeddings, and its tokenizer.

    The model is in evaluation mode; the caller's random state is unchanged. ``hidden`` is a
    positive multiple of 64: heads of 32, two query heads per key-value head.

    Example:
      >>> model, tokenizer = tiny_model(layers=1, hidden=64)
      >>> model.num_parameters(), len(tokenizer)
      (66368, 265)
    """
    import torch
    from transformers import GenerationConfig, Qwen3ForCausalLM

    tokenizer = tiny_tokenizer()
    config = tiny_config(tokenizer, layers=layers, hidden=hidden)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).eval()
    ends = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=True, **ends)
    return model, tokenizer


def tiny_config(tokenizer: Any, *, layers: int, hidden: int) -> Any:
    """The configuration of `tiny_model`, without its weights."""
    from transformers import Qwen3Config

    eos, pad = (tokenizer.get_vocab()[mark] for mark in (EOS, PAD))
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        # The usual 0.02 and 10000 suit wide models and long texts. Here nearby positions must be
        # distinguishable: with 10000 the same fine-tuning takes about twice the steps.
        initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        dtype="float32",
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
