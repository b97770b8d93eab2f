"""Evaluation: sample every problem K times, grade, and say what the scores are worth."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trustclip import stats
from trustclip.recipes.checks import refuse
from trustclip.recipes.generation import Backend, Local, Sampling, derived_seed
from trustclip.recipes.models import load_model
from trustclip.recipes.problems import test_problems
from trustclip.recipes.progress import Stage
from trustclip.recipes.records import RunDirectory
from trustclip.recipes.settings import EvalSettings
from trustclip.rewards import Style, Verifier, extract_answer
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


def sample(
    backend: Backend, tasks: Tasks, plan: Plan, done: Sequence[Row] = ()
) -> Iterator[list[Row]]:
    """Sample and grade every problem, a batch of problems at a time.

    What a batch gives depends on the seed and its own problems alone, so any may be redone.

    Args:
      backend: draws the completions.
      tasks: problems by task.
      plan: how to sample.
      done: rows of whole batches that need no second time; see `recover`.

    Yields:
      Rows of ``samples.jsonl``: task, id, gold, k, response, extracted, tokens, truncated, correct,
      judged (how: the verifier's name for it).
    """
    extraction = prompt_style(plan.style).extraction
    finished = {(row["task"], row["id"]) for row in done}
    with Verifier() as verifier:
        for task, batch in _batches(tasks, plan):
            if (task, batch[0].id) in finished:
                continue
            prompts = [messages(p.problem, plan.style) for p in batch]
            seed = derived_seed(plan.seed, task, plan.style, *(p.id for p in batch))
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
                for problem, group in zip(
                    batch, backend.generate(prompts, plan.k, seed), strict=True
                )
                for index, completion in enumerate(group)
            ]
            _judge(rows, verifier, extraction)
            yield rows


def _batches(tasks: Tasks, plan: Plan) -> Iterator[tuple[str, Sequence[Problem]]]:
    step = max(1, plan.batch_size // plan.k)
    for task, problems in tasks.items():
        for start in range(0, len(problems), step):
            yield task, problems[start : start + step]


def _judge(rows: Sequence[Row], verifier: Verifier, extraction: Style) -> None:
    """Set ``correct`` and ``judged``, one distinct answer at a time: the verifier counts, unnamed,
    how it came to its verdicts, so only a call with one answer tells whose they are.
    """
    verdicts: dict[tuple[str, str | None], tuple[int, str]] = {}
    for row in rows:
        answer = row["gold"], row["extracted"]
        if answer not in verdicts:
            before = verifier.counts.copy()
            (score,) = verifier.score([row["gold"]], [row["response"]], extraction)
            (judged,) = verifier.counts - before
            verdicts[answer] = int(score), judged
        row["correct"], row["judged"] = verdicts[answer]


def recover(path: Path, tasks: Tasks, plan: Plan) -> list[Row]:
    """Rows of the whole batches that an interrupted evaluation left in its ``samples.jsonl``.

    Everything else, a torn line or a batch cut short, is removed from the file, so that what
    is sampled next can be appended.

    Args:
      path: the file; none is the same as an empty one.
      tasks: problems by task.
      plan: how they are sampled.

    Raises:
      ValueError: a whole line is no JSON.
    """
    if not path.exists():
        return []
    stored = path.read_bytes()
    lines = stored.split(b"\n")[:-1]
    found: dict[tuple[str, str, str], dict[bytes, Row]] = defaultdict(dict)
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is no JSON: {error}") from error
        found[row["task"], row["id"], row["gold"]][line] = row
    kept: dict[bytes, Row] = {}
    for task, batch in _batches(tasks, plan):
        groups = [found[task, problem.id, problem.answer] for problem in batch]
        if all(len(group) == plan.k for group in groups):
            for group in groups:
                kept |= group
    whole = b"".join(line + b"\n" for line in kept)
    if whole != stored:
        part = path.with_name(path.name + ".part")
        part.write_bytes(whole)
        part.replace(path)
    return list(kept.values())


def evaluate(
    run: RunDirectory,
    console: Console | None,
    backend: Backend,
    tasks: Tasks,
    plan: Plan,
    step: int | None = None,
    done: Sequence[Row] = (),
) -> list[Row]:
    """Sample, grade and record; new rows also go to the run's samples.

    Args:
      run: where to.
      console: gets the progress; None for silence.
      backend: draws the completions.
      tasks: problems by task.
      plan: how to sample.
      step: updates that the model has had, a column of the rows, where it is being trained.
      done: rows that need no second time; see `recover`.
    """
    left = sum(len(problems) for problems in tasks.values()) - len(done) // plan.k
    tags = {"stage": "eval"} if step is None else {"stage": "eval", "step": step}
    rows = list(done)
    with nullcontext() if console is None else Stage(console, "eval", left) as bar:
        for batch in sample(backend, tasks, plan, done):
            if run.leads:
                run.sample({**tags, **row} for row in batch)
            rows += batch
            if bar is not None:
                bar.step(
                    {
                        "correct": sum(row["correct"] for row in rows) / len(rows),
                        "completions/mean_length": sum(row["tokens"] for row in rows) / len(rows),
                    },
                    len(batch) // plan.k,
                )
    return rows


def score_rows(result: Mapping[str, Any], step: int) -> list[Row]:
    """Rows of ``metrics.jsonl``, one per task, from `scores`; ``average`` only over several tasks.

    Example:
      >>> part = {"mean@1": {"value": 0.5, "low": 0.2, "high": 0.8}, "problems": 6, "curve": {}}
      >>> score_rows({"tasks": {"t": part}, "average": part}, 8)[0]["mean@1/low"]
      0.2
    """
    parts = dict(result["tasks"])
    if len(parts) > 1:
        parts["average"] = result["average"]
    rows = []
    for task, part in parts.items():
        row: Row = {"stage": "eval", "step": step, "task": task}
        for name, value in part.items():
            if name.partition("@")[1]:
                row |= {name: value["value"], f"{name}/low": value["low"]}
                row[f"{name}/high"] = value["high"]
            elif name != "curve":
                row[name] = value
        rows.append(row)
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
      ``{"value", "low", "high"}`` (shares of 1), ``problems``, ``truncated``, ``no_answer``,
      ``timeout`` (of the verifier; shares of completions), ``length`` (mean, tokens) and ``curve``:
      ``k`` from 1 to K, ``mean`` of the first k samples and unbiased ``pass`` at k.

    Example:
      >>> rows = [{"task": "t", "id": str(i), "correct": int(i > 0), "tokens": 4, "extracted": "1",
      ...          "truncated": False, "judged": "direct"} for i in range(3) for _ in range(2)]
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
        "timeout": sum(row["judged"] == "timeout" for row in rows) / len(rows),
        "length": sum(row["tokens"] for row in rows) / len(rows),
        "curve": {
            "k": list(range(1, k + 1)),
            "mean": stats.mean_curve(correct, strata).tolist(),
            "pass": stats.pass_curve(correct, strata).tolist(),
        },
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

    A run directory with the same settings is continued: what it holds is not sampled again.

    Raises:
      ValueError: a model, task, run directory or server that cannot be used.
    """
    refuse(settings)
    run = RunDirectory.resumed(settings.output_dir, "eval", settings)
    tasks = test_problems(settings, run)
    plan = Plan(settings.k, settings.prompt_style, settings.seed, settings.batch_size)
    done = recover(run.path / "samples.jsonl", tasks, plan)
    if done:
        console.print(f"continuing: {len(done) // plan.k} problems are done", highlight=False)
    rows = evaluate(run, console, open_backend(settings), tasks, plan, done=done)
    result = scores(rows)
    judged = dict(sorted(Counter(row["judged"] for row in rows).items()))
    run.summarize({"command": "eval", "model": settings.model, **result, "verifier": judged})
    console.print(scores_table(result))
    console.print(f"scores in {run.path / 'summary.json'}", highlight=False)
    return run


def open_backend(settings: EvalSettings) -> Backend:
    """The backend that the settings name, ready to generate.

    Raises:
      ValueError: it cannot be had: no such model, no vLLM, no such address.
    """
    sampling = Sampling(settings.temperature, settings.top_p, settings.max_tokens)
    if settings.backend == "openai":
        from trustclip.recipes.served import Served

        return Served(settings.base_url, settings.model, sampling, settings.concurrency)
    if settings.backend == "vllm":
        from trustclip.recipes.vllm import VLLM

        return VLLM(settings.model, sampling, settings.prompt_style, settings.seed)
    model, tokenizer = load_model(settings.model, settings.prompt_style, settings.seed)
    return Local(model, tokenizer, sampling, settings.batch_size)
