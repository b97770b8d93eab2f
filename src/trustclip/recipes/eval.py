"""The command ``eval``: sample a model's answers to problem sets, grade and score them."""

from collections import Counter

from rich.console import Console

from trustclip.durable.lock import only_process
from trustclip.evaluation.backends.local import Backend, Local, Sampling
from trustclip.evaluation.evaluate import Plan, evaluate, recover, scores_table
from trustclip.recipes.checks import refuse
from trustclip.recipes.models import load_model
from trustclip.recipes.problems import test_problems
from trustclip.recipes.settings import TINY, EvalSettings
from trustclip.runs.answers import scores
from trustclip.runs.directory import RunDirectory


def run_evaluation(settings: EvalSettings, console: Console) -> RunDirectory:
    """Run `trustclip eval`: sample every task's problems, grade, print and record the scores.

    A run directory with the same settings is resumed: completions it holds are not sampled again.

    Raises:
      ValueError: a model, task, run directory or server that cannot be used, or another process
        uses the run directory.
    """
    refuse(settings)
    with only_process(settings.output_dir):
        return _run_evaluation(settings, console)


def _run_evaluation(settings: EvalSettings, console: Console) -> RunDirectory:
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
      ValueError: no such model, vLLM is not installed, or an invalid address.
    """
    sampling = Sampling(settings.temperature, settings.top_p, settings.max_tokens)
    if settings.backend == "openai":
        from trustclip.evaluation.backends.served import Served

        return Served(settings.base_url, settings.model, sampling, settings.concurrency)
    if settings.backend == "vllm":
        if settings.model == TINY:
            raise ValueError(
                f"vLLM cannot load the built-in model {TINY!r}: give a folder or a hub id."
            )
        from trustclip.evaluation.backends.vllm import VLLM

        return VLLM(settings.model, sampling, settings.prompt_style, settings.seed)
    model, tokenizer = load_model(settings.model, settings.prompt_style, settings.seed)
    return Local(model, tokenizer, sampling, settings.batch_size)
