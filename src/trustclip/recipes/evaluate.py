"""Evaluation: sample every problem K times, grade, and say what the scores are worth."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from trustclip import stats
from trustclip.recipes.generation import Backend, Local, Sampling
from trustclip.recipes.models import check_model, load_model
from trustclip.recipes.problems import test_problems
from trustclip.recipes.progress import Stage
from trustclip.recipes.records import RunDirectory
from trustclip.recipes.settings import EvalSettings
from trustclip.rewards import Verifier, extract_answer
from trustclip.tasks.problem import Problem
from trustclip.tasks.prompts import messages, prompt_style

Tasks = Mapping[str, Sequence[Problem]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How an evaluation samples.

    Args:
      k: samples per problem.
      style: prompt style.
      seed: of the sampling.
      batch_size: completions per batch, at least ``k`` of them.
    """

    k: int
    style: str
    seed: int
    batch_size: int


def sample(backend: Backend, tasks: Tasks, plan: Plan) -> Iterable[list[Row]]:
    """Sample and grade every problem, a batch of problems at a time.

    What a batch gives depends on the seed and its own problems alone, so any may be redone.

    Args:
      backend: draws the completions.
      tasks: problems by task.
      plan: how to sample.

    Yields:
      Rows of ``samples.jsonl``: task, id, gold, k, response, extracted, correct, tokens,
      truncated.
    """
    extraction = prompt_style(plan.style).extraction
    step = max(1, plan.batch_size // plan.k)
    with Verifier() as verifier:
        for task, problems in tasks.items():
            for start in range(0, len(problems), step):
                batch = problems[start : start + step]
                key = "\n".join([str(plan.seed), task, plan.style, *(p.id for p in batch)])
                prompts = [messages(p.problem, plan.style) for p in batch]
                completions = backend.generate(prompts, plan.k, _hash(key))
                rows = [
                    {
                        "task": task,
                        "id": problem.id,
                        "gold": problem.answer,
                        "k": index,
                        "response": completion.text,
                        "extracted": extract_answer(completion.text, extraction),
                        "tokens": completion.tokens,
                        "truncated": completion.truncated,
                    }
                    for problem, group in zip(batch, completions, strict=True)
                    for index, completion in enumerate(group)
                ]
                scores = verifier.score(
                    [row["gold"] for row in rows], [row["response"] for row in rows], extraction
                )
                for row, score in zip(rows, scores, strict=True):
                    row["correct"] = int(score)
                yield rows


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def evaluate(
    run: RunDirectory,
    console: Console,
    backend: Backend,
    tasks: Tasks,
    plan: Plan,
    stage: str = "eval",
) -> list[Row]:
    """Sample, grade, record and show progress; rows also go to the run's ``samples.jsonl``."""
    total = sum(len(problems) for problems in tasks.values())
    rows: list[Row] = []
    with Stage(console, stage, total) as bar:
        for batch in sample(backend, tasks, plan):
            run.sample({"stage": stage, **row} for row in batch)
            rows += batch
            bar.step(
                {
                    "correct": sum(row["correct"] for row in rows) / len(rows),
                    "completions/mean_length": sum(row["tokens"] for row in rows) / len(rows),
                },
                len(batch) // plan.k,
            )
    return rows


def outcomes(rows: Iterable[Row]) -> dict[str, dict[str, list[int]]]:
    """Correctness by task and problem: ``{task: {id: [0, 1, ...]}}``, in order of appearance."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["task"]][row["id"]].append(row["correct"])
    return {task: dict(problems) for task, problems in found.items()}


def scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean@K and Pass@K with 95 % intervals, per task and macro-averaged, and how answers end.

    Args:
      rows: of `sample`, every problem with the same number of samples K.

    Returns:
      ``{"tasks": {task: {...}}, "average": {...}}``; each holds ``mean@K`` and ``pass@K`` as
      ``{"value", "low", "high"}`` (shares of 1), ``problems``, ``truncated``, ``no_answer``
      (shares of completions) and ``length`` (mean, tokens).

    Example:
      >>> rows = [{"task": "t", "id": str(i), "correct": int(i > 0), "tokens": 4,
      ...          "truncated": False, "extracted": "1"} for i in range(3) for _ in range(2)]
      >>> round(scores(rows)["average"]["mean@2"]["value"], 3)
      0.667
    """
    by_task = outcomes(rows)
    parts = {
        task: _scores(list(problems.values()), None, [r for r in rows if r["task"] == task])
        for task, problems in by_task.items()
    }
    every = [answers for problems in by_task.values() for answers in problems.values()]
    strata = [task for task, problems in by_task.items() for _ in problems]
    return {"tasks": parts, "average": _scores(every, strata, rows)}


def _scores(
    correct: list[list[int]], strata: list[str] | None, rows: Sequence[Row]
) -> dict[str, Any]:
    k = min(len(answers) for answers in correct)
    return {
        f"mean@{k}": vars(stats.mean_interval(correct, strata)),
        f"pass@{k}": vars(stats.pass_interval(correct, k, strata)),
        "problems": len(correct),
        "truncated": sum(row["truncated"] for row in rows) / len(rows),
        "no_answer": sum(row["extracted"] is None for row in rows) / len(rows),
        "length": sum(row["tokens"] for row in rows) / len(rows),
    }


def scores_table(result: Mapping[str, Any], title: str = "") -> Table:
    """Table of `scores` for the terminal, in percent: n problems, share of completions cut short.

    Args:
      result: of `scores`; without ``average`` the tasks stand alone.
      title: above the table.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    rows = dict(result["tasks"])
    if len(rows) > 1 and "average" in result:
        rows["average"] = result["average"]
    names = [name for name in next(iter(rows.values())) if "@" in name]
    headers = [name.replace("mean", "Mean").replace("pass", "Pass") + " %" for name in names]
    for header in ("task", "n", *headers, "cut", "no answer", "length"):
        justify = "left" if header == "task" else "right"
        table.add_column(header, justify=justify, no_wrap=header != "task")
    for task, row in rows.items():
        cells = [interval_text(row[name]) for name in names]
        ends = f"{row['truncated']:.1%}", f"{row['no_answer']:.1%}", f"{row['length']:.0f}"
        table.add_row(task, str(row["problems"]), *cells, *ends)
    return table


def interval_text(interval: Mapping[str, float]) -> str:
    """``12.5 [8.1, 18.0]``: a share and its interval in percent.

    Example:
      >>> interval_text({"value": 0.125, "low": 0.081, "high": 0.18})
      '12.5 [8.1, 18.0]'
    """
    value, low, high = (100 * interval[key] for key in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def run_evaluation(settings: EvalSettings, console: Console) -> RunDirectory:
    """Run `trustclip eval`: sample every task's problems, grade, print and record the scores.

    Raises:
      ValueError: a model, task or run directory that cannot be used.
    """
    check_model(settings.model)
    run = RunDirectory(settings.output_dir, "eval", settings)
    tasks = test_problems(settings, run)
    model, tokenizer = load_model(settings.model, settings.prompt_style, settings.seed)
    sampling = Sampling(settings.temperature, settings.top_p, settings.max_tokens)
    backend = Local(model, tokenizer, sampling, settings.batch_size)
    plan = Plan(settings.k, settings.prompt_style, settings.seed, settings.batch_size)
    rows = evaluate(run, console, backend, tasks, plan)
    result = scores(rows)
    run.summarize({"command": "eval", "model": settings.model, **result})
    console.print(scores_table(result))
    console.print(f"scores in {run.path / 'summary.json'}", highlight=False)
    return run
