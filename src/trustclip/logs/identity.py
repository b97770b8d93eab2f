"""What makes two runs the same run: which settings results depend on, and which they do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from trustclip.logs.forms import MARKED
from trustclip.support.inside import Inside
from trustclip.support.jsonl import plain, read_mapping
from trustclip.support.marks import Extends, Neutral, Since, marked, sections
from trustclip.support.schemas import conform

MARKS = "marks.json"


@dataclass(frozen=True)
class Marks:
    """What a run directory says of its settings besides their values, by their paths.

    Args:
      neutral: the settings that no result depends on, and why.
      since: the settings that older releases do not have, with a value that does what those did:
        the run's own, if it does.
      extends: the number of updates, of which a run that has begun may get more; or empty.
    """

    neutral: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, Any] = field(default_factory=dict)
    extends: str = ""

    @classmethod
    def of(cls, kind: type, settings: Mapping[str, Any], at: str = "") -> Self:
        """The marks beside the types of a class (`trustclip.support.marks`), for plain values.

        Example:
          >>> from typing import Annotated
          >>> @dataclass
          ... class Settings:
          ...     title: Annotated[str, Neutral("for people")]
          ...     replay: Annotated[bool, Since(before=False)] = True
          >>> Marks.of(Settings, {"title": "a", "replay": True})
          Marks(neutral={'title': 'for people'}, since={'replay': False}, extends='')
        """
        if not is_dataclass(kind):
            return cls()
        neutral = {at + n: m.why for n, m in marked(kind, Neutral).items() if n in settings}
        since = {
            at + name: settings[name] if mark.unchanged(settings[name]) else plain(mark.before)
            for name, mark in marked(kind, Since).items()
            if name in settings
        }
        extends = "".join(at + name for name in marked(kind, Extends))
        for name, stage in sections(kind).items():
            if isinstance(settings.get(name), Mapping):
                inner = cls.of(stage, settings[name], f"{at}{name}.")
                neutral, since = {**neutral, **inner.neutral}, {**since, **inner.since}
                extends = inner.extends or extends  # of several stages, the last
        return cls(neutral, since, extends)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The marks in a run directory; None in one of an older release.

        Raises:
          ValueError: the file is damaged.
        """
        path = Inside(folder).file(MARKS)
        if not (content := read_mapping(path)):
            return None
        conform(content, MARKED, str(path))
        return cls(**{field.name: content[field.name] for field in fields(cls)})


def essential(
    config: Mapping[str, Any], marks: Marks | None = None, at: str = ""
) -> dict[str, Any]:
    """A run's settings without those that no result depends on.

    Without marks they are those of older releases. A method's ``name`` is no title.

    Example:
      >>> essential({"name": "a", "rl": {"report_to": "wandb", "method": {"name": "atr"}}})
      {'rl': {'method': {'name': 'atr'}}}
      >>> essential({"rl": {"sampler": {"dtype": "float32", "lag": 0}, "max_steps": 3}})
      {'rl': {'max_steps': 3}}
    """
    marks = _older(config) if marks is None else marks
    return {
        key: essential(value, marks, f"{path}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
        if (path := f"{at}{key}") not in marks.neutral
        and not (path in marks.since and marks.since[path] == value)
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


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A ``config.yaml`` of an older release by the names of this one.

    Example:
      >>> renamed({"rl": {"sink": "wandb", "lora": {"r": 8, "alpha": None}}})
      {'rl': {'lora': {}, 'report_to': 'wandb', 'lora_r': 8}}
    """
    new = {key: value for key, value in config.items() if key != "sink"}
    for stage in ("sft", "rl"):
        if isinstance(new.get(stage), Mapping):
            new[stage] = renamed(new[stage])
    if "sink" in config:
        new["report_to"] = config["sink"]
    if isinstance(lora := new.get("lora"), Mapping):
        new["lora"] = {key: value for key, value in lora.items() if key not in ("r", "alpha")}
        new |= {f"lora_{key}": lora[key] for key in ("r", "alpha") if lora.get(key) is not None}
    return new


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


# -- runs of releases before 0.3, which store no marks: nothing is added from here on -------------

_SAVED = ("logging_steps", "save", "save_steps", "save_total_limit")
#: By what a mapping is of, the settings that no result depends on.
_NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "run": ("output_dir", "name", "changed_inputs"),
    "sft": _SAVED,
    "rl": (
        *(*_SAVED, "shadows", "server_url", "save_async", "save_to", "tokens_every"),
        *("tokens_completions", "tokens_megabytes", "sink", "report_to"),
    ),
    "eval": ("output_dir", "changed_inputs"),
    "eval of a recipe": (),
}
_LORA = {"dropout": 0.0, "target_modules": "all-linear", "modules_to_save": ()}
_LORA |= {"use_rslora": False, "use_dora": False, "bias": "none"}
_SAMPLER = {"dtype": "float32", "lag": 0, "top_p": 1.0, "top_k": 0}
_BRAKE = {"rule": "off", "reference": 1.0}
_TESTS = {"columns": {}, "prompt": {}, "reward": "correct"}
_DATA = {"columns": {}, "prompt": {}, "split": None, "exclude": "none", "lora": _LORA}
#: By what a mapping is of, the settings that older runs do not have, with what those runs did.
_BEFORE: Mapping[str, Mapping[str, Any]] = {
    "run": {"dtype": "auto"},
    "sft": _DATA,
    "rl": {
        **{**_DATA, "replay": False, "candidates": None, "server": "none"},
        **{"sampler": _SAMPLER, "brake": _BRAKE},  # of 0.2: what no sampler and no brake are
    },
    "eval": {**_TESTS, "dtype": "auto", "vllm": {}},
    "eval of a recipe": _TESTS,
}
#: Those whose parts may be left out, or be null.
_IN_PARTS = ("prompt", "lora", "sampler", "brake")


def _older(config: Mapping[str, Any]) -> Marks:
    """The marks of a run that stores none, by the names of its settings."""
    command = str(config.get("command"))
    own = {"sft": ["run", "sft"], "rl": ["run", "rl"], "eval": ["eval"], "run": ["run"]}
    parts = [("", kind, config) for kind in own.get(command, ["run", "sft", "rl"])]
    for stage, kind in (("sft", "sft"), ("rl", "rl"), ("eval", "eval of a recipe")):
        if isinstance(config.get(stage), Mapping):
            parts.append((f"{stage}.", kind, config[stage]))
    since: dict[str, Any] = {}
    for at, kind, settings in parts:
        for name, before in _BEFORE[kind].items():
            value = settings.get(name)
            if name in _IN_PARTS and isinstance(value, Mapping | None):
                same = all(one in (None, before.get(n), []) for n, one in (value or {}).items())
                before = value if same else before
            since[at + name] = before
    return Marks({at + name: "" for at, kind, _ in parts for name in _NEUTRAL[kind]}, since)
