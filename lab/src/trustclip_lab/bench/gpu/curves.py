"""Stage (e): the tiny experiment and the control on this device and on the CPU: the same curves."""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trustclip.stats import RunSummary, welch
from trustclip_lab.bench.gpu.cases import CannotRun, Case, Place, Row, Stage
from trustclip_lab.bench.table import Table

_SEEDS = 3


def tiny(place: Place) -> dict[str, Any]:
    """Mean reward of every update of the tiny experiment, for each device and seed."""
    generations, seeds = (1, 1) if place.tiny else (6, _SEEDS)
    folder = place.folder / "curves"
    commands = {
        (device, seed): [
            *("demo", "--seed", str(seed), "--generations", str(generations)),
            *("--test-problems", "16" if place.tiny else "128"),
            *("--output-dir", str(folder / f"tiny-{device}-{seed}")),
        ]
        for device in _devices(place)
        for seed in range(seeds)
    }
    _run(commands, folder)
    rewards: dict[str, list[list[float]]] = {}
    for device, seed in commands:
        path = next((folder / f"tiny-{device}-{seed}").rglob("metrics.jsonl"))
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        rewards.setdefault(device, []).append([row["reward"] for row in rows if "reward" in row])
    return {"rewards": rewards, **_compare(rewards)}


def control(place: Place) -> dict[str, Any]:
    """Return of CartPole in training under ``atr``, for each device and seed."""
    for package in ("gymnasium", "stable_baselines3"):
        if importlib.util.find_spec(package) is None:
            raise CannotRun(f"{package} is not installed here")
    folder = place.folder / "curves"
    steps, seeds = ("512", "2") if place.tiny else ("8192", str(_SEEDS))
    commands = {
        (device, 0): [
            *("control", "--method", "atr", "--steps", steps, "--seeds", seeds),
            *("--device", device, "--output-dir", str(folder / f"control-{device}")),
        ]
        for device in _devices(place)
    }
    _run(commands, folder)
    returns = {}
    for device, _ in commands:
        files = sorted((folder / f"control-{device}").glob("*.json"))
        outcomes = [json.loads(f.read_text(encoding="utf-8"))["outcome"] for f in files]
        returns[device] = [[outcome["training"]] for outcome in outcomes]
    return {"rewards": returns, **_compare(returns)}


def _devices(place: Place) -> list[str]:
    return ["cuda", "cpu"] if place.cuda else ["cpu"]


def _run(commands: dict[tuple[str, int], list[str]], folder: Path) -> None:
    """Run commands of ``trustclip`` side by side, those of the CPU without a GPU in sight.

    Raises:
      RuntimeError: one of them failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    running = {}
    for (device, seed), command in commands.items():
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        name = f"{command[0]}-{device}-{seed}"
        with open(folder / f"{name}.log", "ab") as log:
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "trustclip", *command],
                env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"} | hidden,
                stdout=log, stderr=log,
            )  # fmt: skip
    try:
        while any(process.poll() is None for process in running.values()):
            time.sleep(0.2)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
    for name, process in running.items():
        if process.returncode:
            tail = " ".join((folder / f"{name}.log").read_text(errors="replace").split()[-40:])
            raise RuntimeError(f"{name} ended with status {process.returncode}: {tail}")


def _compare(rewards: dict[str, list[list[float]]]) -> dict[str, Any]:
    """The mean over each run, by device, and the difference of the devices over seeds."""
    means = {device: [statistics.fmean(run) for run in runs] for device, runs in rewards.items()}
    if len(means) < 2:
        return {"means": means}
    apart = welch(RunSummary.of(means["cuda"]), RunSummary.of(means["cpu"]))
    return {"means": means, "difference": [apart.value, apart.low, apart.high], "p": apart.p}


def cases(place: Place) -> Sequence[Case]:
    """The tiny experiment, then the control."""
    return [
        Case("tiny experiment, reward", tiny, 150.0),
        Case("control, CartPole, return", control, 120.0),
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line a case."""
    columns = ("experiment", "seeds", "GPU", "CPU", "GPU - CPU", "95 %", "p")
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        v: Any = row.values
        means = {device: statistics.fmean(values) for device, values in v["means"].items()}
        value, low, high = v.get("difference", (None, None, None))
        within = None if low is None else f"{low:.3g} to {high:.3g}"
        seeds = len(v["means"]["cpu"])
        lines.append((row.key, seeds, means.get("cuda"), means["cpu"], value, within, v.get("p")))
    notes = ["Means over a training, then over seeds; the difference by Welch's test."]
    return [Table("The same learning on both devices", columns, lines, notes)] if lines else []


def figure(rows: Sequence[Row]) -> str | None:
    """Mean reward over the updates of the tiny experiment, a line for each run."""
    from trustclip_lab.bench.figures import lines

    runs = [(row.values or {})["rewards"] for row in rows if row.key.startswith("tiny")]
    return lines(runs[0], "update", "mean reward") if runs else None


STAGE = Stage(
    "Learning curves on both devices", 2.0, cases, tables, figure,
    needs=("trl", "datasets", "math_verify"),
)  # fmt: skip
