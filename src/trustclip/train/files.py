"""Settings from YAML files and the command line, with all errors reported at once and located.

`build` fills every settings class: it takes plain values (of a file, or of a preset), changes to
them by dotted path (of the command line), checks the result and reports errors in one form.

In one file because reading, changing and checking share the place of every value, which is what a
message needs.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from trustclip.constraints.registry import with_arguments
from trustclip.logs.identity import completed
from trustclip.support.checked import hint, rule
from trustclip.support.consent import ALL, consent, names_in
from trustclip.support.imports import beside
from trustclip.support.jsonl import plain
from trustclip.support.names import nearest, unknown
from trustclip.train.checks import complaints
from trustclip.train.settings.stages import (
    OF_COMMAND,
    SECTIONS,
    DemoSettings,
    Lora,
    Recipe,
    RLStage,
)
from trustclip.train.shipped import FOLDER, shipped

T = TypeVar("T")
Where = tuple[Any, ...]

#: Short forms of what is changed most often in a recipe.
ALIASES = {"method": "rl.method", "trl": "rl.trl", "max_steps": "rl.max_steps"}

#: Parts of a dotted path whose values may name code to import.
_OWN = {"method", "shadows", "reward"}

#: The tiny experiment, from which recipe, demo and presets are made.
TINY_RECIPE = FOLDER / "tiny.yaml"

#: ``--preset tiny`` of each command: its section of the tiny recipe, shortened to seconds.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "sft": {"tiny": {"max_steps": 40, "save_steps": 0, "seed": 0}},
    "rl": {
        "tiny": {
            "limit": None,
            "steps_per_generation": 4,
            "max_steps": 16,
            "learning_rate": 3e-4,
            "save_steps": 0,
        }
    },
    "eval": {"tiny": {"limit": 32}},
}

#: Settings that complaints about the size of a generation, or an inert constraint, depend on.
_SCHEDULE = {
    "per_device_train_batch_size",
    "steps_per_generation",
    "num_iterations",
    "gradient_accumulation_steps",
    "method",
    "allow_inert",
}

#: Keys and list items that a file may have once its aliases are written out, and how deep.
MOST_NODES, DEEPEST = 10_000, 32

Lines = dict[Where, int]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: ``5e-6`` is one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


class Source(NamedTuple):
    """Where plain values come from, for messages."""

    name: str = ""  # of the file; empty for a command without one
    lines: Mapping[Where, int] = {}  # of each key in it
    changes: Mapping[str, Any] = {}  # by dotted path, from the command line


def load_yaml(path: Path) -> tuple[Any, Lines]:
    """Content of a YAML file, and the line of every key in it: ``{(key, key, ...): line}``.

    Raises:
      ValueError: no such file, not YAML, a key given twice, or more than a settings file holds.
    """
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; name a YAML file in it.")
    if not path.is_file():
        siblings = (
            [p.name for p in path.parent.glob("*.yaml") if p.is_file()]
            if path.parent.is_dir()
            else []
        )
        near = nearest(path.name, siblings)
        recipe = nearest(path.stem, shipped())
        hint = f"; did you mean {str(path.parent / near)!r}?" if near else "."
        if recipe and not near:
            hint = f"; did you mean {recipe!r}, which comes with trustclip (trustclip recipes)?"
        raise ValueError(f"no file {str(path)!r}{hint}")
    lines: Lines = {}
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        try:
            node = loader.get_single_node()
            problems = [] if node is None else [*_index(node, (), lines, [MOST_NODES])]
            if not problems:
                return ({} if node is None else loader.construct_document(node)), lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ValueError(f"{path}{line} is not YAML: {error.problem}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at {error.start}.") from None
    except (yaml.YAMLError, ValueError) as error:  # control characters; an impossible date
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply: more than {DEEPEST} levels.") from None
    raise ValueError("\n".join(f"{path}: {text}" for text in problems))


def of_run(folder: Path) -> tuple[str, type, dict[str, Any]]:
    """Command, settings class and plain values of the run that a folder holds."""
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run directory: it has no config.yaml.")
    content, _ = load_yaml(folder / "config.yaml")
    command = content.pop("command", None) if isinstance(content, dict) else None
    if command not in OF_COMMAND:
        raise ValueError(f"{folder}/config.yaml is of no run that can be continued: {command!r}.")
    if command != "eval":
        content = completed(content)
    return command, OF_COMMAND[command], content | {"output_dir": str(folder)}


def parse_scalar(text: str) -> Any:
    """The value that ``text`` denotes in YAML.

    Example:
      >>> parse_scalar("5e-6"), parse_scalar("true"), parse_scalar("atr"), parse_scalar("[1, 2]")
      (5e-06, True, 'atr', [1, 2])
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _index(node: yaml.Node, path: Where, lines: Lines, budget: list[int]) -> Iterator[str]:
    """Fill ``lines``; yields a complaint for every duplicate key, and for a document too large.

    ``path`` are the keys that lead to the node. ``budget`` is one number, the nodes still allowed:
    aliases can multiply a few nodes into many.
    """
    budget[0] -= 1
    line = node.start_mark.line + 1
    if budget[0] < 0:
        if budget[0] == -1:
            yield f"line {line}: more than {MOST_NODES:,} values, with its aliases written out."
        return
    if len(path) > DEEPEST:
        budget[0] = 0
        yield f"line {line}: nested too deeply, or within itself: more than {DEEPEST} levels."
        return
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _index(item, (*path, index), lines, budget)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            yield f"line {line}: a key must be text, not a {key.id}."
            continue
        here = (*path, key.value)
        if here in lines and key.value != "<<":
            dotted = ".".join(map(str, here))
            yield f"line {line}: `{dotted}` is given twice, first in line {lines[here]}."
        lines[here] = line
        yield from _index(value, here, lines, budget)


def load_recipe(
    path: Path, changes: Mapping[str, Any] | None = None, *, allow_code: bool = False
) -> Recipe:
    """Read a recipe from a file and apply changes.

    A method called ``"package.module:Class"`` is imported where ``changes`` name it; where the
    file does, only with ``allow_code``.

    Args:
      path: a YAML file; see the recipes that come with the project.
      changes: values by dotted path, e.g. ``{"rl.learning_rate": 1e-5, "seed": 1}``; ``method``
        and ``method.NAME`` set the method and its hyper-parameters.
      allow_code: whether the file may name modules to import.

    Raises:
      ValueError: all errors, each with its line, what is allowed and the nearest valid name.
    """
    changes = changes or {}
    own = {path: value for path, value in changes.items() if _OWN & set(path.split("."))}
    with consent(*names_in(own), *([ALL] if allow_code else [])):
        return read_recipe(path, changes)


def read_recipe(path: Path, changes: Mapping[str, Any]) -> Recipe:
    """`load_recipe` within the caller's `consent`: changes are trusted no more than the file."""
    content, lines = load_yaml(path)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} is not a recipe: it holds no keys.")
    if "rl" not in content and {"recipe", "methods"} <= content.keys():
        raise ValueError(f"{path} is a suite, not a recipe: trustclip suite {path}")
    content.pop("command", None)  # config.yaml of a run directory is a recipe, too
    for stage in ("rl", "eval"):
        if isinstance(section := content.get(stage), dict):
            own = {key: beside(section[key], path.parent) for key in _OWN & section.keys()}
            content[stage] = {**section, **own}
    return build(Recipe, content, Source(str(path), lines, changes))


def preset(command: str, name: str) -> dict[str, Any]:
    """Plain values of ``--preset NAME`` of a command.

    Example:
      >>> preset("rl", "tiny")["max_steps"]
      16
    """
    presets = PRESETS.get(command, {})
    if name not in presets:
        raise ValueError(unknown(f"preset of {command}", name, presets))
    recipe, _ = load_yaml(TINY_RECIPE)
    section = {key: value for key, value in recipe[command].items() if key != "every"}
    return {
        "model": recipe["model"],
        "output_dir": f"runs/{command}-{name}",
        **section,
        **presets[name],
    }


def demo_recipe(settings: DemoSettings, output_dir: Path) -> Recipe:
    """The demo as a recipe: its model's with these settings, evaluated before and after."""
    content, lines = load_yaml(FOLDER / f"{settings.model}.yaml")
    updates = content["rl"]["steps_per_generation"] * content["rl"]["num_iterations"]
    changes = {
        "name": "demo",
        "output_dir": output_dir,
        "seed": settings.seed,
        "rl.method": settings.method,
        "rl.sampler": plain(settings.sampler),
        "rl.max_steps": updates * (settings.generations or content["rl"]["max_steps"] // updates),
        "eval.limit": settings.test_problems or content["eval"]["limit"],
        "eval.every": 0,
        "sft.save_steps": 0,
        "rl.save_steps": 0,
    }
    return build(Recipe, content, Source("the demo", lines, changes))


def build(cls: type[T], content: dict[str, Any], source: Source) -> T:
    """Build a recipe, or a command's settings, from plain values and the changes of their source.

    ``content`` is changed in place.

    Raises:
      ValueError: all errors, each with its place.
    """
    errors: list[tuple[Where, str]] = []
    aliases = ALIASES if cls is Recipe else {}
    section = content.get("rl") if cls is Recipe else content
    if isinstance(section, dict) and "method_args" in section:
        errors += _join_arguments(section, (("rl",) if cls is Recipe else ()))
    # A method first, then its hyper-parameters.
    for name in sorted(source.changes, key=lambda name: name.count(".")):
        change(content, path_of(name, aliases), source.changes[name])
    settings, problems = check(cls, content)
    errors += problems
    if not errors:
        return cast(T, settings)
    messages = [place + text for place, text in _locate(errors, source, aliases)]
    if not source.name:
        raise ValueError("\n".join(messages))
    count = f"{len(messages)} error{'s' * (len(messages) > 1)}"
    head = f"{source.name} is not a valid recipe, {count}:"
    raise ValueError("\n".join([head, *(f"  {text}" for text in messages)]))


def _join_arguments(section: dict[str, Any], place: Where) -> Iterator[tuple[Where, str]]:
    """Put the deprecated ``method_args`` into ``method``."""
    arguments = section.pop("method_args")
    try:
        spec = section.get("method", RLStage.__dataclass_fields__["method"].default)
        section["method"] = with_arguments(spec, arguments)
    except ValueError as error:
        yield (*place, "method_args"), str(error)


def path_of(name: str, aliases: Mapping[str, str]) -> str:
    """Write out the short form in a dotted path.

    Example:
      >>> path_of("method.delta", ALIASES), path_of("seed", ALIASES)
      ('rl.method.delta', 'seed')
    """
    head, _, rest = name.partition(".")
    return aliases.get(head, head) + (f".{rest}" if rest else "")


def change(content: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path in nested mappings.

    Example:
      >>> content = {"rl": {"method": "atr"}}
      >>> change(content, "rl.method.delta", 0.05)
      >>> content
      {'rl': {'method': {'name': 'atr', 'delta': 0.05}}}
    """
    *sections, last = path.split(".")
    in_method = False
    for section in sections:
        in_method = in_method or section == "method"
        inside = content.get(section)
        if in_method:
            inside = _spread(inside)
        elif not isinstance(inside, dict):
            inside = {}
        content[section] = inside
        content = inside
    old = content.get(last)
    if last == "method" and isinstance(old, Mapping) and old.get("name") == value:
        return  # the method of the file: keep its hyper-parameters
    content[last] = value


def _spread(method: Any) -> dict[str, Any]:
    """A method, or a part or controller of one, as a new mapping."""
    if method is None:
        return {"name": RLStage.__dataclass_fields__["method"].default}
    if hasattr(method, "to_dict"):
        method = method.to_dict()
    return dict(method) if isinstance(method, Mapping) else {"name": method}


def check(cls: type, content: dict[str, Any]) -> tuple[Any, list[tuple[Where, str]]]:
    """The settings that ``content`` describes, and all errors in it with their places."""
    errors: list[tuple[Where, str]] = []
    settings = None
    try:
        settings = TypeAdapter(cls).validate_python(content)
    except ValidationError as error:
        errors += [(tuple(item["loc"]), _message_of(cls, item)) for item in error.errors()]
    sections: dict[str, type] = SECTIONS if cls is Recipe else {"": cls}
    for name, stage_class in sections.items():
        values = content.get(name) if name else content
        if isinstance(values, dict):
            place = (name,) if name else ()
            depth = len(place)
            invalid = {w[depth] for w, _ in errors if w[:depth] == place and len(w) > depth}
            stage = getattr(settings, name) if name and settings else settings
            stage = stage or _partial(stage_class, values, invalid)
            errors += [((*place, *where), text) for where, text in _complaints(stage, invalid)]
    model = content.get("model")
    if isinstance(model, str) and content.get("backend") != "openai":
        errors += [(("model",), text) for _, text in complaints(model)]
    return settings, errors


def _partial(cls: type, values: Mapping[str, Any], invalid: set[Any]) -> Any:
    """Settings from the valid values alone; None if those are not enough."""
    try:
        valid = {key: value for key, value in values.items() if key not in invalid}
        return TypeAdapter(cls).validate_python(valid)
    except ValidationError:
        return None


def _complaints(stage: Any, invalid: set[Any]) -> Iterator[tuple[Where, str]]:
    """Conflicts between settings, except those that involve an invalid value."""
    if stage is None:
        return
    for where, text in complaints(stage):
        schedule = _SCHEDULE if where[0] in ("num_iterations", "num_generations") else set()
        if not invalid & (schedule | set(where)):
            yield where, text


def as_mapping(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values that YAML and JSON can hold; `load_recipe` reads them back."""
    return plain(recipe)


def _message_of(cls: type, item: ErrorDetails) -> str:
    """The message for one validation error of pydantic."""
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "unexpected_keyword_argument":
        *sections, _ = item["loc"]
        owner = _section(cls, sections)
        allowed = [f.name for f in dataclasses.fields(owner)]  # type: ignore[arg-type]
        if advice := _proper_place(str(item["loc"][-1]), allowed):
            return f"unknown key {where!r}: {advice}"
        return unknown("key", where, [".".join([*map(str, sections), name]) for name in allowed])
    if item["type"] in ("missing", "missing_argument"):
        return f"`{where}` is missing."
    if not item["loc"] or item["loc"][-1] in ("method", "reward", "shadows"):
        return rule(item["msg"])  # of all values together; or of a part, which names itself
    return f"`{where}` {rule(item['msg'])}, got {item['input']!r}{hint(item) or '.'}"


def _proper_place(name: str, own: list[str]) -> str:
    """Where a key that is no setting here belongs; empty if nowhere."""
    if name == "dry_run":
        return "it is an option of a command: trustclip run RECIPE --dry-run; sft, rl, eval."
    if name.startswith("lora_") and "lora" in own:
        inner = name.removeprefix("lora_")
        options = [field.name for field in dataclasses.fields(Lora)]  # type: ignore[arg-type]
        if (near := nearest(inner, options)) is not None:
            return f"it is `lora: {{{near}: ...}}`, --lora.{near.replace('_', '-')}."
        return f"LoRA has `lora: {{...}}` with {', '.join(options)}."
    if "trl" in own and nearest(name, own) is None:
        from trustclip.engines.trl.passthrough import passed_through

        if name in passed_through(own):
            return f"it is a field of TRL's GRPOConfig: `trl: {{{name}: ...}}`, --trl.{name}."
    return ""


def _section(cls: type, path: list[Any]) -> type:
    """The settings class at a path of nested ones."""
    for name in path:
        kind = get_type_hints(cls)[str(name)]
        cls = next(c for c in (*get_args(kind), kind) if hasattr(c, "__dataclass_fields__"))
    return cls


def _locate(
    errors: list[tuple[Where, str]], source: Source, aliases: Mapping[str, str]
) -> list[tuple[str, str]]:
    """All errors with their places: those of the command line first, then by line."""
    paths = [path_of(name, aliases) for name in source.changes]
    rows = []
    for where, text in errors:
        line = 0 if _is_changed(where, paths) else _line(where, source.lines)
        place = "command line: " if line == 0 else f"line {line}: " if line else ""
        rows.append((line if line is not None else -1, place, text))
    return [(place, text) for _, place, text in sorted(rows, key=lambda row: row[0])]


def _is_changed(where: Where, paths: list[str]) -> bool:
    dotted = ".".join(map(str, where))
    return bool(dotted) and any(
        f"{path}.".startswith(f"{dotted}.") or f"{dotted}.".startswith(f"{path}.") for path in paths
    )


def _line(where: Where, lines: Mapping[Where, int]) -> int | None:
    while where and where not in lines:
        where = where[:-1]
    return lines.get(where)


#: Most characters of a value in a folder's name.
LONG = 24


def with_folder(file: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a recipe, with a separate folder if they set another method or seed.

    A file states one ``output_dir``, and a folder holds one run: without this, every second method
    would be refused, or need a folder by hand.

    Returns:
      The changes; ``output_dir`` is added unless they set it, or method and seed are the file's.
    """
    content, _ = load_yaml(file)
    default = content.get("output_dir") if isinstance(content, dict) else None
    if "output_dir" in changes or not isinstance(default, str):
        return dict(changes)
    names = [*_differences(content, changes)]
    return {**changes, "output_dir": "-".join([default, *names])} if names else dict(changes)


def _differences(content: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """How method and seed differ from the file: ``["clip", "epsilon0.1", "seed1"]``."""
    section = content.get("rl")
    spec = section.get("method") if isinstance(section, Mapping) else None
    spec = spec or RLStage.__dataclass_fields__["method"].default
    old = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    values = {path_of(name, ALIASES): value for name, value in changes.items()}
    new_spec = values.get("rl.method", old)
    new = dict(new_spec) if isinstance(new_spec, Mapping) else {"name": new_spec}
    for path, value in values.items():
        if path.startswith("rl.method."):
            new[path.removeprefix("rl.method.")] = value
    name = str(new.pop("name", ""))
    same = name == old.get("name")
    differing = {k: v for k, v in new.items() if not same or old.get(k) != v}
    words = [name.rpartition(":")[2]] if not same or differing else []
    words += [f"{key}{value}" for key, value in differing.items()]
    if (seed := values.get("seed", content.get("seed", 0))) != content.get("seed", 0):
        words.append(f"seed{seed}")
    return [re.sub(r"[^\w.+]+", "_", word)[:LONG].strip("_") for word in words]
