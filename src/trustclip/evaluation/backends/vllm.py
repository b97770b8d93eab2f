"""Completions from vLLM in this process: the only module that imports it."""

from collections.abc import Sequence
from typing import Any

from trustclip.evaluation.backends.local import Completion, Conversation, Sampling, derived_seed
from trustclip.tasks.prompts import PromptStyle, set_chat_template


class VLLM:
    """A model in vLLM. Prompts of one batch run together: a large ``batch_size`` pays.

    Args:
      model: folder or hub id.
      sampling: how tokens are drawn.
      style: prompt style, for a tokenizer without a chat template.
      seed: of the engine.

    Raises:
      ValueError: vLLM is not installed.

    References:
      https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm.html
    """

    def __init__(self, model: str, sampling: Sampling, style: str | PromptStyle, seed: int) -> None:
        try:
            import vllm as package  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError(
                f"vLLM cannot be used: {error}; pip install 'trustclip[vllm]'."
            ) from None
        vllm: Any = package  # a type checker finds this file under the name of the package
        self._params: Any = vllm.SamplingParams
        self._llm: Any = vllm.LLM(model=model, seed=seed)
        self._sampling = sampling
        tokenizer = self._llm.get_tokenizer()
        set_chat_template(tokenizer, style)
        self._template = tokenizer.chat_template

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt, all at once; see `Backend`."""
        # vLLM refuses several samples at temperature 0: they would be the same.
        draws = 1 if self._sampling.temperature == 0 else n
        params = [
            self._params(
                n=draws,
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
                top_k=-1,
                max_tokens=self._sampling.max_tokens,
                seed=derived_seed(seed, number),
                skip_special_tokens=True,
            )
            for number in range(len(prompts))
        ]
        replies = self._llm.chat(
            list(prompts), params, chat_template=self._template, use_tqdm=False
        )
        return [
            [_completion(output) for output in reply.outputs] * (n // draws) for reply in replies
        ]


class TrainingVLLM:
    """The vLLM engine of a training run, used for its evaluations.

    Its samples depend on how many it has drawn before, not on a seed: TRL draws them by one
    generator for all.

    Args:
      generation: the trainer's ``vllm_generation``, in either of its modes.
      tokenizer: with a chat template.
      sampling: how tokens are drawn.
    """

    def __init__(self, generation: Any, tokenizer: Any, sampling: Sampling) -> None:
        self._generation, self._tokenizer, self._sampling = generation, tokenizer, sampling
        generation.sync_weights()

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt, all at once; see `Backend`."""
        template = self._tokenizer.apply_chat_template
        ids = [
            template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
            for prompt in prompts
            for _ in range(n)
        ]
        ours = {
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "max_completion_length": self._sampling.max_tokens,
        }
        theirs = {name: getattr(self._generation, name) for name in ours}
        vars(self._generation).update(ours)
        try:
            _, drawn, *_ = self._generation.generate(ids, None, n)
        finally:
            vars(self._generation).update(theirs)
        flat = [self._finished(list(tokens)) for tokens in drawn]
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    def _finished(self, tokens: list[int]) -> Completion:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        ended = bool(tokens) and tokens[-1] == self._tokenizer.eos_token_id
        return Completion(text, len(tokens), truncated=not ended)


def _completion(output: Any) -> Completion:
    return Completion(
        output.text, len(output.token_ids), truncated=output.finish_reason == "length"
    )
