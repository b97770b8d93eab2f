"""JSON Schemas of recipes and suites, made from the classes that check them.

``python docs/extensions/schemas.py recipe > recipes/schema/recipe.json``; the same for ``suite``.
What is written there comes with the package, and `trustclip recipes --schema recipe` prints it.

An editor completes keys, shows what they are and marks what is wrong while a file is written. What
depends on several values, on files or on installed packages, only `trustclip run FILE --dry-run`
can say.
"""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from trustclip.constraints.base import ALIASES, Method, method_class, methods
from trustclip.constraints.controllers import NAMED, Controller
from trustclip.support.marks import Trl, descriptions, fields_of, marked
from trustclip.train.problems.verify.chosen import BUILT_IN
from trustclip.train.settings.stages import Recipe, RLStage
from trustclip.train.suite.settings import SuiteSettings

Json = dict[str, Any]
Kind = Literal["recipe", "suite"]

#: The class that checks each kind of file.
CLASSES: dict[Kind, type] = {"recipe": Recipe, "suite": SuiteSettings}
#: A class or a function of the user's: a file or a module, and a name in it.
_CODE: Json = {"type": "string", "pattern": r"^[^:]+:[^:]+$"}
_METHOD, _CONTROLLER = "method", "controller"


class _Generator(GenerateJsonSchema):
    """Pydantic's generator; fields with a method or a controller refer to their schema."""

    def is_instance_schema(self, schema: Any) -> Json:
        """What an object is in a file."""
        if issubclass(schema["cls"], Method):
            return {"anyOf": [{"type": "string"}, {"type": "object"}], "x-part": _METHOD}
        if issubclass(schema["cls"], Controller):
            return {"type": "object"}
        return {}


def schema(kind: Kind) -> Json:
    """The JSON Schema (draft 2020-12) of recipes or of suites.

    Example:
      >>> root = schema("recipe")
      >>> root["properties"]["rl"]["$ref"], root["required"]
      ('#/$defs/RLStage', ['model', 'output_dir', 'name', 'rl'])
    """
    root = _schema_of(CLASSES[kind])
    definitions = root.setdefault("$defs", {})
    definitions |= _methods(sweeps=kind == "suite")
    if kind == "recipe":
        root["properties"]["command"] = {"const": "run"}  # config.yaml of a run is a recipe
        _spell_out(definitions["RLStage"]["properties"])
        definitions["RecipeEval"]["properties"]["reward"] |= _reward()
    else:
        root["properties"]["methods"]["additionalProperties"] = {"$ref": f"#/$defs/{_METHOD}_of"}
        text = root["properties"]["recipe"]["items"]
        single, many = dict(text), root["properties"]["recipe"]
        description = many.pop("description", "")
        root["properties"]["recipe"] = {"anyOf": [single, many], "description": description}
    draft = "https://json-schema.org/draft/2020-12/schema"
    root.pop("title", None)
    return {"$schema": draft, "title": f"trustclip {kind}", **root}


def text(kind: Kind) -> str:
    """`schema` as the text of its file."""
    return json.dumps(schema(kind), indent=1, ensure_ascii=False) + "\n"


def _schema_of(cls: type) -> Json:
    """Pydantic's schema of a class, with the descriptions of the help texts."""
    root = TypeAdapter(cls).json_schema(schema_generator=_Generator)
    _describe(cls, root, root.get("$defs", {}))
    return _walk(root, _part)


def _describe(cls: Any, node: Json, definitions: Json) -> None:
    """Give every key its description, and a class its first paragraph."""
    node["description"] = _first(cls)
    docs, hints = descriptions(cls), get_type_hints(cls)
    for name, field in node.get("properties", {}).items():
        field.pop("title", None)
        if name in docs:
            field["description"] = docs[name]
        for inner in (hints[name], *get_args(hints[name])):
            definition = definitions.get(inner.__name__) if isinstance(inner, type) else None
            if definition and is_dataclass(inner):
                _describe(inner, definition, definitions)


def _first(cls: type) -> str:
    doc = cls.__doc__ or ""
    return "" if doc.startswith(f"{cls.__name__}(") else inspect.cleandoc(doc).split("\n\n")[0]


def _walk(value: Any, change: Callable[[Json], Json]) -> Any:
    if isinstance(value, list):
        return [_walk(item, change) for item in value]
    if isinstance(value, dict):
        return change({key: _walk(item, change) for key, item in value.items()})
    return value


def _part(value: Json) -> Json:
    """A reference in place of a part that pydantic cannot describe."""
    if value.get("x-part") != _METHOD:
        return value
    rest = {key: item for key, item in value.items() if key in ("description", "default")}
    return {"$ref": f"#/$defs/{_METHOD}"} | rest


def _spell_out(fields: Json) -> None:
    methods = {"$ref": f"#/$defs/{_METHOD}"}
    fields["method"] |= methods
    fields["shadows"] |= {"anyOf": [{"type": "string"}, {"type": "array", "items": methods}]}
    fields["reward"] |= _reward()
    own = [*marked(RLStage, Trl), "model", "output_dir"]
    fields["trl"] |= {"propertyNames": {"not": {"enum": own}}}


def _reward() -> Json:
    """A reward: its name, a mapping, or a list of these."""
    name = {"anyOf": [{"enum": [*BUILT_IN]}, _CODE]}
    one = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": name, "weight": {"type": "number"}, "label": {"type": "string"}},
    }
    either = {"anyOf": [name, one]}
    return {"anyOf": [name, one, {"type": "array", "minItems": 1, "items": either}]}


def _methods(*, sweeps: bool) -> Json:
    """Schemas of every method: by its name, or with hyper-parameters; in a suite with ``sweep``."""
    names = {"anyOf": [{"enum": [*methods(), *ALIASES]}, _CODE]}
    controllers = {
        "type": "object",
        "required": [_CONTROLLER],
        "properties": {_CONTROLLER: {"enum": list(NAMED)}},
        "description": "A controller in place of a number.",
    }
    cases = [
        {
            "if": {"required": ["name"], "properties": {"name": {"const": name}}},
            "then": _one_method(method_class(name), sweeps),
        }
        for name in [*methods(), *ALIASES]
    ]
    whole = {"type": "object", "required": ["name"], "properties": {"name": names}, "allOf": cases}
    either = {"anyOf": [names, {"$ref": f"#/$defs/{_METHOD}_of"}]}
    return {_METHOD: either, f"{_METHOD}_of": whole, _CONTROLLER: controllers}


def _one_method(cls: Any, sweeps: bool) -> Json:
    """The hyper-parameters of one method; a number may be a controller."""
    root = _schema_of(cls)
    parts = root.pop("$defs", {})  # those that are no methods, few and small

    def spelled_out(value: Json) -> Json:
        return parts.get(str(value.get("$ref")).removeprefix("#/$defs/"), value)

    root = _walk(root, spelled_out)
    fields = {name: _allow_controller(field) for name, field in root.get("properties", {}).items()}
    more: Json = {"name": {"type": "string"}}
    if sweeps:
        lists = {name: {"type": "array", "minItems": 1} for name in fields_of(cls)}
        more["sweep"] = {"type": "object", "properties": lists, "additionalProperties": False}
    return {
        "description": root["description"],
        "properties": more | fields,
        "additionalProperties": False,
    }


def _allow_controller(field: Json) -> Json:
    kinds = [field, *field.get("anyOf", ())]
    if not any(kind.get("type") in ("number", "integer") for kind in kinds):
        return field
    annotations = {key: field.pop(key) for key in ("description", "default") if key in field}
    return {"anyOf": [field, {"$ref": f"#/$defs/{_CONTROLLER}"}], **annotations}


if __name__ == "__main__":
    print(text("suite" if "suite" in sys.argv else "recipe"), end="")
