"""Sampler against trainer before a run: the first completions of a recipe."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.scoring.floor import with_floor
from trustclip.train.data import short_enough, training_problems
from trustclip.train.preflight.longest import model_shape, trial
from trustclip.train.settings.stages import Recipe


class _StopTraining(Exception):
    """Ends the training once the first completions are scored."""


def first_completions(recipe: Recipe) -> Pairs:
    """Sample the first update's completions as the recipe would, and score them; nothing is saved.

    Fine-tuning is left out, so that ``model`` is the one compared.

    Raises:
      ValueError: data or a model that cannot be used, or a sampler without log-probabilities.
    """
    first: list[Pairs] = []

    def stop(pairs: Pairs) -> None:
        first.append(pairs)
        raise _StopTraining

    problems = training_problems(recipe.rl, None, recipe.seed)
    tokenizer = model_shape(recipe.model, recipe.rl.style)[1]
    problems = short_enough(problems, tokenizer, recipe.rl)
    once = replace(recipe, rl=replace(recipe.rl, max_steps=1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trial(once, problems, Path(folder))
        trainer.recorder, trainer.mismatch.listener = _NullRecorder(), stop
        try:
            trainer.train()
        except _StopTraining:
            model = trainer.accelerator.unwrap_model(trainer.model)
            return with_floor(first[0], model, trainer.temperature)
    raise ValueError(
        "this recipe's sampler reports no log-probabilities to compare with; vLLM (use_vllm), "
        "continuous batching and trustclip's own decoder do."
    )


class _NullRecorder:
    """A recorder that keeps nothing; with one, the trainer looks at single tokens."""

    def generation(self, generation: Any) -> None:
        pass

    def gates(self, row: dict[str, Any]) -> None:
        pass

    def notice(self, step: int, name: str, text: str) -> None:
        pass
