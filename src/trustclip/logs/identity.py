"""What makes two runs the same run: which settings results depend on, and which they do not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: What a configuration may be of: its commands, and the stages that it holds as mappings.
_STAGES = ("sft", "rl", "eval")
_SAVED = ("logging_steps", "save", "save_steps", "save_total_limit")
#: By what a mapping is of, the settings that no result depends on. `train/settings` says why of
#: each; a test compares the two.
_NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "run": ("output_dir", "name"),
    "sft": _SAVED,
    "rl": (
        *(*_SAVED, "shadows", "server_url", "save_async", "save_to", "tokens_every"),
        *("tokens_completions", "tokens_megabytes", "sink"),
    ),
    "eval": ("output_dir",),
    "eval of a recipe": (),
}
NEUTRAL = tuple(dict.fromkeys(name for key in ("run", "sft", "rl") for name in _NEUTRAL[key]))


def _no_prompt(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value.values()) == {None}


def _usual(usual: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Whether a mapping leaves what is usual."""
    return lambda value: all(
        one in (None, usual.get(name), []) for name, one in (value or {}).items()
    )


_LORA = {"dropout": 0.0, "target_modules": "all-linear", "modules_to_save": ()}
_LORA |= {"use_rslora": False, "use_dora": False, "bias": "none"}
_SAMPLER = {"dtype": "float32", "lag": 0, "top_p": 1.0, "top_k": 0}
_TESTS = {"columns": {}, "prompt": None, "reward": "correct"}
_DATA = {"columns": {}, "prompt": None, "split": None, "exclude": "none", "lora": _LORA}
#: By what a mapping is of, the settings that older runs do not have, with what those runs did.
_BEFORE: Mapping[str, Mapping[str, Any]] = {
    "run": {"dtype": "auto"},
    "sft": _DATA,
    "rl": {**_DATA, "sampler": _SAMPLER, "replay": False, "candidates": None, "server": "none"},
    "eval": {**_TESTS, "dtype": "auto", "vllm": {}},
    "eval of a recipe": _TESTS,
}
#: Those in which another value may mean the same.
_SAME: Mapping[str, Callable[[Any], bool]] = {
    "prompt": _no_prompt,
    "lora": _usual(_LORA),
    "sampler": _usual(_SAMPLER),
}
BEFORE: Mapping[str, Any] = {**_BEFORE["sft"], **_BEFORE["rl"], **_BEFORE["eval"]}


def essential(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings without those that no result depends on.

    Only the settings of the run and of its stages are looked at: a method's ``name`` is no title.

    Example:
      >>> essential({"name": "a", "rl": {"sink": "wandb", "method": {"name": "atr"}}})
      {'rl': {'method': {'name': 'atr'}}}
      >>> essential({"rl": {"sampler": {"dtype": "float32", "lag": 0}, "max_steps": 3}})
      {'rl': {'max_steps': 3}}
    """
    command = config.get("command")
    own = {"sft": ["run", "sft"], "rl": ["run", "rl"], "eval": ["eval"], "run": ["run"]}
    settings = _without_neutral(config, own.get(str(command), ["run", "sft", "rl"]))
    return {
        key: _without_neutral(value, ["eval of a recipe" if key == "eval" else key])
        if key in _STAGES and isinstance(value, Mapping)
        else value
        for key, value in settings.items()
    }


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of an older release, with what newer settings say of it written out.

    Example:
      >>> completed({"sft": {"dataset": "a.csv"}, "seed": 0})["sft"]["exclude"]
      'none'
    """
    if any(key in config for key in _STAGES):
        trains = {k: completed(v) for k, v in config.items() if k in ("sft", "rl") and v}
        return {**config, **trains}
    return {**config, "exclude": config.get("exclude", BEFORE["exclude"])}


def _without_neutral(settings: Mapping[str, Any], of: Sequence[str]) -> dict[str, Any]:
    neutral = {name for key in of for name in _NEUTRAL[key]}
    since = {name: before for key in of for name, before in _BEFORE[key].items()}

    def says_nothing(key: str, value: Any) -> bool:
        same = _SAME.get(key, lambda value: value == since[key])
        return key in since and same(value)

    return {
        str(key): value
        for key, value in settings.items()
        if key not in neutral and not says_nothing(key, value)
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
