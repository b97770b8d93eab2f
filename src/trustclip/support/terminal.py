"""What the commands print: no text of a file, a model or a data set controls the terminal."""

from collections.abc import Iterable, Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from trustclip.support.text import harmless


class Terminal(Console):
    r"""A console that prints text literally: brackets are no markup, controls have no effect.

    Styles come from arguments and from `rich.text.Text`.

    Example:
      >>> import io
      >>> out = io.StringIO()
      >>> Terminal(file=out, width=80).print("[bold]x\x1b[2J")
      >>> out.getvalue()
      '[bold]x<U+001B>[2J\n'
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Raise again what rich has caught, as `print` raises it, instead of ending the program."""
        raise

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of anything to print; only rich's own may control the terminal."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(harmless(text), style)


def print_table(console: Console, table: Table, keys: int = 1) -> None:
    """Print a table without box; one too wide for the terminal in parts below each other.

    No cell is cut, and every part repeats the columns at the left that say what a row is.
    """
    for part in parts(table, console.width, keys):
        console.print(part)


def parts(table: Table, width: int, keys: int = 1) -> Iterator[Table]:
    """A table, or its columns in several tables of at most ``width`` characters where possible.

    Example:
      >>> whole = Table("method", "reward", "entropy", box=None, pad_edge=False)
      >>> whole.add_row("atr", "0.5", "1.2")
      >>> [[column.header for column in part.columns] for part in parts(whole, 16)]
      [['method', 'reward'], ['method', 'entropy']]
    """
    widths = [
        max(cell_len(line) for cell in (c.header, *c.cells) for line in f"{cell}\n".split("\n"))
        for c in table.columns
    ]
    if sum(widths) + _GAP * (len(widths) - 1) <= width:
        yield table
        return
    # Names of runs can be long: they are folded before the figures beside them are.
    longest = max(range(keys), key=lambda number: widths[number])
    widths[longest] -= max(0, min(sum(widths[:keys]) - width // 2, widths[longest] - _LEAST))
    groups: list[list[int]] = [[]]
    free = room = width - sum(widths[:keys]) - _GAP * keys
    for number in range(keys, len(widths)):
        if widths[number] > free and groups[-1]:
            groups.append([])
            free = room
        groups[-1].append(number)
        free -= widths[number] + _GAP
    for place, numbers in enumerate(groups):
        columns = [table.columns[number] for number in (*range(keys), *numbers)]
        part = Table(title=None if place else table.title, title_justify=table.title_justify,
                     box=None, pad_edge=False)  # fmt: skip
        for number, column in zip((*range(keys), *numbers), columns, strict=True):
            most = widths[number] if number == longest else None
            part.add_column(column.header, justify=column.justify, overflow="fold", max_width=most)
        for cells in zip(*(column.cells for column in columns), strict=True):
            part.add_row(*cells)
        if numbers is groups[-1]:
            part.caption = table.caption
        yield part


#: Characters between two columns of a table without box; least width of a folded name.
_GAP, _LEAST = 2, 16


def warn(console: Console, text: str) -> None:
    """Print a warning: one line, whatever the terminal's width, in which brackets are no markup."""
    console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)


def announce(console: Console, text: str) -> None:
    """Print what happens next: one line, as `warn` does."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def quote(console: Console, text: str) -> None:
    """Print a text as `announce` does, a bar before each of its lines."""
    for line in text.splitlines():
        announce(console, f"  | {line}")


def say(*values: object, end: str = "\n") -> None:
    r"""Print as `print` does, without effect on the terminal.

    Example:
      >>> say("a", "\x1b]0;title\x07")
      a <U+001B>]0;title<U+0007>
    """
    print(harmless(" ".join(map(str, values))), end=end)
