"""A recipe run from its file to its scores: fine-tune, evaluate, train with evaluations, save."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from trustclip import stats
from trustclip.method import method
from trustclip.recipes.callbacks import Checkups, Interrupted
from trustclip.recipes.card import write_card
from trustclip.recipes.evaluate import (
    Plan,
    evaluate,
    interval_text,
    outcomes,
    score_rows,
    scores,
    scores_table,
)
from trustclip.recipes.generation import (
    Backend,
    Completion,
    Conversation,
    Local,
    Sampling,
    derived_seed,
)
from trustclip.recipes.models import save_model
from trustclip.recipes.problems import test_problems, training_problems
from trustclip.recipes.records import RunDirectory, samples
from trustclip.recipes.rl import reinforce, short_enough, starting_model
from trustclip.recipes.settings import Recipe, RecipeEval, RLSettings, SFTSettings
from trustclip.recipes.sft import sft


def run_recipe(recipe: Recipe, console: Console) -> RunDirectory:
    """Run a recipe, or what is left of it: its folder tells how far it came.

    Raises:
      ValueError: the folder holds another run, or something cannot be used.
    """
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
    settings = RLSettings(
        model=_tuned(recipe, run, console),
        output_dir=run.path,
        seed=recipe.seed,
        **vars(recipe.rl),
    )
    problems = training_problems(settings, run)
    run.problems(problems)
    model, tokenizer = starting_model(settings, run, console)
    problems = short_enough(problems, tokenizer, settings)
    run.summarize({**_identity(recipe), "finished": False})
    evaluation = checkups = None
    if recipe.eval is not None:
        evaluation = _Evaluation(recipe.eval, recipe, run, tokenizer, console)
        checkups = Checkups(recipe.eval.every, evaluation)
    trained = reinforce(model, tokenizer, problems, settings, run, console, checkups)
    if trained is None:
        return
    if evaluation is not None:
        evaluation(trained.trainer)
    save_model(trained.trainer.model, tokenizer, run.final)
    run.summarize({**_identity(recipe), **_course(run), **trained.metrics, "finished": True})
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


def _tuned(recipe: Recipe, run: RunDirectory, console: Console) -> str:
    """The model that RL starts from: fine-tuned in ``sft/`` if the recipe says so."""
    if recipe.sft is None:
        return recipe.model
    folder = run.path / "sft"
    settings = SFTSettings(
        model=recipe.model, output_dir=folder, seed=recipe.seed, **vars(recipe.sft)
    )
    tuned = sft(settings, console)
    if not tuned.summary.get("finished"):
        raise Interrupted
    return str(tuned.final)


def _identity(recipe: Recipe) -> dict[str, Any]:
    chosen = method(recipe.rl.method, **recipe.rl.method_args)
    return {
        "command": "run",
        "name": recipe.name,
        "model": recipe.model,
        "seed": recipe.seed,
        "method": chosen.to_dict(),
    }


class _Evaluation:
    """Evaluations of one recipe: the same problems and sampling at every step."""

    def __init__(
        self,
        settings: RecipeEval,
        recipe: Recipe,
        run: RunDirectory,
        tokenizer: Any,
        console: Console,
    ) -> None:
        self._settings, self._seed, self._run = settings, recipe.seed, run
        self._tokenizer, self._console = tokenizer, console
        self._tasks = test_problems(settings, run)
        for task, problems in self._tasks.items():
            run.problems(problems, task)

    def __call__(self, trainer: Any) -> None:
        """Evaluate the policy of a trainer; its rows are new: they come after every checkpoint.

        Raises:
          Interrupted: the run is asked to stop.
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
        told = f"eval after {step} updates  {name} {interval_text(value)}"
        self._console.print(told, highlight=False)

    def _backend(self, trainer: Any) -> Backend:
        s = self._settings
        sampling = Sampling(s.temperature, s.top_p, s.max_tokens)
        if getattr(trainer.args, "use_vllm", False):
            from trustclip.recipes.vllm import TrainingVLLM

            return TrainingVLLM(trainer.vllm_generation, self._tokenizer, sampling)
        model = trainer.accelerator.unwrap_model(trainer.model)
        return Local(model, self._tokenizer, sampling, s.batch_size)


class _Watched:
    """A backend that looks, before every batch, whether the run is asked to stop."""

    def __init__(self, backend: Backend, trainer: Any) -> None:
        self._backend, self._trainer = backend, trainer

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        if self._trainer.asked_to_stop():
            raise Interrupted
        return self._backend.generate(prompts, n, seed)


def _course(run: RunDirectory) -> dict[str, Any]:
    """Scores before and after, and the best step's, from the samples; nothing without any."""
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
        # Chosen by its score on these very problems, which makes that score too good.
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
