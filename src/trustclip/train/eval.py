"""The command ``eval``: sample a model's answers to problem sets, grade and score them."""

from collections import Counter

from rich.console import Console

from trustclip.logs.answers import scores
from trustclip.support.consent import names_in
from trustclip.support.jsonl import plain
from trustclip.support.lock import only_process, rank
from trustclip.support.terminal import announce, print_table
from trustclip.train.checks import refuse
from trustclip.train.data import show, test_problems, trained_with, unlike
from trustclip.train.evaluation.backends.local import Backend, Local, Sampling
from trustclip.train.evaluation.backends.vllm import VLLM
from trustclip.train.evaluation.evaluate import Plan, evaluate, recover, scores_table
from trustclip.train.evaluation.measures import Measures
from trustclip.train.inputs import compare
from trustclip.train.models import adapter_of, base_of, load_model
from trustclip.train.problems.prompts import record
from trustclip.train.rewarding import keep_code
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import EvalSettings
from trustclip.train.tiny import BUILT_IN


def run_evaluation(settings: EvalSettings, console: Console) -> RunDirectory:
    """Run `trustclip eval`: sample every task's problems, grade, print and record the scores.

    A run directory with the same settings is resumed: completions it holds are not sampled again.
    It is the work of one process: of several ranks, those after the first have nothing to do.
    """
    refuse(settings)
    if settings.backend == "openai":
        from trustclip.support.http import check_address

        check_address(settings.base_url)
    if rank() > 0:
        return RunDirectory(settings.output_dir, "eval", settings)
    with only_process(settings.output_dir):
        return _run_evaluation(settings, console)


def _run_evaluation(settings: EvalSettings, console: Console) -> RunDirectory:
    run = RunDirectory.resumed(settings.output_dir, "eval", settings)
    tasks = test_problems(settings, run)
    compare(run, settings, {f"`tasks` {task}": problems for task, problems in tasks.items()})
    for task, problems in tasks.items():
        run.problems(problems, task)
    measures = Measures(settings.reward, settings.style.extraction)
    keep_code(run, names_in(plain(settings)))
    plan = Plan(settings.k, settings.style, settings.seed, settings.batch_size, measures)
    completed = recover(run.path / "samples.jsonl", tasks, plan)
    if completed:
        console.print(f"continuing: {len(completed) // plan.k} problems are done", highlight=False)
    show(console, unlike(settings.model, settings.style))
    count = sum(map(len, tasks.values()))
    announce(
        console,
        f"eval: {settings.model} on {count} problems, {settings.k} samples of each, in {run.path}",
    )
    backend = open_backend(settings)
    try:
        rows = evaluate(run, console, backend, tasks, plan, done=completed)
        engine_facts = {"vllm": backend.facts} if isinstance(backend, VLLM) else {}
    finally:
        measures.close()
        if isinstance(backend, VLLM):
            backend.close()
    result = scores(rows)
    verdicts = dict(sorted(Counter(row["judged"] for row in rows).items()))
    first = next(problem for problems in tasks.values() for problem in problems)
    tokenizer = getattr(backend, "tokenizer", None)
    prompts = {"prompt": record(settings.style, tokenizer, first.problem)}
    if trained_prompts := trained_with(settings.model):
        prompts["trained_with"] = trained_prompts
    head = {"command": "eval", "model": settings.model, **engine_facts, **prompts}
    run.summarize({**head, **result, "verifier": verdicts})
    print_table(console, scores_table(result))
    console.print(f"scores in {run.path / 'summary.json'}", highlight=False)
    return run


def open_backend(settings: EvalSettings) -> Backend:
    """The backend that the settings name, ready to generate."""
    sampling = Sampling(settings.temperature, settings.top_p, settings.max_tokens)
    if settings.backend == "openai":
        from trustclip.train.evaluation.backends.served import Served

        return Served(
            settings.base_url,
            settings.model,
            sampling,
            settings.concurrency,
            settings.style.thinking,
        )
    if settings.backend == "vllm":
        if settings.model in BUILT_IN:
            raise ValueError(
                f"vLLM cannot load the built-in model {settings.model!r}: give a folder or a hub "
                "id."
            )
        if adapter_of(settings.model) is not None:
            raise ValueError(
                f"vLLM needs a whole model here, and {settings.model!r} is a LoRA adapter: "
                "evaluate it with --backend transformers, or merge it first."
            )
        model = base_of(settings.model)
        return VLLM(model, sampling, settings.style, settings.seed, settings.vllm)
    model, tokenizer = load_model(settings.model, settings.style, settings.seed, settings.dtype)
    return Local(model, tokenizer, sampling, settings.batch_size)
