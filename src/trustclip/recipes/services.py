"""Logins and servers that a training needs, looked for before a model loads and without a trace."""

import contextlib
import importlib
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from rich.console import Console

from trustclip.engines.served import PROCESSED, ServedSampler, complaints, logprobs_mode
from trustclip.settings.stages import RLStage
from trustclip.support.secrets import redacted
from trustclip.support.terminal import told

#: Seconds that a server has to answer, and those between two questions to one that is awaited.
ANSWER, AGAIN = 5.0, 2.0


def unavailable(sink: str) -> Iterator[str]:
    """Why an installed tracker would not start: no login, or its server does not answer.

    Offline modes need neither.
    """
    instead = "or set `sink` to none: metrics.jsonl has every number."
    if sink == "wandb" and os.environ.get("WANDB_MODE") == "online" and not _wandb_knows_a_key():
        yield (
            "WANDB_MODE is online and wandb has no API key: `wandb login`, set WANDB_API_KEY, set "
            f"WANDB_MODE to offline, {instead}"
        )
    if sink == "trackio" and os.environ.get("TRACKIO_SPACE_ID"):
        from huggingface_hub import get_token

        if not get_token():
            yield (
                "TRACKIO_SPACE_ID names a Space and there is no Hugging Face token: `hf auth "
                f"login`, set HF_TOKEN, unset TRACKIO_SPACE_ID, {instead}"
            )
        return
    name = {"mlflow": "MLFLOW_TRACKING_URI", "trackio": "TRACKIO_SERVER_URL"}.get(sink, "")
    url = os.environ.get(name, "")
    if url.startswith(("http://", "https://")) and not answers(url):
        yield f"no server answers at {redacted(url)} ({name}): start it, unset {name}, {instead}"


def answers(url: str, *, healthy: bool = False) -> bool:
    """Whether a server answers; to be ``healthy``, without an error."""
    try:
        with urlopen(url, timeout=ANSWER):
            return True
    except HTTPError:
        return not healthy
    except (OSError, ValueError):
        return False


def vllm_server(settings: RLStage) -> str | None:
    """Address of the vLLM server that a training samples from; None where it needs none."""
    if not settings.use_vllm or settings.trl.get("vllm_mode") != "server":
        return None
    given = settings.trl.get("vllm_server_base_url")
    return str(given or f"http://{_of_trl(settings, 'host')}:{_of_trl(settings, 'port')}")


def await_server(settings: RLStage, console: Console) -> None:
    """Wait for the vLLM server as long as TRL would, but before a model loads, and check it."""
    url = vllm_server(settings)
    if url is None or os.environ.get("RANK", "0") != "0":
        return
    if not answers(f"{url}/health", healthy=True):
        patience = float(_of_trl(settings, "timeout"))
        told(
            console,
            f"waiting for the vLLM server at {redacted(url)}, {patience:g} s at most "
            "(trl.vllm_server_timeout)",
        )
        end = time.monotonic() + patience
        while time.monotonic() < end:
            time.sleep(min(AGAIN, patience))
            if answers(f"{url}/health", healthy=True):
                break
        else:
            raise ValueError(unanswered(url))
    if lacks := incapable(url):
        raise ValueError(lacks)


def check_sampling(settings: RLStage, model: str) -> None:
    """Refuse a server that cannot sample for a training, or has not the model's tokenizer."""
    if settings.server == "none" or os.environ.get("RANK", "0") != "0":
        return
    from trustclip.recipes.models import load_tokenizer

    plain = settings.temperature == 1 and settings.top_p == 1
    tokenizer = load_tokenizer(model, settings.style)
    sampler = ServedSampler(settings.server_url, 2)
    for text in complaints(sampler, settings.server, tokenizer, plain=plain):
        raise ValueError(text)


def unanswered(url: str) -> str:
    """That no vLLM server is there, and what to do."""
    return (
        f"no vLLM server answers at {redacted(url)}: start it, name its address in "
        "`trl.vllm_server_base_url`, or set `use_vllm` to false."
    )


def incapable(url: str) -> str:
    """What a vLLM server that answers lacks for a training, and how to start it; "" if nothing.

    TRL finds it out after the model has loaded, one thing at a time.
    """
    server = ServedSampler(url, 1)
    config = server.configuration()
    if config is None:
        lacks = ["no VLLM_SERVER_DEV_MODE=1, or it is no vLLM"]
    else:
        lacks = ["no weight transfer"] * (config.get("weight_transfer_config") is None)
        lacks += ["raw log-probabilities"] * (logprobs_mode(config) != PROCESSED)
    if not lacks:
        return ""
    return (
        f"the vLLM server at {server.shown} cannot serve a training ({', '.join(lacks)}): start "
        """it by VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config """
        f"""'{{"backend":"nccl"}}' --logprobs-mode {PROCESSED} --max-logprobs -1."""
    )


def _of_trl(settings: RLStage, name: str) -> Any:
    from trustclip.engines.trl import ConstrainedGRPOConfig

    name = f"vllm_server_{name}"
    default = ConstrainedGRPOConfig.__dataclass_fields__[name].default
    return settings.trl.get(name, default)


def _wandb_knows_a_key() -> bool:
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    wandb = importlib.import_module("wandb")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            return bool(wandb.login(prompt=False))
        except Exception:  # an older one that would prompt, or a key that it cannot verify now:
            return True  # the tracker starts before a model loads, and says it
