"""The Rosetta table: each training engine's losses, by default and by name, as methods.

A row of ``rosetta.toml`` says what an engine computes under a named loss with its defaults, as the
method that has the same gradient in every token's log-probability, and how the engine aggregates.
Which of the three policies an engine compares is part of the method: ``anchored`` marks engines
that measure from the policy that sampled. `tests/constraints/test_rosetta.py` holds every row to
the installed package where there is one, and to the published formula elsewhere.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trustclip.constraints.base import Method
from trustclip.constraints.notation import Spec, spelled
from trustclip.constraints.registry import as_method
from trustclip.support.names import unknown


@dataclass(frozen=True)
class Row:
    """One loss of an engine.

    Args:
      name: of the loss in the engine, or of what is set.
      method: the method of the same gradient, as `trustclip.as_method` takes it; None if there is
        none, and then ``note`` says why.
      aggregation: the engine's default under this loss, in the names of `trustclip.policy_loss`
        where it has one.
      setting: what is set in the engine beyond its defaults.
      note: what is easily missed.
    """

    name: str
    method: Spec | None
    aggregation: str
    setting: str = ""
    note: str = ""


@dataclass(frozen=True)
class Engine:
    """A training engine and its losses.

    Args:
      title: as its authors write it.
      read: release, or date of the source, that the rows describe.
      checked: what the tests compare the rows with.
      rows: its losses, the default first.
    """

    title: str
    read: str
    checked: Literal["package", "formula"]
    rows: tuple[Row, ...]


def _read() -> dict[str, Engine]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rows = {
        name: tuple(Row(**{**row, "method": _spec(row.get("method"))}) for row in engine["rows"])
        for name, engine in table.items()
    }
    return {name: Engine(**{**engine, "rows": rows[name]}) for name, engine in table.items()}


def _spec(value: Any) -> Any:
    """A method as the table has it: TOML has no null, so "null" is one."""
    if isinstance(value, dict):
        return {key: _spec(item) for key, item in value.items()}
    return None if value == "null" else value


#: Every engine by its name.
ENGINES = _read()


def presets() -> dict[str, tuple[str, ...]]:
    """Each engine's losses that are methods, its default first: the arguments of `preset`.

    Example:
      >>> presets()["prime-rl"]
      ('ipo', 'icepop', 'ppo', 'cispo', 'ipo+sc', 'ipo+kl', 'dppo+kl')
    """
    return {
        name: tuple(row.name for row in engine.rows if row.method is not None)
        for name, engine in ENGINES.items()
    }


def preset(engine: str, loss: str | None = None) -> Method:
    """The method that has the gradient of an engine's loss.

    Args:
      engine: a key of `presets`.
      loss: one of the engine's losses; its default when None.

    Raises:
      ValueError: unknown engine or loss, or a loss that no method has the gradient of.

    Example:
      >>> preset("verl")
      DualClip(low=0.2, high=0.2, ceiling=3.0)
      >>> preset("tinker", "ppo").requires
      ('logp_rollout',)
    """
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    losses = {row.name: row for row in ENGINES[engine].rows}
    name = next(iter(losses)) if loss is None else loss
    if name not in losses:
        raise ValueError(unknown("loss", name, losses, of=ENGINES[engine].title))
    row = losses[name]
    if row.method is None:
        raise ValueError(f"no method has the gradient of {engine}'s {name!r}: {row.note}.")
    return as_method(row.method)


#: Columns of the table as text.
HEADER = ("loss", "method", "aggregation", "set in the engine", "remark")
_CHECKED = {"package": "the installed package", "formula": "its formula"}


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row's text, in the order of `HEADER`; the method of none is a dash."""
    method = "-" if row.method is None else spelled(row.method)
    return row.name, method, row.aggregation, row.setting, row.note


def title(engine: Engine) -> str:
    """Heading of an engine's table.

    Example:
      >>> title(ENGINES["trl"])
      'TRL, 1.16.0 (compared with the installed package)'
    """
    return f"{engine.title}, {engine.read} (compared with {_CHECKED[engine.checked]})"
