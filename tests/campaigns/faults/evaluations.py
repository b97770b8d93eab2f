"""Evaluations that meet faults: samples are drawn again where they are not whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from trustclip.logs.answers import scores
from trustclip.support.lock import only_process
from trustclip.support.marks import Neutral
from trustclip.train.evaluation.backends.local import Completion
from trustclip.train.evaluation.evaluate import Plan, evaluate, recover
from trustclip.train.problems.problem import Problem
from trustclip.train.runs.directory import RunDirectory

from .runs import Runs
from .setups import Setup

TASKS = {
    task: [Problem(f"{task}{i}", f"{task} {i}", str(i)) for i in range(5)] for task in ("a", "b")
}
PLAN = Plan(k=3, style="boxed", seed=0, batch_size=6)


@dataclass
class Settings:
    """Of the stand-in evaluation."""

    output_dir: Annotated[Path, Neutral("where it is")]
    k: int = PLAN.k


class Answers:
    """A model whose answers depend on nothing but the seed and the prompts."""

    def generate(self, prompts: Sequence[Any], n: int, seed: int) -> list[list[Completion]]:
        texts = [prompt[-1]["content"] for prompt in prompts]
        return [
            [_answer(f"{text}, {seed % (7 + i)}: \\boxed{{{(seed + i) % 5}}}") for i in range(n)]
            for text in texts
        ]


def _answer(text: str) -> Completion:
    return Completion(text, len(text), truncated=False)


def work(folder: Path, _: Setup) -> bool:
    """What ``trustclip eval`` does in a folder; True when it is finished."""
    with only_process(folder):
        run = RunDirectory.resumed(folder, "eval", Settings(folder))
        for task, problems in TASKS.items():
            run.problems(problems, task)
        done = recover(run.path / "samples.jsonl", TASKS, PLAN)
        rows = evaluate(run, None, Answers(), TASKS, PLAN, done=done)
        run.summarize({"command": "eval", **scores(rows)})
        return True


def runs(base: Path) -> Runs:
    """Evaluations of ten problems."""
    return Runs(work, base)
