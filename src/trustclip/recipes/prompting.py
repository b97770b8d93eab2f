"""The prompts of a run, on record: those of training, and those of evaluation."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.settings.stages import Recipe
from trustclip.support.terminal import warn
from trustclip.tasks.prompts import PromptStyle, rendered

#: Beside a trained model: the prompts that it was trained with.
FILE = "prompt.json"


def record(style: PromptStyle, tokenizer: Any = None, problem: str | None = None) -> dict[str, Any]:
    """A prompt in plain values, for ``summary.json`` and for `FILE`.

    With the hash of a tokenizer's chat template, and a problem as the model gets it.
    """
    prompt = {"style": style.name, **style.asked}
    if tokenizer is not None:
        template = str(tokenizer.chat_template).encode()
        prompt["chat_template"] = hashlib.sha256(template).hexdigest()[:16]
    if tokenizer is not None and problem is not None:
        prompt["rendered"] = rendered(tokenizer, problem, style)
    return prompt


def trained_with(model: str) -> dict[str, Any] | None:
    """The prompts that the model in a folder was trained with; None if unknown."""
    try:
        content = json.loads((Path(model) / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def unlike(model: str, style: PromptStyle) -> Iterator[str]:
    """The sentence about a model that was trained with other prompts than it will get."""
    before = trained_with(model)
    if before is not None and (names := _diff_keys(before, style.asked)):
        yield (
            f"{model} was trained with other prompts (style {before.get('style')!r}) than it gets "
            f"now (style {style.name!r}): {names} differ. Set prompt_style and prompt to those of "
            "its training unless this is meant."
        )


def differences(recipe: Recipe) -> Iterator[str]:
    """Sentences about stages of a recipe that use other prompts than reinforcement learning."""
    for name in ("sft", "eval"):
        stage = getattr(recipe, name)
        if stage is not None and (names := _diff_keys(stage.style.asked, recipe.rl.style.asked)):
            yield (
                f"prompts of `{name}` (style {stage.style.name!r}) are not those of `rl` (style "
                f"{recipe.rl.style.name!r}): {names} differ."
            )


def _diff_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(name for name in other if one.get(name) != other[name])


def show(console: Console, lines: Iterator[str]) -> None:
    """Print warnings about prompts."""
    for line in lines:
        warn(console, line)
