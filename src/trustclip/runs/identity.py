"""What makes two runs the same run: which settings results depend on, and which they do not."""

from collections.abc import Mapping
from typing import Any

from trustclip.engines.sampler import as_sampler

#: Settings that no result depends on, with the reason.
NEUTRAL: Mapping[str, str] = {
    "name": "a title, for people",
    "output_dir": "where the files of the run are written",
    "save_steps": "a run continues exactly from any checkpoint, so how often it saves is free",
    "save_total_limit": "how many checkpoints are kept",
    "save_async": "whether training waits for a checkpoint",
    "save_to": "where checkpoints are copied to",
    "tokens_every": "how often tokens are recorded; nothing is trained on them",
    "tokens_completions": "how many completions that records",
    "tokens_megabytes": "how much space that takes",
    "sink": "where metrics are copied to",
    "shadows": "methods that only watch; the training is the same to the last bit",
    "logging_steps": "how often metrics are written; nothing is trained on them",
}
#: Settings that older runs do not have, with the value that changes nothing.
UNUSED: Mapping[str, Any] = {"split": None, "columns": {}, "exclude": "none", "vllm": {}}
#: Parts of a recipe that have settings of their own.
STAGES = ("sft", "rl", "eval")


def essential(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings without those that no result depends on.

    Only the settings of the run and of its stages are looked at: a method's ``name`` is no title.

    Example:
      >>> essential({"name": "a", "rl": {"sink": "wandb", "method": {"name": "atr"}}})
      {'rl': {'method': {'name': 'atr'}}}
      >>> essential({"rl": {"sampler": {"dtype": "float32", "lag": 0}, "max_steps": 3}})
      {'rl': {'max_steps': 3}}
    """
    found = {
        key: _without_neutral(value) if key in STAGES and isinstance(value, Mapping) else value
        for key, value in _without_neutral(config).items()
    }
    # Evaluations of older releases have no `reward`: theirs was the verifier.
    for evaluation in (found.get("eval"), found if found.get("command") == "eval" else None):
        if isinstance(evaluation, dict) and evaluation.get("reward") == "correct":
            del evaluation["reward"]
    return found


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of an older release, with what newer settings say of it written out.

    Example:
      >>> completed({"sft": {"dataset": "a.csv"}, "seed": 0})["sft"]["exclude"]
      'none'
    """
    if any(key in config for key in STAGES):
        trains = {k: completed(v) for k, v in config.items() if k in ("sft", "rl") and v}
        return {**config, **trains}
    return {**config, "exclude": config.get("exclude", UNUSED["exclude"])}


def _without_neutral(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(key): value
        for key, value in settings.items()
        # Runs of older releases have no `sampler`: theirs was the policy in training.
        if key not in NEUTRAL and not (key == "sampler" and as_sampler(value).exact)
        if not (key in UNUSED and value == UNUSED[key])
        if not (key == "prompt" and isinstance(value, Mapping) and set(value.values()) == {None})
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their paths; an empty mapping is a value.

    Example:
      >>> flat({"rl": {"method": {"name": "atr"}, "trl": {}}})
      {'rl.method.name': 'atr', 'rl.trl': {}}
    """
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{path}.") if nested else {path: value}
    return found


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
