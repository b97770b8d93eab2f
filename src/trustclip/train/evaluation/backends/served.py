"""Completions from a server with OpenAI's chat protocol: vLLM, SGLang, llama.cpp, OpenAI."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trustclip.support.http import ask, check_address, start_of
from trustclip.support.secrets import redact
from trustclip.train.evaluation.backends.local import (
    Completion,
    Conversation,
    Sampling,
    derived_seed,
)


class Served:
    """A model behind ``POST BASE_URL/chat/completions``.

    Requests go through `trustclip.support.http.ask`. What one leaves open, the server decides:
    vLLM's takes ``top_k`` and the like from the model's generation_config.json unless it was
    started with ``--generation-config vllm``.

    Args:
      base_url: address up to the version, e.g. ``http://127.0.0.1:8000/v1``.
      model: name under which the server knows the model.
      concurrency: requests under way at once.
      thinking: value of ``enable_thinking`` for the model's chat template, as vLLM and SGLang take
        it; None for the template's own.

    Raises:
      ValueError: an address that is not http or https, or names no server.

    Example:
      >>> Served("localhost:8000/v1", "m", Sampling(1.0, 1.0, 8), concurrency=1)
      Traceback (most recent call last):
      ...
      ValueError: base_url='localhost:8000/v1' must start with http:// or https://.

    References:
      https://platform.openai.com/docs/api-reference/chat
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        sampling: Sampling,
        concurrency: int,
        thinking: bool | None = None,
    ) -> None:
        check_address(base_url)
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._public_url = redact(self._url)  # for errors
        self._model, self._sampling, self._concurrency = model, sampling, concurrency
        extra = {"chat_template_kwargs": {"enable_thinking": thinking}}
        self._extra: dict[str, Any] = {} if thinking is None else extra

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt, one per request; see `Backend`.

        Raises:
          ValueError: the server refused, could not be reached, or returned no completion.
        """
        jobs = [
            (prompt, derived_seed(seed, number, index))
            for number, prompt in enumerate(prompts)
            for index in range(n)
        ]
        with ThreadPoolExecutor(self._concurrency) as threads:
            flat = list(threads.map(self._complete, *zip(*jobs, strict=True)))
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    def _complete(self, prompt: Conversation, seed: int) -> Completion:
        request = {
            "model": self._model,
            "messages": prompt,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_tokens,
            "n": 1,
            "seed": seed,
            **self._extra,
        }
        body = ask(self._url, request)
        try:
            reply = json.loads(body)
            choice = reply["choices"][0]
            return Completion(
                choice["message"]["content"] or "",
                reply["usage"]["completion_tokens"],
                truncated=choice["finish_reason"] == "length",
            )
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{self._public_url} returned no chat completion: {start_of(body)}"
            ) from error
