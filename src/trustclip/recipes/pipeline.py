"""Running a whole recipe: fine-tune, evaluate, train with evaluations, save, score."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from trustclip import stats
from trustclip.durable.lock import only_process
from trustclip.evaluation.backends.local import (
    Backend,
    Completion,
    Conversation,
    Local,
    Sampling,
    derived_seed,
)
from trustclip.evaluation.evaluate import Plan, evaluate, scores_table
from trustclip.recipes.checks import packages
from trustclip.recipes.models import save_model
from trustclip.recipes.problems import overlap_text, recipe_problems
from trustclip.recipes.rl import reinforce, short_enough, starting_model
from trustclip.recipes.settings import Recipe, RLSettings, SFTSettings
from trustclip.recipes.sft import sft
from trustclip.recipes.watch.callbacks import Checkups, Interrupted
from trustclip.runs.answers import outcomes, score_rows, scores
from trustclip.runs.card import write_card
from trustclip.runs.directory import RunDirectory, samples
from trustclip.runs.text import interval_text
from trustclip.tasks.problem import Problem


def run_recipe(recipe: Recipe, console: Console) -> RunDirectory:
    """Run a recipe, or what is left of it as recorded in its run directory.

    Raises:
      ValueError: the folder holds another run, another process uses it, or a model, data set or
        package is missing.
    """
    if absent := [*packages(recipe.rl)]:  # now, not after hours of fine-tuning
        raise ValueError("\n".join(absent))
    with only_process(recipe.output_dir):
        run = RunDirectory.resumed(recipe.output_dir, "run", recipe)
        if run.summary.get("finished"):
            console.print(f"{run.path} is finished; nothing to do.", highlight=False)
            return run
        try:
            _run(recipe, run, console)
        except Interrupted:
            console.print(f"stopped; the same command continues {run.path}.", highlight=False)
        return run


def _run(recipe: Recipe, run: RunDirectory, console: Console) -> None:
    data = recipe_problems(recipe, run)
    for line in overlap_text(data.overlap):
        console.print(line, highlight=False, markup=False)
    settings = RLSettings(
        model=_tuned(recipe, run, data.tuning, console),
        output_dir=run.path,
        seed=recipe.seed,
        **vars(recipe.rl),
    )
    run.problems(data.training)
    model, tokenizer = starting_model(settings, run, console)
    problems = short_enough(data.training, tokenizer, settings)
    identity = {**_identity(recipe), "overlap": data.overlap}
    run.summarize({**identity, "finished": False})
    evaluation = checkups = None
    if recipe.eval is not None:
        evaluation = _Evaluation(recipe, data.tests, run, tokenizer, console)
        checkups = Checkups(recipe.eval.every, evaluation)
    trained = reinforce(model, tokenizer, problems, settings, run, console, checkups)
    if trained is None:
        return
    if evaluation is not None:
        evaluation(trained.trainer)
    save_model(trained.trainer.model, tokenizer, run.final)
    run.summarize({**identity, **_course(run), **trained.metrics, "finished": True})
    write_card(run.path)
    _conclude(run, console)


def _conclude(run: RunDirectory, console: Console) -> None:
    summary = run.summary
    if "final" in summary:
        stages = {"before": summary["initial"], "after": summary["final"]}
        for name, result in stages.items():
            console.print(scores_table(result, name))
        gain = interval_text(summary["difference"])
        console.print(f"gain, paired by problem: {gain} points", highlight=False)
    console.print(f"model in {run.final}", highlight=False)


def _tuned(recipe: Recipe, run: RunDirectory, problems: Sequence[Problem], console: Console) -> str:
    """The model that RL starts from: fine-tuned in ``sft/`` if the recipe has that stage."""
    if recipe.sft is None:
        return recipe.model
    folder = run.path / "sft"
    settings = SFTSettings(
        model=recipe.model, output_dir=folder, seed=recipe.seed, **vars(recipe.sft)
    )
    tuned = sft(settings, console, problems)
    if not tuned.summary.get("finished"):
        raise Interrupted
    return str(tuned.final)


def _identity(recipe: Recipe) -> dict[str, Any]:
    return {
        "command": "run",
        "name": recipe.name,
        "model": recipe.model,
        "seed": recipe.seed,
        "method": recipe.rl.method.to_dict(),
    }


class _Evaluation:
    """Evaluations of one recipe: the same problems and sampling at every step."""

    def __init__(
        self,
        recipe: Recipe,
        tests: dict[str, list[Problem]],
        run: RunDirectory,
        tokenizer: Any,
        console: Console,
    ) -> None:
        assert recipe.eval is not None
        self._settings, self._seed, self._run = recipe.eval, recipe.seed, run
        self._tokenizer, self._console, self._tasks = tokenizer, console, tests
        for task, problems in self._tasks.items():
            run.problems(problems, task)

    def __call__(self, trainer: Any) -> None:
        """Evaluate a trainer's policy; the rows come after every checkpoint, so none is a repeat.

        Raises:
          Interrupted: the run was asked to stop.
        """
        s, step = self._settings, trainer.state.global_step
        plan = Plan(s.k, s.prompt_style, derived_seed(self._seed, step), s.batch_size)
        model, training = trainer.model, trainer.model.training
        try:
            backend = _Watched(self._backend(trainer), trainer)
            rows = evaluate(self._run, None, backend, self._tasks, plan, step)
        finally:
            model.train(training)
        result = scores(rows)
        for row in score_rows(result, step):
            self._run.log(row)
        name, value = next(iter(result["average"].items()))
        line = f"eval after {step} updates  {name} {interval_text(value)}"
        self._console.print(line, highlight=False)

    def _backend(self, trainer: Any) -> Backend:
        s = self._settings
        sampling = Sampling(s.temperature, s.top_p, s.max_tokens)
        if getattr(trainer.args, "use_vllm", False):
            from trustclip.evaluation.backends.vllm import TrainingVLLM

            return TrainingVLLM(trainer.vllm_generation, self._tokenizer, sampling)
        model = trainer.accelerator.unwrap_model(trainer.model)
        return Local(model, self._tokenizer, sampling, s.batch_size)


class _Watched:
    """A backend that checks before every batch whether the run was asked to stop."""

    def __init__(self, backend: Backend, trainer: Any) -> None:
        self._backend, self._trainer = backend, trainer

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        if self._trainer.asked_to_stop():
            raise Interrupted
        return self._backend.generate(prompts, n, seed)


def _course(run: RunDirectory) -> dict[str, Any]:
    """Scores before and after training and at the best step; empty without evaluations."""
    evaluations = _evaluations(run)
    if not evaluations:
        return {}
    results = {step: scores(rows) for step, rows in evaluations.items()}
    name = next(iter(results[0]["average"]))
    trained = [step for step in results if step > 0] or [0]
    best = max(trained, key=lambda step: results[step]["average"][name]["value"])
    return {
        "initial": results[min(results)],
        "final": results[max(results)],
        "difference": vars(difference(run)),
        # Selected by its score on these same problems, so that score is biased upwards.
        "best": {"step": best, "average": results[best]["average"]},
    }


def _evaluations(run: RunDirectory) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in samples(run.path):
        if row["stage"] == "eval":
            found[row["step"]].append(row)
    return dict(sorted(found.items()))


def difference(run: RunDirectory) -> stats.Difference:
    """Gain in Mean@K from the first to the last evaluation, paired by problem, macro-averaged."""
    before, *_, after = (outcomes(rows) for rows in _evaluations(run).values())
    pairs = [(task, after[task][key], before[task][key]) for task in after for key in after[task]]
    tasks, new, old = zip(*pairs, strict=True)
    return stats.paired_difference(list(new), list(old), strata=list(tasks))
