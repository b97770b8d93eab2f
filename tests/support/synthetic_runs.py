"""Run directories as training leaves them, made up in a fraction of a second."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup

from trustclip.logs.answers import scores
from trustclip.support.jsonl import append_jsonl, write_json

#: Completions that a page must survive.
HOSTILE = (
    "<script>alert(1)</script> so the answer is 4",
    "</script><script>window.hurt = true</script>",
    "<!-- <img src=x onerror=alert(1)> -->",
    "الجواب هو ٤ \u202egnp.exe",
    "a NUL \x00 and a bell \x07 and half a pair \ud83d",
    "quotes \" ' ` and {{ braces }} and {% tags %}",
    "step " * 9000 + "<SOLUTION>4</SOLUTION>",
    "line\u2028separators\u2029 and 汉字 and 👩‍👩‍👧",
)

TASKS = {"amc23": 20, "aime24": 10}


@dataclass(frozen=True)
class Spec:
    """What a made-up run is like.

    Args:
      method: name and hyper-parameters.
      seed: of everything in it.
      steps: updates.
      every: updates between evaluations.
      k: samples per test problem.
      tasks: number of problems by task.
      gain: what training adds to the log-odds of a right answer.
      loss: what the last evaluation loses of it again.
      gated: share of gated tokens late in a generation.
      completions: sampled in each generation of 4 updates.
      model: where it begins.
    """

    method: Mapping[str, Any]
    seed: int = 0
    steps: int = 60
    every: int = 20
    k: int = 4
    tasks: Mapping[str, int] = field(default_factory=lambda: TASKS)
    gain: float = 1.0
    loss: float = 0.0
    gated: float = 0.02
    completions: int = 8
    model: str = "Qwen/Qwen3-1.7B-Base"


def undrawn(figure: Any) -> Any:
    """In place of drawing a figure, where thousands of pages are made for what they say."""
    from trustclip.report.draw.figures import Picture

    return Picture("", bytes, [Markup("")] * len(figure.panels), Markup(""))


def final_of(run) -> Any:
    """The last evaluation of a run, which it must have."""
    assert run.final is not None
    return run.final


def make_run(path: Path, spec: Spec, *, until: int | None = None) -> Path:
    """Write a run directory.

    Args:
      path: where to.
      spec: what it is like.
      until: the update at which it was killed; None for one that finished.
    """
    path.mkdir(parents=True)
    rng = np.random.default_rng([spec.seed, *str(spec.method).encode()])
    (path / "config.yaml").write_text(yaml.safe_dump(config(path, spec), sort_keys=False))
    versions = {"versions": {"trustclip": "0.1.0", "torch": "2.13.0"}}
    write_json(path / "environment.json", {**versions, "platform": "Linux", "processors": 2})
    difficulty = {
        task: np.random.default_rng(7).normal(-1.5, 2, n) for task, n in spec.tasks.items()
    }
    append_jsonl(
        path / "problems.jsonl",
        [
            {
                "id": str(i),
                "task": task,
                "problem": f"Find $x_{{{i}}}$ if <b>{i}</b> = x.",
                "answer": "4",
            }
            for task in [*spec.tasks, None]
            for i in range(20)
        ],
    )
    metrics, samples, gates = [], [], []
    last = spec.steps if until is None else until
    evaluated: dict[int, Any] = {}
    for step in range(last + 1):
        if step % spec.every == 0 or step == spec.steps:
            rows = answers(rng, spec, step, difficulty)
            samples += rows
            evaluated[step] = scores(rows)
            metrics += evaluation_rows(step, evaluated[step])
        if step % 4 == 0 and step < last:
            samples += [completion(rng, spec, step, i) for i in range(spec.completions)]
        if step < last:
            metrics.append(training_row(rng, spec, step + 1))
            of = range(spec.completions)
            shares = rng.uniform(0, 2 * spec.gated, spec.completions) * (step % 4) / 3
            generated = [step - step % 4 for _ in of]
            gates.append({"step": step + 1, "generated": generated, "index": [*of],
                          "gated": shares.round(4).tolist()})  # fmt: skip
    append_jsonl(path / "gates.jsonl", gates)
    text = "".join(json.dumps(row) + "\n" for row in samples)  # half a pair is no UTF-8
    (path / "samples.jsonl").write_text(text)
    if spec.seed == 1:
        text = "entropy fell to 4 % of what it was; <b>lower</b> the learning rate"
        metrics.append({"stage": "notice", "step": 12, "notice": "entropy_collapse", "text": text})
    append_jsonl(path / "metrics.jsonl", metrics)
    if until is None:
        write_json(path / "summary.json", summary(spec, evaluated, metrics))
    else:
        with (path / "samples.jsonl").open("a") as file:
            file.write('{"stage": "rl", "step": 1, "resp')
    return path


def config(path: Path, spec: Spec) -> dict[str, Any]:
    """The resolved recipe."""
    rl = {"dataset": "dapo", "method": dict(spec.method),
          "max_steps": spec.steps, "learning_rate": 5e-6}  # fmt: skip
    return {
        "command": "run", "name": path.name, "model": spec.model, "output_dir": str(path),
        "seed": spec.seed, "sft": None, "rl": rl,
        "eval": {"tasks": ",".join(spec.tasks), "every": spec.every, "k": spec.k},
    }  # fmt: skip


def answers(
    rng: np.random.Generator, spec: Spec, step: int, difficulty: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Rows of one evaluation."""
    gain = spec.gain * (1 - math.exp(-3 * step / spec.steps)) - spec.loss * (step == spec.steps)
    rows = []
    for task, odds in difficulty.items():
        for i, odd in enumerate(odds):
            right = rng.random(spec.k) < 1 / (1 + math.exp(-(odd + gain)))
            rows += [
                {
                    "stage": "eval", "step": step, "task": task, "id": str(i), "gold": "4", "k": k,
                    "response": f"So x = {4 if r else 5}." if k else HOSTILE[i % len(HOSTILE)],
                    "extracted": "4" if r else ("5" if k else None),
                    "tokens": int(rng.integers(50, 900)),
                    "truncated": bool(rng.random() < 0.02), "correct": int(r), "judged": "direct",
                }
                for k, r in enumerate(right)
            ]  # fmt: skip
    return rows


def evaluation_rows(step: int, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of ``metrics.jsonl`` for one evaluation."""
    parts = {**found["tasks"], **({"average": found["average"]} if len(found["tasks"]) > 1 else {})}
    rows = []
    for task, part in parts.items():
        row = {"stage": "eval", "step": step, "task": task}
        for name in (name for name in part if "@" in name):
            row |= {name: part[name]["value"], f"{name}/low": part[name]["low"],
                    f"{name}/high": part[name]["high"]}  # fmt: skip
        rows.append(
            row | {key: part[key] for key in ("length", "truncated", "no_answer", "problems")}
        )
    return rows


def completion(rng: np.random.Generator, spec: Spec, step: int, index: int) -> dict[str, Any]:
    """A row of a training sample."""
    right = int(rng.random() < 0.3)
    plain = f"x = {4 if right else 7}, as asked."
    return {
        "stage": "rl", "step": step, "index": index, "id": str(index % 20), "gold": "4",
        "response": plain if step else HOSTILE[index % len(HOSTILE)],
        "tokens": int(rng.integers(50, 900)), "reward": float(right),
    }  # fmt: skip


def training_row(rng: np.random.Generator, spec: Spec, step: int) -> dict[str, Any]:
    """A row of ``metrics.jsonl`` for one update."""
    progress, late = step / spec.steps, ((step - 1) % 4) / 3
    gated = spec.gated * late * rng.uniform(0.7, 1.3)
    wide = 0.25 * late + 1e-4
    row = {
        "stage": "rl", "step": step, "loss": float(rng.normal(0, 0.01)), "grad_norm": 0.05,
        "reward": 0.15 + 0.1 * spec.gain * progress + float(rng.normal(0, 0.05)),
        "entropy": 0.6 - 0.25 * progress + float(rng.normal(0, 0.03)),
        "completions/mean_length": 700 - 150 * progress + float(rng.normal(0, 30)),
        "trustclip/gated": gated,
        "trustclip/gated/positive_above": 0.6 * gated,
        "trustclip/gated/negative_below": 0.4 * gated,
        "trustclip/gated/positive_below": 0.0, "trustclip/gated/negative_above": 0.0,
        "trustclip/k3": 0.01 * late, "trustclip/off_policy": float(late > 0),
        "trustclip/ratio_q01": math.exp(-wide), "trustclip/ratio_q50": 1.0,
        "trustclip/ratio_q99": math.exp(1.1 * wide),
    }  # fmt: skip
    buckets = {"0_0.1": 3, "0.1_0.5": 1, "0.5_0.9": 0.4, "0.9_1": 0.1}
    return row | {f"trustclip/gated/p_old_{name}": gated * s for name, s in buckets.items()}


def summary(
    spec: Spec, evaluated: Mapping[int, Any], metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """``summary.json`` of a run that finished."""
    gated = [row["trustclip/gated"] for row in metrics if row["stage"] == "rl"]
    return {
        "command": "run", "name": "synthetic", "finished": True, "model": spec.model,
        "seed": spec.seed, "method": dict(spec.method), "initial": evaluated[0],
        "final": evaluated[spec.steps],
        "training": {"mean_gated": sum(gated) / len(gated)}, "seconds": 61.5, "versions": {},
    }  # fmt: skip


def make_suite(
    out: Path,
    methods: Mapping[str, Spec],
    seeds: Sequence[int] = (0, 1),
    reference: str | None = None,
) -> Path:
    """Write a suite: each method from each seed."""
    runs = {}
    for label, spec in methods.items():
        for seed in seeds:
            name = f"{label}-seed{seed}-{len(runs):08x}"
            make_run(out / name, replace(spec, seed=seed))
            runs[name] = {
                "label": label,
                "model": spec.model,
                "seed": seed,
                "method": dict(spec.method),
            }
    (out / "sft-00000000").mkdir()
    (out / "sft-00000000" / "config.yaml").write_text("command: run\n")
    content = {"name": "made up", "reference": reference or next(iter(methods)), "runs": runs}
    (out / "suite.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return out
