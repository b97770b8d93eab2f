"""A server with OpenAI's protocol that is compared with a model: vLLM, llama.cpp.

Token ids go to ``POST URL/completions`` and come back with the log-probability that each was drawn
with. Imports neither PyTorch nor an engine.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trustclip.support.http import ask, check_address, first_model, start_of
from trustclip.support.secrets import redact

#: Requests under way at once.
TOGETHER = 64
#: vLLM's name for log-probabilities of the distribution that a token was drawn from.
PROCESSED = "processed_logprobs"
#: What is asked of each completion: one token after another from the whole vocabulary, as training
#: would draw them. vLLM has a model's own top-k and min-p, and names ids on request.
_DRAWN = {
    **{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
    **{"n": 1, "logprobs": 1, "return_token_ids": True},
}


def complete(
    url: str, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int, name: str = ""
) -> tuple[list[list[int]], list[list[float]]]:
    """Token ids of one completion of each prompt, and their log-probabilities, nats.

    Args:
      url: of the server, up to the version, e.g. http://127.0.0.1:8000/v1.
      prompts: token ids.
      seeds: of the draws, one for each prompt.
      most: tokens of a completion.
      name: that the server has for its model; the first that it has where empty.

    Raises:
      ValueError: an address that is not http or https, or names no server; a server that refused,
        cannot be reached, or does not name ids with log-probabilities.

    References:
      https://platform.openai.com/docs/api-reference/completions
    """
    check_address(url)
    model = name or first_model(url)

    def sample(prompt: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        request = {"model": model, "prompt": [*prompt], "max_tokens": most, "seed": seed}
        body = ask(url.rstrip("/") + "/completions", request | _DRAWN)
        try:
            return _pairs(json.loads(body)["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{redact(url)} returned no token ids with log-probabilities, as vLLM's and "
                f"llama.cpp's servers do, so it cannot be compared: {start_of(body)}"
            ) from error

    with ThreadPoolExecutor(TOGETHER) as threads:
        completions = [*threads.map(sample, prompts, seeds)]
    return [ids for ids, _ in completions], [logps for _, logps in completions]


def configuration(url: str) -> Mapping[str, Any] | None:
    """The configuration of a vLLM in development mode; None for any other server.

    Raises:
      ValueError: an address at which there can be no server.
    """
    check_address(url)
    address = url.rstrip("/").removesuffix("/v1") + "/server_info?config_format=json"
    try:
        return json.loads(ask(address))["vllm_config"]
    except (ValueError, LookupError, TypeError):
        return None


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
