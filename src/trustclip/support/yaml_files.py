"""YAML files of settings: their content with the line of every key, and YAML on a command line."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trustclip.support.names import nearest

#: The keys that lead to a value.
Where = tuple[Any, ...]
Lines = Mapping[Where, int]

#: Keys and list items that a file may have once its aliases are written out, and how deep.
MOST_NODES, DEEPEST = 10_000, 32


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: ``5e-6`` is one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load_yaml(path: Path, meant: Callable[[str], str] = lambda name: "") -> tuple[Any, Lines]:
    """Content of a YAML file, and the line of every key in it: ``{(key, key, ...): line}``.

    Args:
      path: the file.
      meant: what to say of a name that is no file, where the folder has none like it either.

    Raises:
      ValueError: no such file, not YAML, a key given twice, or more than a settings file holds.
    """
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; name a YAML file in it.")
    if not path.is_file():
        siblings = path.parent.glob("*.yaml") if path.parent.is_dir() else ()
        near = nearest(path.stem, [other.stem for other in siblings if other.is_file()])
        there = str(path.parent / f"{near}.yaml")
        hint = f"; did you mean {there!r}?" if near else meant(path.stem) or "."
        raise ValueError(f"no file {str(path)!r}{hint}")
    lines: dict[Where, int] = {}
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


def _index(
    node: yaml.Node, path: Where, lines: dict[Where, int], budget: list[int]
) -> Iterator[str]:
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


def yaml_list(text: str) -> list[Any]:
    """A list as the command line has it: YAML, its brackets left out or not.

    Example:
      >>> yaml_list("atr, {name: clip, epsilon: 1e-1}")
      ['atr', {'name': 'clip', 'epsilon': 0.1}]
    """
    return yaml.load(f"[{text.strip().removeprefix('[').removesuffix(']')}]", Loader=_Loader)
