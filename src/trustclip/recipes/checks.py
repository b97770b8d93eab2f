"""What pydantic cannot see of settings: values that fit alone and not together, names of things."""

from collections.abc import Iterator
from functools import singledispatch
from pathlib import Path
from typing import Any

from trustclip.engines.schedule import Schedule
from trustclip.method import method, method_class
from trustclip.names import nearest
from trustclip.recipes.settings import ARITHMETIC, PRIMER, EvalStage, RLStage, SFTStage

Complaint = tuple[tuple[str, ...], str]


@singledispatch
def complaints(settings: Any) -> Iterator[Complaint]:
    """Everything that would fail or silently do nothing once a model is loaded.

    Args:
      settings: an `SFTStage`, `RLStage` or `EvalStage`, or the name of a model.

    Yields:
      Path of the setting, and what is wrong.
    """
    raise TypeError(f"no settings of a stage: {type(settings).__name__}")


@complaints.register
def _(settings: str) -> Iterator[Complaint]:
    from trustclip.recipes.models import check_model

    yield from _of((), lambda: check_model(settings))


@complaints.register
def _(settings: SFTStage) -> Iterator[Complaint]:
    yield from _source(settings.dataset)
    if settings.max_steps < 1 and settings.max_steps != -1:
        yield ("max_steps",), f"`max_steps` is {settings.max_steps}: a positive number, or -1."


@complaints.register
def _(settings: RLStage) -> Iterator[Complaint]:
    yield from _source(settings.dataset)
    wrong_method = [*_of(("method",), lambda: method_class(settings.method))] or [
        *_of(("method_args",), lambda: method(settings.method, **settings.method_args))
    ]
    yield from wrong_method
    schedule = schedule_of(settings)
    if not wrong_method and schedule.inert and not settings.allow_inert:
        chosen = method(settings.method, **settings.method_args)
        if not chosen.acts_on_policy:
            yield ("num_iterations",), schedule.explain_inert(settings.method)
    samples = settings.per_device_train_batch_size * schedule.steps_per_generation
    if samples % settings.num_generations:
        yield (
            ("num_generations",),
            f"per_device_train_batch_size x steps_per_generation = {samples} completions per "
            f"generation is no multiple of num_generations = {settings.num_generations}.",
        )
    if settings.reward_noise and settings.reward != "correct":
        text = "`reward_noise` turns the reward 'correct' round, which `reward` replaces."
        yield ("reward_noise",), text
    if settings.trl:
        from trustclip.engines import passthrough

        own = set(RLStage.__dataclass_fields__) | {"model"}
        for name, text in passthrough.complaints(settings.trl, own):
            yield ("trl", name), text


@complaints.register
def _(settings: EvalStage) -> Iterator[Complaint]:
    from trustclip.tasks.sources import open_source, task_file

    names = [part.strip() for part in settings.tasks.split(",") if part.strip()]
    if not names:
        yield ("tasks",), "`tasks` names no task; for example amc23,aime24."
    folder = settings.data_dir
    if folder is not None and not folder.is_dir():
        yield ("data_dir",), f"`data_dir`: {folder} is not a folder."
        return
    for name in names:
        if name != ARITHMETIC:

            def look(name: str = name, folder: Path | None = folder) -> None:
                local = None if folder is None else task_file(name, folder)
                open_source(str(local or name), None)

            yield from _of(("tasks",), look)


def schedule_of(settings: RLStage) -> Schedule:
    """How many updates a generation of these settings serves."""
    return Schedule(
        settings.steps_per_generation or settings.gradient_accumulation_steps,
        settings.num_iterations,
        settings.gradient_accumulation_steps,
    )


def refuse(settings: Any) -> None:
    """Raise everything that is wrong with a command's settings, its model included.

    Raises:
      ValueError: all `complaints`.
    """
    found = [text for _, text in complaints(settings)]
    if getattr(settings, "backend", None) != "openai":
        found += [text for _, text in complaints(settings.model)]
    if found:
        raise ValueError("\n".join(found))


def _source(name: str) -> Iterator[Complaint]:
    from trustclip.tasks.hub import HUB_SOURCES
    from trustclip.tasks.sources import open_source

    generated = (ARITHMETIC, PRIMER)
    if name in generated:
        return
    for where, text in _of(("dataset",), lambda: open_source(name, None)):
        near = nearest(name, (*generated, *HUB_SOURCES))
        hint = f" Generated ones: {', '.join(generated)}."
        yield where, text + (hint if near in generated else "")


def _of(where: tuple[str, ...], action: Any) -> Iterator[Complaint]:
    try:
        action()
    except ValueError as error:
        yield where, str(error)
