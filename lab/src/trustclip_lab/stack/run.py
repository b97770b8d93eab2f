"""A table of trainings: every method under every swept setting, from many seeds, resumable.

The generations of a cell are one file, written whole when the cell is done; existing files are
not computed again. ``results.csv``, one row for each run, is made of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from trustclip.constraints.base import Method
from trustclip.engines.limits import refusal
from trustclip.support.jsonl import plain, write_text
from trustclip.support.names import unknown
from trustclip.support.settings import Complaint, Rules, Source, build
from trustclip.support.terminal import print_table
from trustclip.train.files import load_yaml
from trustclip.train.suite.plan import digest
from trustclip.train.suite.settings import Scalar, combinations, labelled_methods, suffix
from trustclip_lab.stack import results
from trustclip_lab.stack.methods import SUPPLY
from trustclip_lab.stack.settings import LabSettings
from trustclip_lab.stack.table import table
from trustclip_lab.stack.training import TrainingResult, train

#: Settings that a sweep may not set: each has its own place.
OWN = ("name", "output_dir", "method", "methods", "sweep", "reference", "seeds", "first_seed")

#: Settings that say what is made of the generations, not how they are computed.
ABOUT_RESULTS = ("methods", "sweep", "reference", "collapse", "tail")


@dataclass(frozen=True)
class Cell:
    """One method under one combination of swept settings.

    Args:
      label: of the method.
      values: swept values, or their labels, by path.
      settings: of the training.
      path: file of its generations.
    """

    label: str
    values: Mapping[str, Scalar]
    settings: LabSettings
    path: Path

    @property
    def keys(self) -> dict[str, Scalar]:
        """What names its rows in a results file."""
        return {"method": self.label, **{k.rpartition(".")[2]: v for k, v in self.values.items()}}


def _complaints(settings: LabSettings) -> Iterator[Complaint]:
    if problem := refusal(settings.method, SUPPLY):
        yield ("method",), problem


#: What is true of the lab's settings beyond their types.
RULES = Rules(_complaints)


def load(file: Path | None, changes: Mapping[str, Any]) -> LabSettings:
    """Settings from a YAML file, or the defaults, with changes by dotted path.

    Raises:
      ValueError: all errors, as recipes report them.
    """
    if file is None:
        return build(LabSettings, {}, Source(changes=changes), RULES)
    content, lines = load_yaml(file)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file} holds no settings of the lab.")
    return build(LabSettings, content, Source(str(file), lines, changes), RULES)


def cells(settings: LabSettings) -> list[Cell]:
    """Everything that the settings ask for, all of it checked.

    Raises:
      ValueError: a wrong method or swept value, with its label.

    Example:
      >>> two = LabSettings(sweep={"sampler": {"exact": {}, "old": {"lag": 4}}})
      >>> [cell.keys for cell in cells(two)]
      [{'method': 'atr', 'sampler': 'exact'}, {'method': 'atr', 'sampler': 'old'}]
    """
    for path in settings.sweep:
        if path.partition(".")[0] in OWN:
            raise ValueError(f"`sweep` may not set {path!r}: the lab has its own key for it.")
    errors: list[Any] = []
    labelled = labelled_methods(settings.methods, errors) if settings.methods else None
    if errors:
        raise ValueError("\n".join(text for _, text in errors))
    methods = {settings.method.name: settings.method} if labelled is None else labelled
    if settings.reference not in (None, *methods):
        raise ValueError(unknown("label", settings.reference, methods))
    return [
        _cell(settings, label, method, combination)
        for combination in combinations(settings.sweep)
        for label, method in methods.items()
    ]


def _cell(settings: LabSettings, label: str, method: Method, combination: Any) -> Cell:
    content = {**plain(settings), "methods": {}, "sweep": {}, "reference": None}
    changes = {**combination.changes, "method": method.to_dict()}
    try:
        lab = build(LabSettings, content, Source(changes=changes), RULES)
    except ValueError as error:
        raise ValueError(f"{label}{suffix(combination.shown)}: {error}") from None
    what = {key: value for key, value in plain(lab).items() if key not in ABOUT_RESULTS}
    name = f"{label}{suffix(combination.shown)}-{digest(what)}.csv"
    return Cell(label, combination.shown, lab, settings.output_dir / "cells" / name)


def run_lab(settings: LabSettings, console: Console) -> list[dict[str, Any]]:
    """Train what is not on disk yet, write ``results.csv``, and print a table.

    Args:
      settings: of the lab.
      console: where progress and the table go.

    Returns:
      A row for each run: method, swept values, seed, and `trustclip_lab.stack.results.summary`.
    """
    all_cells = cells(settings)
    folder = settings.output_dir
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    write_text(folder / "lab.yaml", yaml.safe_dump(plain(settings), sort_keys=False))
    for number, cell in enumerate(all_cells, start=1):
        if not cell.path.exists():
            with console.status(f"{number} of {len(all_cells)}: {cell.path.stem}"):
                _compute(cell)
    rows = [row for cell in all_cells for row in _rows(cell)]
    results.write_rows(folder / "results.csv", rows)
    print_table(console, table(settings, rows), keys=1 + len(settings.sweep))
    console.print(f"results: {folder / 'results.csv'}", highlight=False)
    return rows


def _compute(cell: Cell) -> None:
    first = cell.settings.first_seed
    trained = train(cell.settings, range(first, first + cell.settings.seeds))
    rows = [row for curve in curves_of(trained) for row in results.rows_of(curve)]
    results.write_rows(cell.path, rows)


def curves_of(trained: TrainingResult) -> list[results.Curve]:
    """The runs of a training, one for each seed."""
    return [
        results.Curve(seed, trained.scores[:, s].tolist(), [rows[s] for rows in trained.rows])
        for s, seed in enumerate(trained.seeds)
    ]


def curves(cell: Cell) -> list[results.Curve]:
    """The runs of a cell that has been computed, read from its file."""
    return results.curves(results.read(cell.path))


def _rows(cell: Cell) -> Sequence[dict[str, Any]]:
    s = cell.settings
    return [
        {**cell.keys, results.SEED: curve.seed, **results.summary(curve, s.tail, s.collapse)}
        for curve in curves(cell)
    ]
