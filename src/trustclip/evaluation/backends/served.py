"""Completions from a server with OpenAI's chat protocol: vLLM, SGLang, llama.cpp, OpenAI."""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from trustclip.evaluation.backends.local import Completion, Conversation, Sampling, derived_seed
from trustclip.support.secrets import redacted
from trustclip.support.text import one_line

#: Pauses before each further attempt, seconds.
PAUSES = (1.0, 2.0, 4.0, 8.0)
#: Longest wait for one reply, seconds: 32,768 tokens at ten a second.
PATIENCE = 3600.0


class Served:
    """A model behind ``POST BASE_URL/chat/completions``.

    The environment's ``OPENAI_API_KEY``, where set, is sent as the bearer token. Overload (status
    429), server errors (5xx) and lost connections are tried again, any other refusal is not. What
    a request leaves open the server decides: vLLM's takes ``top_k`` and the like from the model's
    generation_config.json unless it was started with ``--generation-config vllm``.

    Args:
      base_url: address up to the version, e.g. ``http://127.0.0.1:8000/v1``.
      model: name under which the server knows the model.
      sampling: how tokens are drawn.
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
        self._shown = redacted(self._url)  # in errors
        self._model, self._sampling, self._concurrency = model, sampling, concurrency
        extra = {"chat_template_kwargs": {"enable_thinking": thinking}}
        self._extra: dict[str, Any] = {} if thinking is None else extra
        self._key = os.environ.get("OPENAI_API_KEY")

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
        body = self._ask(self._question(prompt, seed))
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
                f"{self._shown} returned no chat completion: {_start(body)}"
            ) from error

    def _question(self, prompt: Conversation, seed: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": prompt,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_tokens,
            "n": 1,
            "seed": seed,
            **self._extra,
        }

    def measured(self, prompt: Conversation, seed: int) -> list[tuple[int, float]]:
        """Token ids of one completion, with the server's log-probabilities of them, nats.

        Sampled from the whole vocabulary. vLLM and llama.cpp name the ids; other servers may not.

        Raises:
          ValueError: the server refused, could not be reached, or names no ids.
        """
        asked = self._question(prompt, seed) | {
            **{"logprobs": True, "top_logprobs": 1},  # llama.cpp has none at 0
            **{"top_k": 0, "min_p": 0.0},  # vLLM takes the model's own where none is given
            "return_tokens_as_token_ids": True,  # vLLM
        }
        body = self._ask(asked)
        try:
            tokens = json.loads(body)["choices"][0]["logprobs"]["content"]
            return [(_id(token), float(token["logprob"])) for token in tokens]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{self._shown} returned no token ids with log-probabilities, as vLLM's and "
                f"llama.cpp's do: {_start(body)}"
            ) from error

    def named(self) -> str:
        """Name of the first model that the server has."""
        url = self._url.removesuffix("/chat/completions") + "/models"
        body = self._patiently(Request(url))
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{redacted(url)} names no model: {_start(body)}") from error

    def _ask(self, question: dict[str, Any]) -> bytes:
        request = Request(
            self._url,
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        return self._patiently(request)

    def _patiently(self, request: Request) -> bytes:
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        for pause in PAUSES:
            try:
                return self._send(request)
            except _Passing:
                time.sleep(pause)
        return self._send(request)

    def _send(self, request: Request) -> bytes:
        try:
            with _OPENER.open(request, timeout=PATIENCE) as reply:
                return reply.read()
        except HTTPError as error:
            if 300 <= error.code < 400:
                place = one_line(redacted(str(error.headers.get("Location"))))
                raise ValueError(
                    f"{self._shown} sends its clients elsewhere, to {place}: neither questions nor "
                    "the key go there. Where you trust it, give that address as base_url."
                ) from error
            kind = _Passing if error.code == 429 or error.code >= 500 else ValueError
            raise kind(f"{self._shown} returned {error.code}: {_start(error.read())}") from error
        except (OSError, HTTPException) as error:
            raise _Passing(f"{self._shown} cannot be reached: {redacted(str(error))}") from error


class _Stay(HTTPRedirectHandler):
    """Follows no redirection, after which a question would go without its text."""

    def redirect_request(self, req: Any, *_: Any, **__: Any) -> None:
        return None


_OPENER = build_opener(_Stay)


def check_address(base_url: str) -> None:
    """Refuse the address of a server that cannot be asked.

    Raises:
      ValueError: what is wrong with it.
    """
    if wrong := _wrong(base_url):
        raise ValueError(f"base_url={redacted(base_url)!r} {wrong}.")


def _wrong(address: str) -> str:
    """What is wrong with the address of a server; nothing if it can be asked."""
    if not address.startswith(("http://", "https://")):
        return "must start with http:// or https://"
    if any(c.isspace() or not c.isprintable() for c in address):
        return "holds a space or a control character"
    try:
        parts = urlsplit(address)
        named = parts.hostname is not None and parts.port != 0
    except ValueError:
        named = False
    return "" if named else "names no server: such as http://127.0.0.1:8000/v1"


class _Passing(ValueError):
    """A failure that may not recur in the next attempt."""


def _id(token: dict[str, Any]) -> int:
    """The id of a token: llama.cpp's field, or vLLM's text ``token_id:7``."""
    return token["id"] if "id" in token else int(token["token"].removeprefix("token_id:"))


def _start(body: bytes) -> str:
    """The beginning of a reply, safe to print."""
    return one_line(redacted(body[:300].decode(errors="replace")))
