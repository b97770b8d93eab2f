"""The Rosetta table as text."""

from collections.abc import Mapping
from typing import Any

from trustclip.constraints.rosetta import Engine, Row, Spec

HEADER = ("loss", "method", "aggregation", "set in the engine", "remark")

CHECKED = {"package": "compared with the installed package", "formula": "compared with its formula"}


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row's text, in the order of `HEADER`; the method of none is a dash."""
    method = "-" if row.method is None else spelled(row.method)
    return row.name, method, row.aggregation, row.setting, row.note


def title(engine: Engine) -> str:
    """Heading of an engine's table.

    Example:
      >>> from trustclip.constraints.rosetta import ENGINES
      >>> title(ENGINES["trl"])
      'TRL, 1.16.0 (compared with the installed package)'
    """
    return f"{engine.title}, {engine.read} ({CHECKED[engine.checked]})"


def spelled(spec: Spec) -> str:
    """A method's specification as one would write it, for tables.

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
    return [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()]
