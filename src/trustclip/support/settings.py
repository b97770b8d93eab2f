"""Settings from plain values and changes to them, with all errors reported at once and located.

`build` fills any class of settings: it takes what a file or a preset holds, applies the changes of
a command line by dotted path, checks the result and reports every error in one form. What is true
beyond the types of values, whoever has the class says in `Rules`.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from trustclip.support.checked import hint, rule
from trustclip.support.marks import class_in, type_at
from trustclip.support.names import nearest, unknown
from trustclip.support.yaml_files import Lines, Where

T = TypeVar("T")
#: The place of a value, and what is wrong with it.
Complaint = tuple[Where, str]

#: Settings whose value is a name or a mapping with one; an error in it names itself.
PARTS = {"method", "shadows", "reward"}


class Source(NamedTuple):
    """Where plain values come from, for messages."""

    name: str = ""  # of the file; empty for a command without one
    lines: Mapping[Where, int] = {}  # of each key in it
    changes: Mapping[str, Any] = {}  # by dotted path, from the command line
    aliases: Mapping[str, str] = {}  # short forms of what changes begin with


class Rules(NamedTuple):
    """What is true of settings beyond the types of their values."""

    #: Conflicts between the values of a section, each with the settings that it is about.
    complaints: Callable[[Any], Iterable[Complaint]] = lambda section: ()
    #: Sections with complaints of their own, and their classes; without any, all is one section.
    sections: Mapping[str, type] = {}
    #: First setting that a complaint names -> further ones that it depends on.
    depends: Mapping[str, Collection[str]] = {}
    #: Where a key belongs that a section does not have, given the keys that it has.
    advice: Callable[[str, Sequence[str]], str] = lambda key, allowed: ""


#: The types say everything.
TYPES_ALONE = Rules()


def build(cls: type[T], content: dict[str, Any], source: Source, rules: Rules = TYPES_ALONE) -> T:
    """Build settings from plain values, which are changed in place, and the changes to them.

    Raises:
      ValueError: all errors, each with its place.

    Example:
      >>> from trustclip.support.checked import Count, checked
      >>> @checked
      ... class Sizes:
      ...     batch: Count = 8
      >>> build(Sizes, {"batch": 4}, Source(changes={"batch": 16}))
      Sizes(batch=16)
      >>> build(Sizes, {"bach": 4}, Source("sizes.yaml", {("bach",): 1}))
      Traceback (most recent call last):
      ...
      ValueError: sizes.yaml is not a valid file, 1 error:
        line 1: unknown key 'bach'; did you mean 'batch'? Allowed: batch.
    """
    apply_changes(cls, content, source)
    settings, errors = validated(cls, content, rules)
    refuse(errors, source)
    return cast(T, settings)


def apply_changes(cls: type, content: dict[str, Any], source: Source) -> None:
    """Apply the changes of a source; a method first, then its hyper-parameters."""
    for name in sorted(source.changes, key=lambda name: name.count(".")):
        path = path_of(name, source.aliases)
        change(content, path, source.changes[name], _default_method(cls, path))


def path_of(name: str, aliases: Mapping[str, str]) -> str:
    """Write out the short form in a dotted path.

    Example:
      >>> aliases = {"method": "rl.method"}
      >>> path_of("method.delta", aliases), path_of("seed", aliases)
      ('rl.method.delta', 'seed')
    """
    head, _, rest = name.partition(".")
    return aliases.get(head, head) + (f".{rest}" if rest else "")


def _default_method(cls: type, path: str) -> Any:
    """The default of the method on a path; None where there is none."""
    before, _, _ = f".{path}".partition(".method.")
    owner = class_in(type_at(cls, before.split(".")[1:]))
    return getattr(owner, "__dataclass_fields__", {}).get("method", dataclasses.field()).default


def change(content: dict[str, Any], path: str, value: Any, default: Any = None) -> None:
    """Set the value at a dotted path in nested mappings.

    Where it is a hyper-parameter of a method that is not set, the method is the default.

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
            inside = _spread(default if inside is None else inside)
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
    if hasattr(method, "to_dict"):
        method = method.to_dict()
    return dict(method) if isinstance(method, Mapping) else {"name": method}


def validated(cls: type, content: Mapping[str, Any], rules: Rules) -> tuple[Any, list[Complaint]]:
    """The settings that ``content`` describes, and all errors in it.

    Where values are wrong, settings without sections are those of the valid values, or None if
    these are not enough; others are None.
    """
    errors: list[Complaint] = []
    settings = None
    try:
        settings = TypeAdapter(cls).validate_python(content)
    except ValidationError as error:
        errors += [(item["loc"], _message_of(cls, item, rules)) for item in error.errors()]
    for name, section_class in (rules.sections or {"": cls}).items():
        values = content.get(name) if name else content
        if isinstance(values, Mapping):
            place = (name,) if name else ()
            depth = len(place)
            invalid = {w[depth] for w, _ in errors if w[:depth] == place and len(w) > depth}
            section = getattr(settings, name) if name and settings else settings
            section = section or _partial(section_class, values, invalid)
            settings = settings if name else section
            # What involves an invalid value is not complained about twice.
            found = () if section is None else rules.complaints(section)
            errors += [
                ((*place, *where), text)
                for where, text in found
                if not invalid & {*where, *rules.depends.get(where[0], ())}
            ]
    return settings, errors


def _partial(cls: type, values: Mapping[str, Any], invalid: set[Any]) -> Any:
    """Settings from the valid values alone; None if those are not enough."""
    try:
        valid = {key: value for key, value in values.items() if key not in invalid}
        return TypeAdapter(cls).validate_python(valid)
    except ValidationError:
        return None


def _message_of(cls: type, item: ErrorDetails, rules: Rules) -> str:
    """The message for one validation error of pydantic."""
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "unexpected_keyword_argument":
        *sections, key = map(str, item["loc"])
        owner = class_in(type_at(cls, sections))
        allowed = [f.name for f in dataclasses.fields(owner)] if owner else []
        if advice := rules.advice(key, allowed):
            return f"unknown key {where!r}: {advice}"
        # Not of whole paths: keys of one section have their beginning in common.
        paths = {name: ".".join([*sections, name]) for name in allowed}
        near = nearest(key, allowed)
        return unknown("key", where, paths.values(), paths[near] if near else "")
    if item["type"] in ("missing", "missing_argument"):
        return f"`{where}` is missing."
    if not item["loc"] or item["loc"][-1] in PARTS:  # of all values together, or of a part
        return rule(item["msg"])
    return f"`{where}` {rule(item['msg'])}, got {item['input']!r}{hint(item) or '.'}"


def refuse(errors: Collection[Complaint], source: Source, kind: str = "file") -> None:
    """Raise one ValueError of all errors: those of the command line first, then by line.

    Args:
      errors: what is wrong; without any, nothing happens.
      source: where the values come from.
      kind: what its file should have been.
    """
    if not errors:
        return
    paths = [path_of(name, source.aliases) for name in source.changes]
    rows = []
    for where, text in errors:
        line = 0 if _is_changed(where, paths) else _line(where, source.lines)
        place = "command line: " if line == 0 else f"line {line}: " if line else ""
        rows.append((line if line is not None else -1, place + text))
    messages = [*dict.fromkeys(text for _, text in sorted(rows, key=lambda row: row[0]))]
    if not source.name:
        raise ValueError("\n".join(messages))
    count = f"{len(messages)} error{'s' * (len(messages) > 1)}"
    head = f"{source.name} is not a valid {kind}, {count}:"
    raise ValueError("\n".join([head, *(f"  {text}" for text in messages)]))


def _is_changed(where: Where, paths: list[str]) -> bool:
    dotted = ".".join(map(str, where))
    return bool(dotted) and any(
        f"{path}.".startswith(f"{dotted}.") or f"{dotted}.".startswith(f"{path}.") for path in paths
    )


def _line(where: Where, lines: Lines) -> int | None:
    while where and where not in lines:
        where = where[:-1]
    return lines.get(where)
