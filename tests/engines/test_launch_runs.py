"""The launch files, run as a user runs them, with two CPU ranks and a model made on the spot."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import NEVER

pytestmark = pytest.mark.slow

LAUNCH = Path(__file__).parents[2] / "recipes" / "launch"
UPDATES = 6
#: What a CPU has not, or has too little of.
SMALL = [
    *("--bf16", "false", "--use_cpu", "true", "--use_vllm", "false"),
    *("--gradient_checkpointing", "false", "--max_completion_length", "6"),
    *("--max_steps", str(UPDATES), "--learning_rate", "0.003", "--prompt_style", "plain"),
]

#: `accelerate`, with two ranks in float32 and without vLLM, whatever it was asked for.
ACCELERATE = """#!{python}
import os, sys
given = [word for word in sys.argv[1:] if word != "--use-vllm"]
given[given.index("--num_processes") + 1] = "2"
given[1:1] = ["--mixed_precision", "no"]
os.execv(sys.executable, [sys.executable, "-m", "accelerate.commands.accelerate_cli", *given])
"""


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    """A file of problems whose answers are 1 to 4."""
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    rows = [{"problem": f"{i} + 0 = ?", "answer": str(1 + i % 4)} for i in range(64)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a model that has learnt to answer 1 to 4 at random."""
    import torch

    from trustclip.train.tiny import tiny_model

    torch.set_num_threads(1)
    policy, tokenizer = tiny_model(layers=1, hidden=64)
    turns = [
        [
            {"role": "user", "content": f"{i} + 0 = ?"},
            {"role": "assistant", "content": f"<SOLUTION>{answer}</SOLUTION>"},
        ]
        for i in range(8)
        for answer in range(1, 5)
    ]
    texts: Any = [tokenizer.apply_chat_template(turn, tokenize=False) for turn in turns]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    policy.train()
    for _ in range(60):
        loss = policy(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("model")
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command printed; it must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=NEVER,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def numbers(printed: str, name: str) -> list[float]:
    return [float(n) for n in re.findall(rf"'{name}': '?([-\w.+]+)'?", printed)]


def check_training(printed: str, model: Path, output: Path, batch: int) -> None:
    """Every update moved the policy, some of it against the constraint, and the end was kept."""
    from safetensors.torch import load_file

    norms = numbers(printed, "grad_norm")
    assert len(norms) == UPDATES and all(0 < norm < math.inf for norm in norms)
    assert max(numbers(printed, "trustclip/gated")) > 0
    (seconds,), (rate,) = (
        numbers(printed, "train_runtime"),
        numbers(printed, "train_samples_per_second"),
    )
    assert seconds * rate == pytest.approx(batch * UPDATES, rel=0.01)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, output))
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before)


def test_the_script_alone(tmp_path, model, problems):
    settings = [
        *("--config", str(LAUNCH / "atr.yaml"), "--model", str(model), "--dataset", str(problems)),
        *("--output_dir", "out", "--per_device_train_batch_size", "16", *SMALL),
        *("--gradient_accumulation_steps", "1"),
    ]
    printed = run([sys.executable, str(LAUNCH / "train.py"), *settings], tmp_path)
    check_training(printed, model, tmp_path / "out", batch=16)


def test_eight_gpus_are_two_processors(tmp_path, model, problems):
    """The doctor and the training of ``8gpu.sh``, through accelerate and its file for DDP."""
    shim = tmp_path / "accelerate"
    shim.write_text(ACCELERATE.format(python=sys.executable))
    shim.chmod(0o755)
    settings = ["--dataset", str(problems), "--output_dir", "out", *SMALL]
    printed = run(
        [str(LAUNCH / "8gpu.sh"), *settings],
        tmp_path,
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        SHARD="ddp",
        MODEL=str(model),
    )
    assert re.search(r"ranks\W+2 \(gloo\)", printed)
    # 8 completions of each of two ranks, accumulated twice.
    check_training(printed, model, tmp_path / "out", batch=32)
