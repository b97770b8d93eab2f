"""Evaluation: sample every problem K times and grade the answers; also while a policy trains."""

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trustclip import stats
from trustclip.findings.start import of_evaluation
from trustclip.logs.answers import outcomes, score_rows, scores
from trustclip.logs.samples import sample_rows, shards
from trustclip.support.flush import flush
from trustclip.support.jsonl import Row, scan, write_bytes
from trustclip.support.terminal import warn
from trustclip.support.text import interval_text
from trustclip.train.evaluation.backends.local import (
    Backend,
    Completion,
    Conversation,
    Local,
    Sampling,
    derived_seed,
)
from trustclip.train.evaluation.measures import Measures
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import PromptStyle, messages, prompt_style
from trustclip.train.problems.verify import Style, Verifier, extract_answer
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.progress import Stage
from trustclip.train.settings.stages import RecipeEval

Tasks = Mapping[str, Sequence[Problem]]


@dataclass(frozen=True)
class Plan:
    """How an evaluation samples."""

    k: int  # samples per problem
    style: str | PromptStyle
    seed: int
    batch_size: int  # completions per batch, at least k of them
    measures: Measures = field(default_factory=Measures)  # besides or instead of the verifier


def sample(
    backend: Backend, tasks: Tasks, plan: Plan, done: Sequence[Row] = ()
) -> Iterator[list[Row]]:
    """Sample and grade every problem, a batch of problems at a time.

    The samples of a batch depend only on the seed and its own problems, so any can be repeated.
    Complete batches, of which ``done`` has the rows, are skipped; see `recover`.

    Yields:
      Rows of ``samples.jsonl``: task, id, gold, k, response, extracted, tokens, truncated, correct,
      judged (how the verifier decided), and the plan's further ``rewards`` by label.
    """
    style = prompt_style(plan.style)
    finished = {(row["task"], row["id"]) for row in done}
    with Verifier() as verifier:
        for task, batch in _batches(tasks, plan):
            if (task, batch[0].id) in finished:
                continue
            prompts = [messages(p.problem, style) for p in batch]
            seed = derived_seed(plan.seed, task, style.name, *(p.id for p in batch))
            rows = [
                {
                    "task": task,
                    "id": problem.id,
                    "gold": problem.answer,
                    "k": index,
                    "response": completion.text,
                    "extracted": extract_answer(completion.text, style.extraction),
                    "tokens": completion.tokens,
                    "truncated": completion.truncated,
                }
                for problem, group in zip(
                    batch, backend.generate(prompts, plan.k, seed), strict=True
                )
                for index, completion in enumerate(group)
            ]
            if plan.measures.verified:
                _judge(rows, verifier, style.extraction)
            _measure(rows, plan.measures, batch, prompts)
            yield rows


def _batches(tasks: Tasks, plan: Plan) -> Iterator[tuple[str, Sequence[Problem]]]:
    step = max(1, plan.batch_size // plan.k)
    for task, problems in tasks.items():
        for start in range(0, len(problems), step):
            yield task, problems[start : start + step]


def _judge(rows: Sequence[Row], verifier: Verifier, extraction: Style) -> None:
    """Set ``correct`` and ``judged``."""
    golds, responses = ([row[name] for row in rows] for name in ("gold", "response"))
    verdicts = verifier.judge(golds, responses, extraction)
    for row, (right, judged) in zip(rows, verdicts, strict=True):
        row["correct"], row["judged"] = int(right), judged


def _measure(
    rows: Sequence[Row], measures: Measures, batch: Sequence[Problem], prompts: Sequence[Any]
) -> None:
    """Set ``rewards`` where there are any, and ``correct`` if the first decides it."""
    k = len(rows) // len(batch)
    row_prompts = [prompt for prompt in prompts for _ in range(k)]
    row_problems = [problem for problem in batch for _ in range(k)]
    measured = measures.of(row_problems, row_prompts, [row["response"] for row in rows])
    for row, values in zip(rows, measured, strict=True):
        if not measures.verified:
            row["correct"], row["judged"] = int(values[measures.first] or 0), "reward"
            row["extracted"] = row["extracted"] if row["gold"] else ""
        if values:
            row["rewards"] = values


def recover(path: Path, tasks: Tasks, plan: Plan) -> list[Row]:
    """Rows of the complete batches in the ``samples.jsonl`` of an interrupted evaluation.

    Everything from the first incomplete batch on, torn by a kill or damaged by a power cut, is
    removed, so that new samples, which repeat the old ones, can be appended.
    """
    files = shards(path.parent)
    by_problem: dict[tuple[Any, ...], dict[bytes, Row]] = defaultdict(dict)
    for file in files:
        for line in scan(file):
            if line.row is not None and not line.torn:
                by_problem[_problem(line.row)][line.content] = line.row
            elif not line.torn:
                text = f"{file}:{line.number} is no JSON object; its samples are drawn again."
                warnings.warn(text, stacklevel=2)
    complete: dict[bytes, Row] = {}
    for task, batch in _batches(tasks, plan):
        groups = [by_problem[task, problem.id, problem.answer] for problem in batch]
        if any(len(group) != plan.k for group in groups):
            break  # so that rows and scores have the order of an uninterrupted evaluation
        for group in groups:
            complete |= group
    if files:
        for file in files:
            if file != path:
                file.unlink()
        flush(path.parent)
        # Intact rows too: a failed flush may have lost rows that can still be read, and a later
        # flush of the same file would succeed without them.
        write_bytes(path, b"".join(complete))
    return list(complete.values())


def _problem(row: Row) -> tuple[str | None, ...]:
    return tuple(None if (v := row.get(key)) is None else str(v) for key in ("task", "id", "gold"))


def evaluate(
    run: RunDirectory,
    console: Console | None,
    backend: Backend,
    tasks: Tasks,
    plan: Plan,
    step: int | None = None,
    done: Sequence[Row] = (),
) -> list[Row]:
    """Sample, grade and record; new rows also go to the run's samples."""
    remaining = sum(len(problems) for problems in tasks.values()) - len(done) // plan.k
    tags = {"stage": "eval"} if step is None else {"stage": "eval", "step": step}
    rows = list(done)
    with nullcontext() if console is None else Stage(console, "eval", remaining) as bar:
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


def scores_table(result: Mapping[str, Any], title: str = "") -> Table:
    """Table of `scores` for the terminal, in percent, with the share of truncated completions."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    rows = dict(result["tasks"])
    if len(rows) > 1 and "average" in result:
        rows["average"] = result["average"]
    names = [name for name in next(iter(rows.values())) if "@" in name]
    headers = [name.replace("mean", "Mean").replace("pass", "Pass") + " %" for name in names]
    rewards = [name for name in next(iter(rows.values())).get("rewards", {})]
    for header in ("task", "n", *headers, *rewards, "truncated", "no answer", "length"):
        table.add_column(header, justify="left" if header == "task" else "right", no_wrap=True)
    for task, row in rows.items():
        cells = [interval_text(row[name]) for name in names]
        cells += [_reward_text(row.get("rewards", {}).get(name)) for name in rewards]
        ends = f"{row['truncated']:.1%}", f"{row['no_answer']:.1%}", f"{row['length']:.0f}"
        table.add_row(task, str(row["problems"]), *cells, *ends)
    return table


def _reward_text(mean: Mapping[str, Any] | None) -> str:
    """A mean reward with its interval, in the reward's own unit."""
    if mean is None:
        return ""
    inside = "" if mean["low"] is None else f" [{mean['low']:.3g}, {mean['high']:.3g}]"
    return f"{mean['value']:.3g}{inside}"


class Evaluation:
    """Evaluations of one run: the same problems and sampling at every step.

    Raises:
      ValueError: a reward that cannot be made.
    """

    def __init__(
        self, settings: RecipeEval, seed: int, tests: Tasks, run: RunDirectory, console: Console
    ) -> None:
        measures = Measures(settings.reward, settings.style.extraction)
        self._plan = Plan(settings.k, settings.style, seed, settings.batch_size, measures)
        self._sampling = Sampling(settings.temperature, settings.top_p, settings.max_tokens)
        self.every, self._tasks, self._run, self._console = settings.every, tests, run, console

    def __call__(self, trainer: Any) -> None:
        """Evaluate a trainer's policy; rows come after every checkpoint, so none is a repeat."""
        step = trainer.state.global_step
        plan = replace(self._plan, seed=derived_seed(self._plan.seed, step))
        model, training = trainer.model, trainer.model.training
        trainer.unfinished = "evaluation"
        try:
            backend = _Interruptible(self._backend(trainer), trainer)
            rows = evaluate(self._run, None, backend, self._tasks, plan, step)
        finally:
            model.train(training)
            trainer.unfinished = "update"
        result = scores(rows)
        for row in score_rows(result, step):
            self._run.log(row)
        limit = self._sampling.max_tokens
        name, value = next(iter(result["average"].items()))
        line = f"eval after {step} updates  {name} {interval_text(value)}"
        self._console.print(line, highlight=False)
        for finding in of_evaluation(result["average"], limit) if step == 0 else ():
            warn(self._console, f"warning: {finding.text}")

    def _backend(self, trainer: Any) -> Backend:
        tokenizer, sampling = trainer.processing_class, self._sampling
        if getattr(trainer.args, "use_vllm", False):
            from trustclip.train.evaluation.backends.vllm import TrainingVLLM

            return TrainingVLLM(trainer.vllm_generation, tokenizer, sampling)
        model = trainer.accelerator.unwrap_model(trainer.model)
        return Local(model, tokenizer, sampling, self._plan.batch_size, trainer.stopping)

    def course(self) -> dict[str, Any]:
        """Scores before and after training; empty without evaluations."""
        evaluations: dict[int, list[Row]] = defaultdict(list)
        for row in sample_rows(self._run.path):
            if row["stage"] == "eval":
                evaluations[row["step"]].append(row)
        if not evaluations:
            return {}
        return {
            "initial": scores(evaluations[min(evaluations)]),
            "final": scores(evaluations[max(evaluations)]),
            "difference": vars(difference(evaluations)),
        }


class _Interruptible:
    """A backend that leaves the run before or after a batch if it was asked to stop."""

    def __init__(self, backend: Backend, trainer: Any) -> None:
        self._backend, self._trainer = backend, trainer

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        self._trainer.leave_if_asked()
        completions = self._backend.generate(prompts, n, seed)
        self._trainer.leave_if_asked()  # a batch that a rank ended early is worthless
        return completions


def difference(evaluations: Mapping[int, Sequence[Row]]) -> stats.Difference:
    """Gain in Mean@K from the first to the last evaluation, paired by problem, macro-averaged."""
    before, after = (outcomes(evaluations[pick(evaluations)]) for pick in (min, max))
    pairs = [(task, after[task][key], before[task][key]) for task in after for key in after[task]]
    tasks, new, old = zip(*pairs, strict=True)
    return stats.paired_difference(list(new), list(old), strata=list(tasks))
