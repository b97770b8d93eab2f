"""Completions from a model: the interface of every backend, and the local one."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Conversation = list[dict[str, str]]


@dataclass(frozen=True)
class Completion:
    """One sampled completion."""

    text: str  # without the prompt; answer tags kept, end marks not
    tokens: int  # how many were generated, the end mark included
    truncated: bool  # whether the length limit ended it


@dataclass(frozen=True)
class Sampling:
    """Sampling settings."""

    temperature: float  # 0 for the likeliest token
    top_p: float  # nucleus
    max_tokens: int  # longest completion


class Backend(Protocol):
    """The interface that evaluation needs."""

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt; the same seed and prompts give the same ones."""
        ...


def derived_seed(*parts: object) -> int:
    """A 32-bit seed that depends only on ``parts``, on every machine.

    Example:
      >>> derived_seed(0, "amc23", 1) == derived_seed(0, "amc23", 1)
      True
    """
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def prompt_ids(tokenizer: Any, prompts: Sequence[Conversation], n: int = 1) -> list[list[int]]:
    """Token ids of prompts, each ``n`` times, up to where the model's answer begins."""
    template = tokenizer.apply_chat_template
    return [
        template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
        for prompt in prompts
        for _ in range(n)
    ]


class Local:
    """A Hugging Face model in this process.

    Transformers' `generate` samples, so that everything that the model's ``generation_config`` sets
    applies (suppressed tokens, a repetition penalty). Where only a temperature applies, a model of
    the Llama family on a CPU is decoded by a faster loop.

    ``stop`` is called after each token: True ends all completions there, to be discarded.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        sampling: Sampling,
        batch_size: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._model, self.tokenizer = model.eval(), tokenizer
        self._sampling, self._batch_size, self._stop = sampling, batch_size, stop

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt, in batches; see `Backend`."""
        import torch

        ids = prompt_ids(self.tokenizer, prompts, n)
        flat: list[Completion] = []
        device = self._model.device
        devices = [device.index or 0] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(ids), self._batch_size):
                flat += self._batch(ids[start : start + self._batch_size])
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    def _batch(self, ids: list[list[int]]) -> list[Completion]:
        length = max(map(len, ids))
        room = self._model.config.get_text_config().max_position_embeddings - length
        limit = min(self._sampling.max_tokens, room)
        if limit < 1:
            return [Completion("", 0, truncated=True) for _ in ids]
        return [self._completion(row, limit) for row in self._tokens(ids, length, limit)]

    def _tokens(self, ids: list[list[int]], length: int, limit: int) -> list[list[int]]:
        """New tokens of each row, with or without those after the end token."""
        from trustclip.engines.trl.sampling.decoding import Decoder
        from trustclip.engines.trl.sampling.generate import criteria
        from trustclip.engines.trl.sampling.plain import unlike_generate

        settings = {"top_k": 0, "top_p": self._sampling.top_p}
        if next(unlike_generate(self._model, settings), None) is None:
            temperature = self._sampling.temperature
            decoder = Decoder(self._model)
            decoded = decoder.decode(ids, limit, self._ends, temperature, stop=self._stop)
            return [completion.tokens for completion in decoded]
        inputs = self.tokenizer.pad(
            {"input_ids": ids}, return_tensors="pt", padding_side="left"
        ).to(self._model.device)
        ending = {"stopping_criteria": criteria(self._stop), "max_new_tokens": limit}
        output = self._model.generate(**inputs, **ending, **self._options())
        return output[:, length:].tolist()

    @property
    def _ends(self) -> set[int]:
        ends = self._model.generation_config.eos_token_id
        return set(ends) if isinstance(ends, list) else {ends} - {None}

    def _options(self) -> dict[str, Any]:
        if self._sampling.temperature == 0:
            return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return {
            "do_sample": True,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": 0,
        }

    def _completion(self, ids: list[int], limit: int) -> Completion:
        ends = self._ends
        count = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
        tokens = len(ids) if count is None else count
        text = self.tokenizer.decode(ids[:tokens], skip_special_tokens=True)
        return Completion(text, tokens, truncated=count is None and tokens >= limit)
