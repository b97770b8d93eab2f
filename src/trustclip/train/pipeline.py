"""Running a whole recipe: fine-tune, evaluate, train with evaluations, save, score."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trustclip import stats
from trustclip.findings.run import of_run
from trustclip.findings.start import of_evaluation
from trustclip.logs.answers import outcomes, overlapping, score_rows, scores
from trustclip.logs.reader import read_run
from trustclip.support.jsonl import Row
from trustclip.support.terminal import announce, print_table, warn
from trustclip.support.text import interval_text
from trustclip.train.checks import absent
from trustclip.train.data import differences, overlap_text, recipe_problems, record, show, unlike
from trustclip.train.durable.lock import only_process
from trustclip.train.durable.ranks import by_first
from trustclip.train.durable.rollcall import Interrupted
from trustclip.train.equipment import Equipment, open_run
from trustclip.train.evaluation.backends.local import (
    Backend,
    Completion,
    Conversation,
    Local,
    Sampling,
    derived_seed,
)
from trustclip.train.evaluation.evaluate import Plan, evaluate, scores_table
from trustclip.train.evaluation.measures import Measures
from trustclip.train.files import demo_recipe
from trustclip.train.models import load_tokenizer, save_model
from trustclip.train.problems.problem import Problem
from trustclip.train.rl import data_table, reinforce, short_enough, starting_model
from trustclip.train.runs.card import conclude
from trustclip.train.runs.directory import RunDirectory, samples
from trustclip.train.settings.stages import DemoSettings, Recipe, SFTSettings
from trustclip.train.sft import run_sft
from trustclip.train.watch.callbacks import Checkups


def run_recipe(recipe: Recipe, console: Console) -> RunDirectory:
    """Run a recipe, or what is left of it as recorded in its run directory.

    Raises:
      ValueError: the folder holds another run, another process uses it, or a model, data set or
        package, login or server is missing.
    """
    if missing := [*absent(recipe.rl)]:  # now, not after hours of fine-tuning
        raise ValueError("\n".join(missing))
    with open_run("run", recipe, console) as (run, finished):
        try:
            if not finished:
                _run(recipe, run, console)
        except Interrupted:
            console.print(f"stopped; the same command continues {run.path}.", highlight=False)
        return run


def _run(recipe: Recipe, run: RunDirectory, console: Console) -> None:
    data = recipe_problems(recipe, run)
    show(console, differences(recipe))
    show(console, unlike(recipe.model, (recipe.sft or recipe.rl).style))
    for line in overlap_text(data.overlap):
        console.print(line, highlight=False, markup=False)
    tests = sum(map(len, data.tests.values()))
    stages = [
        *([f"fine-tuning on {len(data.tuning)} solutions"] if recipe.sft else []),
        f"{recipe.rl.method.name} on {len(data.training)} problems",
        *([f"evaluations on {tests}"] if tests else []),
    ]
    announce(console, f"{recipe.name}: {', '.join(stages)}; from {recipe.model}, in {run.path}")
    if recipe.sft is not None and not (run.path / "sft" / "final").exists():
        _refuse_before_tuning(recipe, data.training)
    run.problems(data.training)
    evaluation = None if recipe.eval is None else _Evaluation(recipe, data.tests, run, console)
    with Equipment(recipe.rl, recipe, run, console) as equipment:
        place = replace(recipe, model=_model(recipe, run, data.tuning, console))
        model, tokenizer = starting_model(place, recipe.rl.style, run, console)
        problems = short_enough(data.training, tokenizer, recipe.rl)
        prompt = record(recipe.rl.style, tokenizer, problems[0].problem)
        identity: dict[str, Any] = {
            "command": "run",
            "name": recipe.name,
            "model": recipe.model,
            "seed": recipe.seed,
            "method": recipe.rl.method.to_dict(),
            "overlap": data.overlap,
            "prompt": prompt,
        }
        if recipe.eval is not None and recipe.eval.style.asked != recipe.rl.style.asked:
            identity["eval_prompt"] = record(recipe.eval.style, tokenizer)
        run.summarize({**identity, "finished": False})
        checkups = None
        if recipe.eval is not None and evaluation is not None:
            evaluation.tokenizer = tokenizer
            checkups = Checkups(recipe.eval.every, evaluation)
        trainer, metrics = reinforce(model, tokenizer, problems, recipe.rl, equipment, checkups)
    if evaluation is not None:
        evaluation(trainer)
    save_model(trainer.model, tokenizer, run.final, prompt, recipe.rl.save)
    by_first(lambda: conclude(run, {**identity, **_course(run), **metrics, "finished": True}))
    _report(run, console)


def _refuse_before_tuning(recipe: Recipe, problems: Sequence[Problem]) -> None:
    """Raise now, rather than after the fine-tuning, what reinforcement learning would refuse."""
    data_table(problems, recipe.rl)
    if recipe.rl.max_prompt_length is not None:
        style = (recipe.sft or recipe.rl).style
        short_enough(problems, load_tokenizer(recipe.model, style), recipe.rl)


def _report(run: RunDirectory, console: Console) -> None:
    summary = run.summary
    if "final" in summary:
        stages = {"before": summary["initial"], "after": summary["final"]}
        if "final_clean" in summary:
            without = without_copies(summary.get("overlap", {}))
            stages[f"before, {without}"] = summary["initial_clean"]
            stages[f"after, {without}"] = summary["final_clean"]
        for name, result in stages.items():
            print_table(console, scores_table(result, name))
        gain = interval_text(summary["difference"])
        console.print(f"gain, paired by problem: {gain} points", highlight=False)
        if clean := summary.get("difference_clean"):
            text = f"gain {without_copies(summary['overlap'])}: {interval_text(clean)} points"
            console.print(text, highlight=False)
        conclude_scores(run.path, console)
    if notices := summary.get("notices"):
        several = "s" * (len(notices) > 1)
        text = f"{len(notices)} warning{several} during training: trustclip explain {run.path}"
        warn(console, text)
    console.print(f"model in {run.final}", highlight=False)


def without_copies(overlap: Mapping[str, Any]) -> str:
    """The clean test problems, in words.

    Example:
      >>> without_copies({"rl": {"excluded": True}})
      'without the problems that were left out of training'
      >>> without_copies({"rl": {"excluded": False}})
      'without the problems that were trained on'
    """
    left_out = all(stage.get("excluded") for stage in overlap.values())
    return f"without the problems that were {'left out of training' if left_out else 'trained on'}"


def conclude_scores(folder: Path, console: Console) -> None:
    """Say at the end of a run that its score fell, or that its constraint did nothing."""
    for finding in of_run(read_run(folder)):
        if finding.subject in ("gate", "scores") and finding.troubles:
            warn(console, finding.sentence)


def _model(recipe: Recipe, run: RunDirectory, problems: Sequence[Problem], console: Console) -> str:
    """The model that RL starts from: fine-tuned in ``sft/`` if the recipe has that stage."""
    if recipe.sft is None:
        return recipe.model
    folder = run.path / "sft"
    settings = SFTSettings(
        model=recipe.model,
        output_dir=folder,
        seed=recipe.seed,
        dtype=recipe.dtype,
        **vars(recipe.sft),
    )
    sft_run = run_sft(settings, console, problems)
    if not sft_run.summary.get("finished"):
        raise Interrupted
    return str(sft_run.final)


class _Evaluation:
    """Evaluations of one recipe: the same problems and sampling at every step.

    Made before the model, so that a reward that cannot be built fails early; ``tokenizer`` is set
    once there is one.
    """

    tokenizer: Any = None

    def __init__(
        self,
        recipe: Recipe,
        tests: dict[str, list[Problem]],
        run: RunDirectory,
        console: Console,
    ) -> None:
        assert recipe.eval is not None
        self._settings, self._seed, self._run = recipe.eval, recipe.seed, run
        self._console, self._tasks = console, tests
        self._measures = Measures(recipe.eval.reward, recipe.eval.style.extraction)
        for task, problems in self._tasks.items():
            run.problems(problems, task)

    def __call__(self, trainer: Any) -> None:
        """Evaluate a trainer's policy; rows come after every checkpoint, so none is a repeat."""
        s, step = self._settings, trainer.state.global_step
        plan = Plan(s.k, s.style, derived_seed(self._seed, step), s.batch_size, self._measures)
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
        name, value = next(iter(result["average"].items()))
        line = f"eval after {step} updates  {name} {interval_text(value)}"
        self._console.print(line, highlight=False)
        for finding in of_evaluation(result["average"], s.max_tokens) if step == 0 else ():
            warn(self._console, f"warning: {finding.text}")

    def _backend(self, trainer: Any) -> Backend:
        s = self._settings
        sampling = Sampling(s.temperature, s.top_p, s.max_tokens)
        if getattr(trainer.args, "use_vllm", False):
            from trustclip.train.evaluation.backends.vllm import TrainingVLLM

            return TrainingVLLM(trainer.vllm_generation, self.tokenizer, sampling)
        model = trainer.accelerator.unwrap_model(trainer.model)
        return Local(model, self.tokenizer, sampling, s.batch_size, trainer.stopping)


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


def _course(run: RunDirectory) -> dict[str, Any]:
    """Scores before and after training and at the best step; empty without evaluations."""
    evaluations: dict[int, list[Row]] = defaultdict(list)
    for row in samples(run.path):
        if row["stage"] == "eval":
            evaluations[row["step"]].append(row)
    if not evaluations:
        return {}
    results = {step: scores(rows) for step, rows in sorted(evaluations.items())}
    name = next(iter(results[0]["average"]))
    steps = [step for step in results if step > 0] or [0]
    best = max(steps, key=lambda step: results[step]["average"][name]["value"])
    return {
        "initial": results[min(results)],
        "final": results[max(results)],
        "difference": vars(difference(evaluations)),
        **clean_scores(run.summary.get("overlap", {}), evaluations),
        # Selected by its score on these same problems, so that score is biased upwards.
        "best": {"step": best, "average": results[best]["average"]},
    }


def clean_scores(
    overlap: Mapping[str, Any], evaluations: Mapping[int, Sequence[Row]]
) -> dict[str, Any]:
    """First and last scores without the test problems that the training data hold, if any."""
    if not (copies := overlapping(overlap)):
        return {}
    clean = {
        step: [row for row in evaluations[step] if row["id"] not in copies.get(row["task"], ())]
        for step in (min(evaluations), max(evaluations))
    }
    if not all(clean.values()):
        return {}
    return {
        "initial_clean": scores(clean[min(clean)]),
        "final_clean": scores(clean[max(clean)]),
        "difference_clean": vars(difference(clean)),
    }


def difference(evaluations: Mapping[int, Sequence[Row]]) -> stats.Difference:
    """Gain in Mean@K from the first to the last evaluation, paired by problem, macro-averaged."""
    before, after = (outcomes(evaluations[pick(evaluations)]) for pick in (min, max))
    pairs = [(task, after[task][key], before[task][key]) for task in after for key in after[task]]
    tasks, new, old = zip(*pairs, strict=True)
    return stats.paired_difference(list(new), list(old), strata=list(tasks))


def demo(settings: DemoSettings, console: Console) -> RunDirectory:
    """Run `trustclip demo`: prime, evaluate, reinforce, evaluate."""
    # A model this small gains nothing from threads, and their number would change the numbers.
    torch.set_num_threads(1)
    method = settings.method
    default = Path(f"runs/demo-{method.name}-seed{settings.seed}")
    folder = settings.output_dir or Path(by_first(lambda: str(_free_folder(default, settings))))
    console.print(f"{method}, seed {settings.seed}, run directory {folder}", highlight=False)
    return run_recipe(demo_recipe(settings, folder), console)


def _free_folder(path: Path, settings: DemoSettings) -> Path:
    """The first of ``path``, ``path-2``, ... that is free, or holds this very demo, unfinished."""
    number, candidate = 1, path
    while candidate.exists() and not _is_stopped(candidate, settings):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _is_stopped(folder: Path, settings: DemoSettings) -> bool:
    try:
        with only_process(folder):
            return RunDirectory.stopped(folder, "run", demo_recipe(settings, folder))
    except (ValueError, OSError):  # in use, damaged, or no folder of a run
        return False
