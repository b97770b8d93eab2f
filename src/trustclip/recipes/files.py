"""Recipe files: YAML in, a checked `Recipe` out, or every error at once with its line."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from trustclip.checked import rule
from trustclip.names import nearest, unknown
from trustclip.recipes.checks import complaints
from trustclip.recipes.settings import Recipe, RecipeEval, RLStage, SFTStage

#: Sections of a recipe and the classes that check them.
SECTIONS: dict[str, type] = {"sft": SFTStage, "rl": RLStage, "eval": RecipeEval}

#: Short ways to say what is changed most often.
ALIASES = {"method": "rl.method", "trl": "rl.trl", "max_steps": "rl.max_steps"}

#: Settings that a complaint about another one rests on.
DEPENDS = {
    name: {
        "per_device_train_batch_size",
        "steps_per_generation",
        "num_iterations",
        "gradient_accumulation_steps",
        "method",
        "allow_inert",
    }
    for name in ("num_iterations", "num_generations")
}

Lines = dict[tuple[Any, ...], int]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: ``5e-6`` is one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load_yaml(path: Path) -> tuple[Any, Lines]:
    """Content of a YAML file, and the line of every key in it.

    Args:
      path: the file.

    Returns:
      The content, and ``{(key, key, ...): line}``.

    Raises:
      ValueError: no such file, no YAML, or a key that stands twice.
    """
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = f"; did you mean {str(path.parent / near)!r}?" if near else "."
        raise ValueError(f"no file {str(path)!r}{hint}")
    loader = _Loader(path.read_text(encoding="utf-8"))
    lines: Lines = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, lines
        repeated = [*_mark(node, (), lines)]
        if repeated:
            raise ValueError("\n".join(f"{path}: {text}" for text in repeated))
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ValueError(f"{path}{line} is no YAML: {error.problem}") from None
    finally:
        loader.dispose()


def parse_scalar(text: str) -> Any:
    """What ``text`` means as a value in YAML.

    Example:
      >>> parse_scalar("5e-6"), parse_scalar("true"), parse_scalar("atr"), parse_scalar("[1, 2]")
      (5e-06, True, 'atr', [1, 2])
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def _mark(node: yaml.Node, path: tuple[Any, ...], lines: Lines) -> Iterator[str]:
    """Fill ``lines``; yields a complaint for every key that stands twice."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _mark(item, (*path, index), lines)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here, line = (*path, key.value), key.start_mark.line + 1
        if here in lines and key.value != "<<":
            yield f"line {line}: `{'.'.join(map(str, here))}` stands in line {lines[here]} already."
        lines[here] = line
        yield from _mark(value, here, lines)


def load_recipe(path: Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a file, with changes.

    Args:
      path: a YAML file; see the recipes that come with the project.
      changes: values by dotted path, e.g. ``{"rl.learning_rate": 1e-5, "seed": 1}``; ``method``
        and ``method.NAME`` stand for the method and its hyper-parameters.

    Raises:
      ValueError: everything wrong with it, each with its line, what is allowed and the nearest
        right name.
    """
    content, lines = load_yaml(path)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} is no recipe: it holds no keys.")
    for key in [key for key in ("command",) if key in content]:
        del content[key]  # config.yaml of a run directory is a recipe, too
    _spread_method(content.get("rl"))
    for name, value in (changes or {}).items():
        _change(content, name, value)
    recipe, errors = check(content)
    if errors:
        told = [f"  {place}{text}" for place, text in _told(errors, lines, changes or {})]
        count = f"{len(told)} error{'s' * (len(told) > 1)}"
        raise ValueError("\n".join([f"{path} is no valid recipe, {count}:", *told]))
    assert recipe is not None
    return recipe


def check(content: Any) -> tuple[Recipe | None, list[tuple[tuple[Any, ...], str]]]:
    """The recipe that ``content`` makes, and everything wrong with it, with its place."""
    errors: list[tuple[tuple[Any, ...], str]] = []
    recipe = None
    try:
        recipe = TypeAdapter(Recipe).validate_python(content)
    except ValidationError as error:
        errors += [(tuple(item["loc"]), _tell(item)) for item in error.errors()]
    for name, cls in SECTIONS.items():
        if isinstance(content.get(name), dict):
            wrong = {where[1] for where, _ in errors if where[:1] == (name,) and len(where) > 1}
            errors += [
                ((name, *where), text) for where, text in _complaints(cls, content[name], wrong)
            ]
    model = content.get("model")
    if isinstance(model, str):
        errors += [(("model",), text) for _, text in complaints(model)]
    return recipe, errors


def _complaints(
    cls: type, section: Mapping[str, Any], wrong: set[Any]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not fit together in a section, apart from the values that are wrong anyway."""
    try:
        stage = TypeAdapter(cls).validate_python(
            {key: value for key, value in section.items() if key not in wrong}
        )
    except ValidationError:  # without a value that it must have, there is nothing to look at
        return
    for where, text in complaints(stage):
        if not wrong & (DEPENDS.get(where[0], set()) | set(where)):
            yield where, text


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, every default written out; `load_recipe` reads it back.

    Example:
      >>> text = dump_recipe(Recipe(name="x", model="tiny", output_dir="runs/x",
      ...                           rl=RLStage(dataset="arithmetic")))
      >>> text.splitlines()[:3]
      ['name: x', 'model: tiny', 'output_dir: runs/x']
    """
    return yaml.safe_dump(as_mapping(recipe), sort_keys=False, allow_unicode=True)


def as_mapping(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values that YAML and JSON can hold."""
    plain = dataclasses.asdict(recipe)  # type: ignore[call-overload]
    return _plain(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _spread_method(section: Any) -> None:
    """Take ``method: {name: atr, delta: 0.1}``, as suites write it, apart."""
    if isinstance(section, dict) and "method_args" not in section:
        spec = section.get("method")
        if isinstance(spec, dict) and "name" in spec:
            section["method_args"] = {key: value for key, value in spec.items() if key != "name"}
            section["method"] = spec["name"]


def _change(content: dict[str, Any], name: str, value: Any) -> None:
    """Set ``name``, a dotted path, in nested mappings."""
    head, _, rest = name.partition(".")
    if head == "method" and rest:
        name = f"rl.method_args.{rest}"
    elif head in ALIASES:
        name = ALIASES[head] + (f".{rest}" if rest else "")
    if name == "rl.method" and isinstance(content.get("rl"), dict):
        section = content["rl"]
        if section.get("method", RLStage.__dataclass_fields__["method"].default) != value:
            section["method_args"] = {}  # they were another method's
    *sections, last = name.split(".")
    for section in sections:
        if not isinstance(content.get(section), dict):
            content[section] = {}
        content = content[section]
    content[last] = value


def _tell(item: ErrorDetails) -> str:
    """One complaint of pydantic in words."""
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "unexpected_keyword_argument":
        *sections, _ = item["loc"]
        owner = SECTIONS.get(str(sections[0]), Recipe) if sections else Recipe
        allowed = [f.name for f in dataclasses.fields(owner)]  # type: ignore[arg-type]
        return unknown("key", where, [".".join([*map(str, sections), name]) for name in allowed])
    if item["type"] in ("missing", "missing_argument"):
        return f"`{where}` is missing."
    text = f"`{where}` {rule(item['msg'])}, got {item['input']!r}."
    if item["type"] == "literal_error":
        near = nearest(
            item["input"], re.findall(r"'([^']*)'", item.get("ctx", {}).get("expected", ""))
        )
        text += f" Did you mean {near!r}?" if near else ""
    return text


def _told(
    errors: list[tuple[tuple[Any, ...], str]], lines: Lines, changes: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Every error with its place, the command line's first and then by line."""
    told = []
    for where, text in errors:
        line = 0 if _changed(where, changes) else _line(where, lines)
        place = "command line: " if line == 0 else f"line {line}: " if line else ""
        told.append((line if line is not None else -1, place, text))
    return [(place, text) for _, place, text in sorted(told, key=lambda row: row[0])]


def _changed(where: tuple[Any, ...], changes: Mapping[str, Any]) -> bool:
    dotted = ".".join(map(str, where))
    for name in changes:
        content: dict[str, Any] = {}
        _change(content, name, None)
        if dotted and f"{_path_of(content)}.".startswith(f"{dotted}."):
            return True
    return False


def _line(where: tuple[Any, ...], lines: Lines) -> int | None:
    while where and where not in lines:
        where = where[:-1]
    return lines.get(where)


def _path_of(content: Any) -> str:
    parts = []
    while isinstance(content, dict) and content:
        key, content = list(content.items())[-1]
        parts.append(key)
    return ".".join(parts)
