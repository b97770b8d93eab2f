"""Methods as text, the way one would write them: ``tis(clip(epsilon=0.1), ceiling=2)``."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trustclip.constraints.base import ALIASES, method_class

#: A method as `trustclip.as_method` takes it.
Spec = Mapping[str, Any] | str


def spelled(spec: Spec) -> str:
    """A method's specification as one would write it.

    Example:
      >>> spelled({"name": "tis", "inner": {"name": "clip", "epsilon": 0.1}, "ceiling": 2.0})
      'tis(clip(epsilon=0.1), ceiling=2)'
      >>> spelled({"name": "penalty", "inner": "ipo", "divergence": "k2", "beta": 0.002})
      'ipo + penalty(k2, 0.002)'
    """
    if isinstance(spec, str):
        return spec
    rest = {key: value for key, value in spec.items() if key not in ("name", "inner")}
    if spec["name"] == "penalty":
        first = [str(rest.pop("divergence")), f"{rest.pop('beta'):g}"]
        price = ", ".join(first + _keywords(rest))
        return f"{spelled(spec['inner'])} + penalty({price})"
    inner = [spelled(spec["inner"])] if "inner" in spec else []
    return f"{spec['name']}({', '.join(inner + _keywords(rest))})"


def _keywords(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_written(value)}" for name, value in values.items()]


def _written(value: Any) -> str:
    if isinstance(value, Mapping) and "name" in value:
        return spelled(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def read(text: str) -> Spec:
    """The specification of a method that is written out; the inverse of `spelled`.

    Hyper-parameters without a name are the first of their method, in its order. A word is a text.

    Raises:
      ValueError: the text is none of this form.

    Example:
      >>> read("tis(clip_higher(0.2, 0.272), 2)")["inner"]
      {'name': 'clip_higher', 'low': 0.2, 'high': 0.272}
      >>> read("ipo + penalty(k2, 0.002)")
      {'name': 'penalty', 'inner': 'ipo', 'divergence': 'k2', 'beta': 0.002}
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(
            f"{text!r} is not a method: it is written as a name, as name(value, "
            "hyper_parameter=value), or as a method + penalty(...)."
        ) from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=word):
            return None if word == "null" else word
        case ast.Call(func=ast.Name(id=name), args=values, keywords=named):
            return _called(name, values, named)
        case ast.BinOp(
            left=left, op=ast.Add(), right=ast.Call(func=ast.Name(id="penalty")) as price
        ):
            return _called("penalty", [left, *price.args], price.keywords)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise SyntaxError from None


def _called(name: str, values: list[ast.expr], named: list[ast.keyword]) -> dict[str, Any]:
    """``name(value, hyper_parameter=value)`` as a mapping."""
    own, given = ALIASES.get(name, (name, {}))
    places = [field.name for field in fields(method_class(own)) if field.name not in given]  # type: ignore[arg-type]
    if len(values) > len(places) or any(one.arg is None for one in named):
        raise SyntaxError
    found = {"name": name, **dict(zip(places, map(_value, values), strict=False))}
    for one in named:
        if one.arg in found:
            raise ValueError(f"{name} is given its `{one.arg}` twice.")
        found[str(one.arg)] = _value(one.value)
    return found
