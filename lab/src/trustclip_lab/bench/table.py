"""Results of a benchmark: tables and the machine, for terminals, Markdown and JSON."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table as Rich

from trustclip.logs.writing.environment import processor
from trustclip.support.terminal import print_table
from trustclip.support.text import markdown_table

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Args:
      title: what was measured, with its sizes.
      columns: headings, each with its unit.
      rows: numbers unrounded; None where a column does not apply.
      notes: how it was measured.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default=())

    def print(self, console: Console) -> None:
        """Print it in full: one too wide for the terminal in parts, and no digit is lost."""
        table = Rich(box=None, pad_edge=False)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*map(cell_text, row))
        console.print(f"\n{self.title}", style="bold", highlight=False)
        print_table(console, table)
        for note in self.notes:
            console.print(note, style="dim", highlight=False)

    def markdown(self) -> str:
        """The table in Markdown.

        Example:
          >>> print(Table("t", ["what", "ms"], [["a", 1.234], ["b", None]]).markdown())
          **t**
          <BLANKLINE>
          | what | ms |
          |---|---:|
          | a | 1.23 |
          | b | – |
          <BLANKLINE>
        """
        rows = [[cell_text(cell) for cell in row] for row in self.rows]
        table = markdown_table(self.columns, rows, numbers=True)
        return "\n".join([f"**{self.title}**", "", table, "", *self.notes])


def cell_text(cell: Cell) -> str:
    """A cell as text, numbers with three digits.

    Example:
      >>> [cell_text(x) for x in ("a", None, 1234.5, 0.00123456, 12, 0.0)]
      ['a', '–', '1234', '0.00123', '12', '0']
    """
    if cell is None:
        return "–"
    if isinstance(cell, float) and abs(cell) >= 100:
        return f"{cell:.0f}"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def machine(device: str) -> dict[str, Any]:
    """The machine that was measured: processor, PyTorch, threads, date."""
    import torch

    box = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    if device == "cuda":
        box["device"] = torch.cuda.get_device_name()
    return box
