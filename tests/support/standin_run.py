"""Stands in for ``trustclip run`` and ``sft``: the files of a run directory in no time.

What it does is told by files in the folder that the environment's STANDIN names: ``fail-LABEL``
makes it crash, ``hold`` keeps it at its second update, ``stubborn`` makes it deaf to SIGTERM. It
notes every start in ``starts.txt`` and how many work at once in ``parallel.txt``. Asked to end, it
saves its step and exits with 0.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

CONTROL = Path(os.environ.get("STANDIN", "."))
#: Share of right answers of each label, in eighths, before and after training.
MODELS = ("tiny", "owner/big")
SKILL = {"before": 1, "atr": 6, "clip": 3, "none": 5}


def append(path: Path, row: Any) -> None:
    with path.open("a") as file:
        file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")


def main(recipe: dict[str, Any]) -> int:
    folder = Path(recipe["output_dir"])
    label = recipe["name"].split(",")[0] if "rl" in recipe else "sft"
    alive = CONTROL / f"alive-{os.getpid()}"
    alive.touch()
    append(CONTROL / "parallel.txt", str(len(list(CONTROL.glob("alive-*")))))
    append(CONTROL / "starts.txt", f"{folder.name} {os.environ['OMP_NUM_THREADS']}")
    (folder / "config.yaml").touch()
    try:
        return work(folder, label, recipe)
    finally:
        alive.unlink()


def work(folder: Path, label: str, recipe: dict[str, Any]) -> int:
    state = folder / "state.json"
    step = json.loads(state.read_text()) if state.exists() else 0
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    if (CONTROL / "stubborn").exists() and label != "sft":
        signal.signal(signal.SIGTERM, lambda *_: append(CONTROL / "deaf.txt", "asked"))
        helper = subprocess.Popen(["sleep", "3600"])
        append(CONTROL / "helpers.txt", str(helper.pid))
    print("began at", step)
    if label != "sft" and recipe["model"] not in MODELS:
        assert (Path(recipe["model"]) / "config.json").exists(), "no SFT"
    if (CONTROL / f"fail-{label}").exists():
        print("out of memory")
        return 3
    if label != "sft" and step == 0:
        evaluate(folder, recipe, 0, SKILL["before"])
    total = int(recipe.get("rl", recipe)["max_steps"])
    while step < total and not ended:
        step += 1
        stage = "sft" if label == "sft" else "rl"
        append(
            folder / "metrics.jsonl",
            {"stage": stage, "step": step, "reward": step / total, "trustclip/gated": 0.01},
        )
        while label != "sft" and step == 2 and (CONTROL / "hold").exists() and not ended:
            time.sleep(0.01)
    state.write_text(str(step))
    summary: dict[str, Any] = {"command": "run"}
    if step == total:
        if label == "sft":
            (folder / "final").mkdir(exist_ok=True)
            (folder / "final" / "config.json").write_text("{}")
        else:
            evaluate(folder, recipe, step, SKILL.get(label, 4))
        summary["finished"] = True
    (folder / "summary.json").write_text(json.dumps(summary))
    return 0


def evaluate(folder: Path, recipe: dict[str, Any], step: int, skill: int) -> None:
    if recipe["eval"] is None:
        return
    k, right = recipe["eval"]["k"], 0
    for problem in range(16):
        for index in range(k):
            correct = int((problem * 5 + index * 3 + recipe["seed"]) % 8 < skill)
            right += correct
            append(
                folder / "samples.jsonl",
                {"stage": "eval", "step": step, "task": "arithmetic", "id": str(problem),
                 "k": index, "correct": correct},
            )  # fmt: skip
    append(
        folder / "metrics.jsonl",
        {"stage": "eval", "step": step, "task": "arithmetic", f"mean@{k}": right / (16 * k),
         f"mean@{k}/low": 0.0},
    )  # fmt: skip


def settings(arguments: list[str]) -> dict[str, Any]:
    command, *rest = arguments
    if command == "run":
        return yaml.safe_load(Path(rest[0]).read_text())
    assert command == "sft"
    pairs = (argument.removeprefix("--").partition("=") for argument in rest)
    return {key.replace("-", "_"): value for key, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main(settings(sys.argv[1:])))
