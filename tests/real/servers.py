"""llama.cpp's and vLLM's servers with a pretrained model, for the length of a block."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import until

from trustclip.train.gguf import gguf_of
from trustclip.train.models import base_of
from trustclip.train.services import healthy

HERE = Path(__file__).parent
FILE = gguf_of("smollm2")


@contextmanager
def started(folder: Path, *command: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=log, stderr=log, env={**os.environ, **environment}
        )
        try:
            yield process
        finally:
            process.terminate()  # SIGINT is ignored in background jobs
            process.wait()


@contextmanager
def llama_cpp(folder: Path, file: Path | None = FILE) -> Iterator[str]:
    """Address of llama.cpp's server; with weights of four bits, if no other file is named."""
    with started(folder, str(HERE / "llama_server.py"), str(file), str(folder / "address")) as it:
        until(lambda: (folder / "address").exists() or it.poll() is not None)
        yield (folder / "address").read_text()


@contextmanager
def vllm(folder: Path, **environment: str) -> Iterator[str]:
    """Address of vLLM's server, in float32, eager, in development mode."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"port": port, "dtype": "float32", "max-model-len": 512}
    options |= {"gpu-memory-utilization": 0.3, "logprobs-mode": "processed_logprobs"}
    words = [f"--{name}={value}" for name, value in options.items()]
    given = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", **environment}
    with started(
        folder, "-m", "vllm.entrypoints.openai.api_server", "--model", base_of("smollm2"),
        "--host=127.0.0.1", "--enforce-eager", *words, **given,
    ) as it:  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        until(lambda: healthy(url) or it.poll() is not None, pause=0.5)
        assert it.poll() is None, (folder / "server.log").read_text()[-3000:]
        yield url
