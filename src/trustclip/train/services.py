"""Logins and servers that training needs, checked before a model loads, without side effects."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from rich.console import Console

from trustclip.engines.served import PROCESSED, configuration, logprobs_mode
from trustclip.support.lock import rank
from trustclip.support.secrets import redact
from trustclip.support.terminal import announce
from trustclip.train.settings.stages import RLStage

#: Seconds that a server has to answer, and those between two attempts to reach one.
ANSWER, AGAIN = 5.0, 2.0


def unavailable(tracker: str) -> Iterator[str]:
    """Why an installed tracker would not start: no login, or its server does not answer.

    Offline modes need neither.
    """
    instead = "or set `report_to` to none: metrics.jsonl has every number."
    online = os.environ.get("WANDB_MODE", "online") == "online"
    if tracker == "wandb" and online and not _wandb_has_key():
        yield (
            "wandb has no API key: `wandb login`, set WANDB_API_KEY, set WANDB_MODE to offline, "
            f"{instead}"
        )
    if tracker == "trackio" and os.environ.get("TRACKIO_SPACE_ID"):
        from huggingface_hub import get_token

        if not get_token():
            yield (
                "TRACKIO_SPACE_ID names a Space and there is no Hugging Face token: `hf auth "
                f"login`, set HF_TOKEN, unset TRACKIO_SPACE_ID, {instead}"
            )
        return
    name = {"mlflow": "MLFLOW_TRACKING_URI", "trackio": "TRACKIO_SERVER_URL"}.get(tracker, "")
    url = os.environ.get(name, "")
    if url.startswith(("http://", "https://")) and not answers(url):
        yield f"no server answers at {redact(url)} ({name}): start it, unset {name}, {instead}"


def answers(url: str, *, healthy: bool = False) -> bool:
    """Whether a server answers; to be ``healthy``, without an error."""
    try:
        with urlopen(url, timeout=ANSWER):
            return True
    except HTTPError:
        return not healthy
    except (OSError, ValueError):
        return False


def healthy(url: str) -> bool:
    """Whether a vLLM server answers that it is ready."""
    return answers(f"{url}/health", healthy=True)


def vllm_server(settings: RLStage) -> str | None:
    """Address of the vLLM server that training samples from; None if it needs none."""
    if not settings.use_vllm or settings.trl.get("vllm_mode") != "server":
        return None
    address = settings.trl.get("vllm_server_base_url")
    return str(address or f"http://{_option(settings, 'host')}:{_option(settings, 'port')}")


def await_server(settings: RLStage, console: Console) -> None:
    """Wait for the vLLM server as long as TRL would, but before a model loads, and check it."""
    url = vllm_server(settings)
    if url is None or rank() > 0:
        return
    if not healthy(url):
        patience = float(_option(settings, "timeout"))
        announce(
            console,
            f"waiting for the vLLM server at {redact(url)}, {patience:g} s at most "
            "(trl.vllm_server_timeout)",
        )
        end = time.monotonic() + patience
        while not healthy(url):
            if time.monotonic() > end:
                raise ValueError(no_answer(url))
            time.sleep(min(AGAIN, patience))
    if problem := incapable(url):
        raise ValueError(problem)


def no_answer(url: str) -> str:
    """Message that no vLLM server answers, with the remedies."""
    return (
        f"no vLLM server answers at {redact(url)}: start it, name its address in "
        "`trl.vllm_server_base_url`, or set `use_vllm` to false."
    )


def incapable(url: str) -> str:
    """What a vLLM server lacks for training, and how to start it; "" if nothing.

    TRL finds it out after the model has loaded, one thing at a time.
    """
    config = configuration(url)
    if config is None:
        missing = ["no VLLM_SERVER_DEV_MODE=1, or it is no vLLM"]
    else:
        missing = ["no weight transfer"] * (config.get("weight_transfer_config") is None)
        missing += ["raw log-probabilities"] * (logprobs_mode(config) != PROCESSED)
    if not missing:
        return ""
    return (
        f"the vLLM server at {redact(url)} cannot serve a training ({', '.join(missing)}): start "
        """it by VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config """
        f"""'{{"backend":"nccl"}}' --logprobs-mode {PROCESSED} --max-logprobs -1."""
    )


def _option(settings: RLStage, name: str) -> Any:
    from trustclip.engines.trl import ConstrainedGRPOConfig

    name = f"vllm_server_{name}"
    default = ConstrainedGRPOConfig.__dataclass_fields__[name].default
    return settings.trl.get(name, default)


def _wandb_has_key() -> bool:
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    names = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]  # where `wandb login` puts it
    files = [Path(name).expanduser() for name in names if name]
    return any(file.is_file() and file.stat().st_size for file in files)
