"""Stage (d): the paper's recipe at its real shapes on random weights, killed and resumed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trustclip.recipes.shipped import FOLDER
from trustclip_lab.bench.gpu.cases import CannotRun, Case, Place, Row, Stage
from trustclip_lab.bench.gpu.models import saved_model
from trustclip_lab.bench.table import Table

RECIPE = FOLDER / "paper-qwen3-1.7b.yaml"
_UPDATES = 3
#: What of a line of metrics depends on the clock.
_CLOCK = ("time", "seconds", "speed", "per_second", "runtime", "memory")


def rehearse(completion: int, minutes: float, place: Place) -> dict[str, Any]:
    """Train whole, train and kill after the second update, resume; compare every bit.

    Args:
      completion: longest completion, tokens.
      minutes: after which a training is given up.
      place: where.

    Raises:
      CannotRun: the recipe's file is not here.
    """
    if not RECIPE.is_file():
        raise CannotRun("the recipe's file is not here: run in a copy of the repository")
    folder = place.folder / "rehearsal" / str(completion)
    _clear(folder)
    whole, killed = (_recipe(folder / name, completion, place) for name in ("whole", "parted"))
    seconds = {"whole": _train(whole, minutes)}
    seconds["killed"] = _train(killed, minutes, kill_after=_UPDATES - 1)
    killed_after = _updates(killed.parent)
    seconds["resumed"] = _train(killed, minutes)
    same = {
        "weights": _digest(whole.parent) == _digest(killed.parent),
        "samples": _lines(whole.parent, "samples.jsonl") == _lines(killed.parent, "samples.jsonl"),
        "metrics": _lines(whole.parent, "metrics.jsonl") == _lines(killed.parent, "metrics.jsonl"),
    }
    rows = [json.loads(line) for line in _lines(whole.parent, "metrics.jsonl")]
    norms = [row["grad_norm"] for row in rows if "grad_norm" in row]
    if not any(norms):
        raise RuntimeError("no update had a gradient: equal weights would show nothing")
    gated = [row["trustclip/gated"] for row in rows if "trustclip/gated" in row]
    return {
        "completion": completion, "seconds": seconds, "same": same, "gated": gated,
        "gradients": norms, "killed_after": killed_after,
    }  # fmt: skip


def _recipe(folder: Path, completion: int, place: Place) -> Path:
    """The recipe without fine-tuning, evaluation and vLLM, on problems that need no network."""
    import yaml

    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    rl = recipe["rl"]
    rl["trl"] = {k: v for k, v in rl["trl"].items() if not k.startswith("vllm")}
    # A GPU's attention adds in any order unless determinism is requested.
    rl["trl"] |= {"full_determinism": True} if place.cuda else {}
    rl |= {
        "dataset": "arithmetic", "limit": 256, "prompt_style": "plain", "max_prompt_length": None,
        "max_completion_length": completion, "use_vllm": False, "max_steps": _UPDATES,
        "save_steps": 1,
        "reward_noise": 0.5,  # random weights answer nothing, and equal rewards teach nothing
    }  # fmt: skip
    if place.tiny:
        rl |= {"per_device_train_batch_size": 8, "gradient_checkpointing": False, "lora_r": 4}
    content = {
        "name": "rehearsal",
        "model": str(saved_model("qwen3-1.7b", place).resolve()),
        "output_dir": str((folder / "run").resolve()),
        "seed": recipe["seed"],
        "rl": rl,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def _train(recipe: Path, minutes: float, kill_after: int | None = None) -> float:
    """Run the recipe in a process; kill it, if asked to, once so many updates are written.

    Returns:
      Seconds.

    Raises:
      RuntimeError: it failed, or ended before it could be killed.
    """
    command = [sys.executable, "-m", "trustclip", "run", str(recipe)]
    started = time.monotonic()
    with open(recipe.parent / "log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None and time.monotonic() - started < 60 * minutes:
                if kill_after is not None and _updates(recipe.parent) >= kill_after:
                    break
                time.sleep(0.05)
            status = process.poll()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status != (None if kill_after is not None else 0):
        tail = " ".join((recipe.parent / "log").read_text(errors="replace").split()[-40:])
        raise RuntimeError(f"the training ended with status {status}: {tail}")
    return time.monotonic() - started


def _updates(folder: Path) -> int:
    return sum("loss" in line for line in _lines(folder, "metrics.jsonl"))


def _lines(folder: Path, name: str) -> list[str]:
    """Lines of a journal of the run, without what depends on the clock."""
    paths = sorted((folder / "run").rglob(name))
    text = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    rows: list[dict[str, Any]] = []
    for line in text:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # being written
    return [
        json.dumps({k: v for k, v in row.items() if not any(word in k for word in _CLOCK)})
        for row in rows
    ]


def _digest(folder: Path) -> str:
    """Checksum of the trained model."""
    checksum = hashlib.sha256()
    for path in sorted((folder / "run").rglob("final/*.safetensors")):
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


def _clear(folder: Path) -> None:
    """Remove an earlier attempt's runs, whose clock and kill were others."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def cases(place: Place) -> Sequence[Case]:
    """Short completions, then those of the recipe."""
    if place.tiny:
        return [Case("the tiny model, 24 tokens", partial(rehearse, 24, 5.0), 10.0)]
    return [
        Case("completions of 128 tokens", partial(rehearse, 128, 3.0), 130.0),
        Case("completions of 1846 tokens, as in the recipe", partial(rehearse, 1846, 6.0), 420.0),
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line a case."""
    columns = (
        "case", "whole, s", "until killed, s", "resumed, s", "weights", "samples", "metrics",
        "gated, last update",
    )  # fmt: skip
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        v: Any = row.values
        same = ["equal" if v["same"][n] else "DIFFER" for n in ("weights", "samples", "metrics")]
        gated = v["gated"][-1] if v["gated"] else None
        lines.append((row.key, *v["seconds"].values(), *same, gated))
    notes = [
        f"{_UPDATES} updates of `recipes/paper-qwen3-1.7b.yaml` with random weights, sampled by "
        "Transformers, a checkpoint at each; killed by SIGKILL after the second. Equal: bit for "
        "bit, metrics without times. On a GPU with `full_determinism`."
    ]
    return [Table("Killed and resumed", columns, lines, notes)] if lines else []


STAGE = Stage(
    "A dress rehearsal of the paper's recipe", 2.5, cases, tables,
    needs=("trl", "datasets", "peft", "math_verify"),
)  # fmt: skip
