"""The Rosetta table as text."""

from trustclip.constraints.notation import spelled
from trustclip.constraints.rosetta import Engine, Row

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
