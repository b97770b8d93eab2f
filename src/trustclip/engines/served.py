"""A server with OpenAI's protocol that is compared with a model: vLLM, llama.cpp.

Token ids go to ``POST URL/completions`` and come back with the log-probability that each was drawn
with. Imports neither PyTorch nor an engine.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trustclip.support.http import ask, check_address, first_model, start_of
from trustclip.support.secrets import redact

#: Requests under way at once.
TOGETHER = 64
#: vLLM's name for log-probabilities of the distribution that a token was drawn from.
PROCESSED = "processed_logprobs"


@dataclass(frozen=True)
class ServedSampler:
    """A model behind ``POST URL/completions``.

    Raises:
      ValueError: an address that is not http or https, or names no server.

    References:
      https://platform.openai.com/docs/api-reference/completions
    """

    url: str  # up to the version, e.g. http://127.0.0.1:8000/v1
    most: int  # tokens of a completion
    #: How tokens are drawn, by the protocol's names: `temperature`, `top_p`, ...
    drawn: Mapping[str, float] = field(default_factory=dict)
    name: str = ""  # that the server has for its model; the first that it has where empty

    def __post_init__(self) -> None:
        check_address(self.url)

    def complete(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Token ids of one completion of each prompt, and their log-probabilities, nats.

        Raises:
          ValueError: the server refused, cannot be reached, or does not name ids with
            log-probabilities.
        """
        name = self.name or first_model(self.url)
        with ThreadPoolExecutor(TOGETHER) as threads:
            completions = [*threads.map(lambda p, s: self._sample(name, p, s), prompts, seeds)]
        return [ids for ids, _ in completions], [logps for _, logps in completions]

    def _sample(self, name: str, prompt: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        request = {
            "model": name,
            "prompt": [*prompt],
            "max_tokens": self.most,
            "seed": seed,
            **{"n": 1, "logprobs": 1, "top_k": 0, "min_p": 0.0},  # vLLM has the model's own
            "return_token_ids": True,  # vLLM
            **self.drawn,
        }
        body = ask(self._address("completions"), request)
        try:
            return _pairs(json.loads(body)["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{self.shown} returned no token ids with log-probabilities, as vLLM's and "
                f"llama.cpp's servers do, so it cannot be compared: {start_of(body)}"
            ) from error

    def configuration(self) -> Mapping[str, Any] | None:
        """The configuration of a vLLM in development mode; None for any other server."""
        try:
            return json.loads(ask(self._address("/server_info?config_format=json")))["vllm_config"]
        except (ValueError, LookupError, TypeError):
            return None

    @property
    def shown(self) -> str:
        """The address, safe to print."""
        return redact(self.url)

    def _address(self, path: str) -> str:
        """A resource below the version, or, from a slash on, beside it."""
        base = self.url.rstrip("/")
        return base.removesuffix("/v1") + path if path.startswith("/") else f"{base}/{path}"


def logprobs_mode(config: Mapping[str, Any]) -> str | None:
    """The distribution that a vLLM's log-probabilities are of, by its configuration."""
    return config.get("model_config", {}).get("logprobs_mode")


def _pairs(choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities: llama.cpp returns them in pairs, vLLM in two lists."""
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        pairs = [(token["id"], token["logprob"]) for token in logprobs["content"]]
    else:
        pairs = [*zip(choice["token_ids"], logprobs["token_logprobs"], strict=True)]
    return [int(i) for i, _ in pairs], [float(p) for _, p in pairs]
