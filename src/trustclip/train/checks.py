"""Checks beyond types: conflicting values, unknown names, packages and logins that are missing."""

import importlib.util
from collections.abc import Iterator, Mapping
from functools import partial, singledispatch
from pathlib import Path
from typing import Any

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.check import check
from trustclip.engines import limits
from trustclip.support.consent import names_code
from trustclip.support.names import nearest
from trustclip.support.settings import Complaint
from trustclip.train import rewarding
from trustclip.train.problems.generated import GENERATED, PRIMER
from trustclip.train.problems.rows import Fields, map_columns
from trustclip.train.problems.verify.chosen import CORRECT, RESERVED
from trustclip.train.settings.stages import (
    EvalStage,
    InitSettings,
    RLStage,
    SFTStage,
    TrySettings,
)


@singledispatch
def complaints(settings: Any) -> Iterator[Complaint]:
    """Settings that would fail, or silently have no effect, once a model is loaded.

    Yields the path of each setting, empty for the name of a model, and what is wrong.
    """
    return iter(())  # of the demo, whose recipe is checked


@complaints.register
def _(settings: str) -> Iterator[Complaint]:
    from trustclip.train.models import check_model

    yield from _errors((), lambda: check_model(settings))


@complaints.register
def _(settings: TrySettings | InitSettings) -> Iterator[Complaint]:
    yield from _source(settings.dataset, settings.columns)
    yield from ((("reward",), text) for text in rewarding.complaints(settings.reward))
    if isinstance(settings, InitSettings):
        yield from _method(settings.method, limits.ENGINES["TRL"])


@complaints.register
def _(settings: SFTStage) -> Iterator[Complaint]:
    yield from _source(settings.dataset, settings.columns)
    yield from _adapters(settings)
    if settings.max_steps < 1 and settings.max_steps != -1:
        yield ("max_steps",), f"`max_steps` must be positive or -1, got {settings.max_steps}."


@complaints.register
def _(settings: RLStage) -> Iterator[Complaint]:
    yield from _source(settings.dataset, settings.columns)
    yield from (*_schedule(settings), *_options(settings), *_adapters(settings))
    yield from _method(settings.method, limits.ALONE)
    if settings.trl.get("top_k") and not settings.replay:
        text = "`trl.top_k` cuts the samples' distribution: set `replay: true` beside it."
        yield ("trl", "top_k"), text


def of_engine(settings: Any) -> Iterator[Complaint]:
    """What TRL and its engine refuse in settings without `complaints`; their import takes seconds.

    Without TRL there is nothing: the machine that launches a suite need not be one that trains.
    """
    if not isinstance(settings, RLStage) or importlib.util.find_spec("trl") is None:
        return
    errors: list[Complaint] = []
    if settings.trl:
        from trustclip.engines.trl import passthrough

        own = set(RLStage.__dataclass_fields__) | {"model"}
        errors += [(("trl", name), t) for name, t in passthrough.complaints(settings.trl, own)]
    if settings.shadows and not errors:
        from trustclip.engines.trl.config import shadows

        errors += _errors(("shadows",), lambda: shadows(settings.shadows, settings.method))
    yield from errors or _errors(("trl" if settings.trl else "method",), lambda: _engine(settings))


def _method(method: Method, engine: limits.Supply) -> Iterator[Complaint]:
    """A method that the engine cannot train, or one from outside the library that is wrong."""
    if problem := limits.refusal(method, engine):
        yield ("method",), problem
    elif any(names_code(part.name) for part in limits.parts_of(method)):
        found = check(method)
        if not found:
            yield ("method",), str(found).replace("\n- ", " ")


def _adapters(settings: SFTStage | RLStage) -> Iterator[Complaint]:
    if settings.save != "merged" and not settings.lora_r:
        yield ("save",), f"`save` is {settings.save!r}, and there is no adapter: `lora_r` is 0."
    if settings.lora.dropout and isinstance(settings, RLStage):
        yield (
            ("lora", "dropout"),
            "`lora.dropout` draws another mask in every pass, so that the ratio is not 1 where "
            "nothing has changed: leave it at 0 in reinforcement learning.",
        )


def _schedule(settings: RLStage) -> Iterator[Complaint]:
    schedule, samples = settings.schedule, settings.samples
    acts = Trait.ACTS_ON_POLICY in settings.method.traits
    if schedule.inert and not (settings.allow_inert or acts):
        yield ("num_iterations",), schedule.explain_inert(settings.method.name)
    if samples % settings.num_generations:
        yield (
            ("num_generations",),
            f"per_device_train_batch_size x steps_per_generation = {samples} completions per "
            f"generation is not a multiple of num_generations = {settings.num_generations}.",
        )


def _options(settings: RLStage) -> Iterator[Complaint]:
    """Rewards that cannot be built, and options that the chosen one does not support."""
    yield from ((("reward",), text) for text in rewarding.complaints(settings.reward))
    if settings.reward_noise and settings.reward != CORRECT:
        text = f"`reward_noise` needs `reward` 'correct', got {settings.reward!r}."
        yield ("reward_noise",), text


def absent(settings: Any) -> Iterator[str]:
    """Packages, logins and servers that settings need and that are missing here."""
    from trustclip.train.services import unavailable

    tracker: str = getattr(settings, "report_to", "none")
    if tracker != "none" and importlib.util.find_spec(tracker) is None:
        yield (
            f"`report_to` {tracker!r} needs a package that is not installed: pip install "
            f"{tracker}, or set it to none: metrics.jsonl has every number."
        )
    else:
        yield from unavailable(tracker)
    if isinstance(settings, RLStage | SFTStage) and importlib.util.find_spec("trl") is None:
        yield "training needs TRL, which is not installed: pip install 'trustclip[train]'."
    if importlib.util.find_spec("vllm") is None:
        needs = "needs vLLM, which is not installed: pip install 'trustclip[vllm]', or set it to"
        if getattr(settings, "use_vllm", False):
            yield f"`use_vllm` {needs} false."
        if getattr(settings, "backend", None) == "vllm":
            yield f"`backend` {needs} transformers."


def _engine(settings: RLStage) -> None:
    """Raise ValueError if TRL, Transformers or the engine refuses the settings."""
    from trustclip.train.configs import grpo_config

    try:
        grpo_config(settings, Path("checkpoints"))
    except (TypeError, ImportError) as error:
        raise ValueError(f"TRL refuses these settings: {error}") from error


@complaints.register
def _(settings: EvalStage) -> Iterator[Complaint]:
    from trustclip.train.problems.sources import open_source

    if not settings.names:
        yield ("tasks",), "`tasks` is empty; give for example amc23,aime24."
    yield from _columns(settings.columns)
    yield from ((("reward",), text) for text in rewarding.complaints(settings.reward))
    for name in settings.names:
        if name not in GENERATED:
            yield from _errors(("tasks",), partial(open_source, name, "test"))


def _vllm(settings: Any) -> Iterator[str]:
    """Arguments of vLLM's engine that it would refuse."""
    backend = getattr(settings, "backend", "transformers")
    if backend != "transformers" and settings.dtype != "auto":
        instead = "set --vllm.dtype" if backend == "vllm" else "the server has its own"
        yield f"`dtype` is that of Transformers, and `backend` is {backend}: {instead}."
    if not (arguments := getattr(settings, "vllm", None)):
        return
    if settings.backend != "vllm":
        yield "`vllm` holds arguments of vLLM's engine: set `backend` to vllm, or leave it out."
    elif importlib.util.find_spec("vllm") is not None:
        from trustclip.train.evaluation.backends.vllm import complaints as of_engine

        yield from of_engine(arguments)


def refuse(settings: Any) -> None:
    """Raise one ValueError of all `complaints`, the model's included, and what is `absent`."""
    messages = [*(text for _, text in complaints(settings)), *absent(settings), *_vllm(settings)]
    if getattr(settings, "backend", None) != "openai":
        messages += [text for _, text in complaints(settings.model)]
    if messages or (messages := [text for _, text in of_engine(settings)]):
        raise ValueError("\n".join(messages))


def _source(name: str, columns: Mapping[str, str]) -> Iterator[Complaint]:
    yield from _columns(columns)
    from trustclip.train.problems.hub import HUB_SOURCES
    from trustclip.train.problems.sources import open_source

    generated = (*GENERATED, PRIMER)
    if name in generated:
        return
    for where, text in _errors(("dataset",), lambda: open_source(name, "train")):
        near = nearest(name, (*generated, *HUB_SOURCES))
        hint = f" Generated ones: {', '.join(generated)}."
        yield where, text + (hint if near in generated else "")


def _columns(columns: Mapping[str, str]) -> Iterator[Complaint]:
    yield from _errors(("columns",), lambda: map_columns(Fields(), columns))
    if reserved := [name for name in columns if name in RESERVED and name != "prompt"]:
        yield (
            ("columns",),
            f"`columns`: rewards get {reserved[0]!r} from the trainer; choose another name.",
        )


def _errors(where: tuple[str, ...], action: Any) -> Iterator[Complaint]:
    try:
        action()
    except ValueError as error:
        yield where, str(error)
