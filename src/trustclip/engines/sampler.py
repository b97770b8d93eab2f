"""Settings of a sampler that differs from the policy in training. Imports no engine."""

from typing import Any, Literal

from trustclip.support.checked import UpToOne, Whole, checked

#: The Llama family, which trustclip decodes: classes of Transformers that differ in
#: biases and in the norms of queries and keys alone.
DECODED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@checked
class Sampler:
    """The policy that samples, as a copy of the one in training: rounded, quantised, old, cut off.

    In production another program samples (vLLM, SGLang), in another precision and often with
    weights that are some updates old. These settings produce the same mismatch on purpose, of known
    size. A copy of any model samples by Transformers' `generate`, of the Llama family on a CPU by
    trustclip's decoder.

    Example:
      >>> Sampler().exact, Sampler(dtype="bfloat16", lag=4).exact
      (True, False)
    """

    dtype: Literal["float32", "bfloat16", "float16", "int8", "int4"] = "float32"
    """Precision of the copy's weights; int8 and int4 quantise each row of a matrix."""
    lag: Whole = 0
    """Age of the copy in generations; 0 is the policy in training."""
    top_p: UpToOne = 1.0
    """Nucleus-sampling mass of the sampler."""
    top_k: Whole = 0
    """Number of likeliest tokens that the sampler draws from; 0 for all."""

    @property
    def exact(self) -> bool:
        """Whether the sampler is the policy in training itself."""
        return self == Sampler()


def as_sampler(value: Any) -> Sampler:
    """A `Sampler` from itself, a mapping of its fields, or None."""
    if isinstance(value, Sampler):
        return value
    return Sampler(**(value or {}))
