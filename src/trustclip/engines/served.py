"""A server with OpenAI's protocol that samples the completions of a training: vLLM, llama.cpp.

Token ids go to ``POST URL/completions`` and come back with the log-probability that each was drawn
with. vLLM in development mode also takes new weights: it reads them from a file that both see.
Imports neither PyTorch nor an engine.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trustclip.support.http import ask, check_address, first_model, start_of
from trustclip.support.secrets import redact

#: Whether a server samples, and which weights it has: the policy's, read before each generation, or
#: those that it was started with.
Weights = Literal["none", "reload", "fixed"]
#: Requests under way at once.
TOGETHER = 64
#: Text whose tokens both sides must know: digits, spaces, and characters of two bytes.
_SPECIMEN = "What is 12 + 345?\n\n  Größe: ½ m"
#: vLLM's name for log-probabilities of the distribution that a token was drawn from.
PROCESSED = "processed_logprobs"
#: How vLLM is started so that it samples for a training.
START = (
    f"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode {PROCESSED} --generation-config vllm"
)


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
    ends: Collection[int] = ()  # ids of the tokens that end one
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
            **{"return_token_ids": True, "stop_token_ids": [*self.ends]},  # vLLM
            **self.drawn,
        }
        body = ask(self._address("completions"), request)
        try:
            choice = json.loads(body)["choices"][0]
            ids, logps = _pairs(choice)
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{self.shown} returned no token ids with log-probabilities, as vLLM's and "
                f"llama.cpp's servers do, so it cannot sample for a training: {start_of(body)}"
            ) from error
        ended = choice.get("finish_reason") == "stop"
        if self.ends and ended and not (ids and ids[-1] in self.ends):
            raise ValueError(
                f"{self.shown} ended a completion and left out the token that ended it, one of "
                f"{[*self.ends]}, which the policy is to learn: it cannot sample for a training."
            )
        return ids, logps

    def take(self, folder: Path) -> None:
        """Make a vLLM in development mode read the weights in a folder, which it must see.

        Raises:
          ValueError: it cannot.
        """
        request = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            ask(self._address("/collective_rpc"), request)
            ask(self._address("/reset_prefix_cache"), {})  # of the old weights
        except ValueError as error:
            raise ValueError(
                f"the server at {self.shown} did not take the policy's weights from {folder}, on a "
                f"disk that it must see: {error}"
            ) from error

    def configuration(self) -> Mapping[str, Any] | None:
        """The configuration of a vLLM in development mode; None for any other server."""
        try:
            return json.loads(ask(self._address("/server_info?config_format=json")))["vllm_config"]
        except (ValueError, LookupError, TypeError):
            return None

    def text(self, ids: Sequence[int]) -> str | None:
        """Ids decoded by the server; None if it has no way to ask."""
        try:
            reply = json.loads(ask(self._address("/detokenize"), {"tokens": [*ids]}))
            return str(reply["prompt"] if "prompt" in reply else reply["content"])
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


def complaints(
    sampler: ServedSampler, weights: Weights, tokenizer: Any, *, plain: bool
) -> Iterator[str]:
    """What a server lacks for sampling the completions of a training, one sentence each.

    It is asked for a few tokens, must have the weights and the policy's tokenizer, and must return
    the log-probabilities of the draw; ``plain``: tokens are drawn at temperature 1 from the whole
    vocabulary, where raw log-probabilities are the same.
    """
    try:
        ids = tokenizer.encode(_SPECIMEN, add_special_tokens=False)
        first_model(sampler.url)
        text, expected = sampler.text(ids), tokenizer.decode(ids)
        if text != expected:
            has = "has no /detokenize to ask" if text is None else f"has {text!r}"
            yield (
                f"the server at {sampler.shown} must have the policy's tokens, of which {ids} are "
                f"{expected!r}, and it {has}: start it with the model of the training."
            )
            return
        sampler.complete([ids], [0])
    except ValueError as error:
        yield str(error)
        return
    config = sampler.configuration()
    if weights == "reload" and config is None:
        yield (
            f"the server at {sampler.shown} cannot take the policy's weights after an update, as "
            f"only vLLM in development mode can: start it by {START}, or set `server` to fixed, "
            "where every sample is of the policy that the server was started with."
        )
    if not plain and logprobs_mode(config or {}) != PROCESSED:
        yield (
            f"the server at {sampler.shown} does not say that its log-probabilities are those of "
            "the draw, with temperature and cut-offs (vLLM in development mode with "
            f"--logprobs-mode {PROCESSED} does): set temperature and top_p to 1, or start it "
            f"by {START}."
        )
