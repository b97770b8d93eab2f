"""What makes two runs the same run: which settings results depend on, and which they do not."""

from collections.abc import Mapping, Sequence
from typing import Any

from trustclip.support.marks import Neutral, Since, marked
from trustclip.train.settings.stages import (
    OF_COMMAND,
    SECTIONS,
    EvalSettings,
    Recipe,
    RLStage,
    SFTStage,
)

#: Settings that no result depends on, with the reason.
NEUTRAL: Mapping[str, str] = {
    name: mark.why
    for cls in (Recipe, SFTStage, RLStage)
    for name, mark in marked(cls, Neutral).items()
}
#: Settings that older runs do not have, with what those runs did.
BEFORE: Mapping[str, Any] = {
    name: mark.before
    for cls in (SFTStage, RLStage, EvalSettings)
    for name, mark in marked(cls, Since).items()
}


def essential(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings without those that no result depends on.

    Only the settings of the run and of its stages are looked at: a method's ``name`` is no title.

    Example:
      >>> essential({"name": "a", "rl": {"sink": "wandb", "method": {"name": "atr"}}})
      {'rl': {'method': {'name': 'atr'}}}
      >>> essential({"rl": {"sampler": {"dtype": "float32", "lag": 0}, "max_steps": 3}})
      {'rl': {'max_steps': 3}}
    """
    own = OF_COMMAND.get(str(config.get("command")))
    settings = _without_neutral(config, [own] if own else [Recipe, SFTStage, RLStage])
    return {
        key: _without_neutral(value, [SECTIONS[key]])
        if key in SECTIONS and isinstance(value, Mapping)
        else value
        for key, value in settings.items()
    }


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of an older release, with what newer settings say of it written out.

    Example:
      >>> completed({"sft": {"dataset": "a.csv"}, "seed": 0})["sft"]["exclude"]
      'none'
    """
    if any(key in config for key in SECTIONS):
        trains = {k: completed(v) for k, v in config.items() if k in ("sft", "rl") and v}
        return {**config, **trains}
    return {**config, "exclude": config.get("exclude", BEFORE["exclude"])}


def _without_neutral(settings: Mapping[str, Any], classes: Sequence[type]) -> dict[str, Any]:
    neutral = {name for cls in classes for name in marked(cls, Neutral)}
    since = {name: mark for cls in classes for name, mark in marked(cls, Since).items()}
    return {
        str(key): value
        for key, value in settings.items()
        if key not in neutral and not (key in since and since[key].unchanged(value))
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their paths; an empty mapping is a value.

    Example:
      >>> flat({"rl": {"method": {"name": "atr"}, "trl": {}}})
      {'rl.method.name': 'atr', 'rl.trl': {}}
    """
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value
        values |= flat(value, f"{path}.") if nested else {path: value}
    return values


def with_method(config: Mapping[str, Any]) -> dict[str, Any]:
    """A ``config.yaml`` with its method as one mapping, also where an older release wrote it.

    Example:
      >>> with_method({"rl": {"method": "atr", "method_args": {"delta": 0.07}}})
      {'rl': {'method': {'name': 'atr', 'delta': 0.07}}}
    """
    new = dict(config)
    if isinstance(new.get("rl"), Mapping):
        new["rl"] = with_method(new["rl"])
    arguments = new.pop("method_args", None)
    if not isinstance(arguments, Mapping | None):
        raise ValueError(f"`method_args` holds hyper-parameters by name, got {arguments!r}.")
    if isinstance(new.get("method"), str):
        new["method"] = {"name": new["method"], **(arguments or {})}
    return new
