"""A table once, written as Markdown, LaTeX and (by the page's template) HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trustclip.support.text import markdown_table, markdown_text, one_line


@dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
      note: in smaller type after it, such as an interval.
      strong: in bold, such as the highest of its column.
    """

    text: str
    note: str = ""
    strong: bool = False


#: This cell stands where there is no number.
NOTHING = Cell("-")


@dataclass(frozen=True)
class TableRow:
    """One row.

    Args:
      kind: ``"ours"``, ``"base"`` or ``"section"`` (a label alone).
      note: in smaller type after the label.
      series: number of the colour of its group.
      link: address of a page about it, in Markdown and on the page.
    """

    label: str
    cells: Sequence[Cell] = ()
    kind: str = "ours"
    note: str = ""
    series: int | None = None
    link: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
      key: short name, for anchors and LaTeX labels.
      corner: heading of the first column.
      head: heading over columns, and the headings of those columns.
      wide: whether its last column holds a sentence.
    """

    key: str
    title: str
    corner: str
    head: Sequence[tuple[str, Sequence[str]]]
    rows: Sequence[TableRow]
    notes: Sequence[str] = field(default=())
    wide: bool = False

    @property
    def columns(self) -> list[str]:
        """Every column's heading, with the heading over it."""
        return [f"{over} {name}".strip() for over, names in self.head for name in names]


def markdown(table: Table) -> str:
    """A table in GitHub's Markdown, its title in bold above and its notes below.

    Example:
      >>> print(markdown(Table("t", "Scores", "method", [("", ["Mean@8 %"])],
      ...     [TableRow("a|b", [Cell("41.72", "[38.1, 45.2]", strong=True)])])))
      **Scores**
      <BLANKLINE>
      | method | Mean@8 % |
      |---|---|
      | a\\|b | **41.72** [38.1, 45.2] |
      <BLANKLINE>
    """
    rows = []
    for row in table.rows:
        label = markdown_text(row.label)
        if row.kind == "section":
            rows.append([f"**{label}**", *[""] * len(table.columns)])
            continue
        label = f"[{label}]({row.link})" if row.link else label
        label += f" ({markdown_text(row.note)})" if row.note else ""
        rows.append([label, *map(_markdown_cell, row.cells)])
    grid = markdown_table([table.corner, *map(markdown_text, table.columns)], rows)
    notes = [f"\n{markdown_text(note)}" for note in table.notes]
    return "\n".join([f"**{markdown_text(table.title)}**\n", grid, *notes, ""])


def _markdown_cell(cell: Cell) -> str:
    text = markdown_text(cell.text)
    text = f"**{text}**" if cell.strong else text
    return f"{text} {markdown_text(cell.note)}".strip()


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "−": "$-$", "±": r"$\pm$",
    "×": r"$\times$", "·": r"$\cdot$", "∞": r"$\infty$", "∈": r"$\in$", "δ": r"$\delta$",
    "ε": r"$\varepsilon$", "‖": r"$\Vert$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Text in one line, escaped for LaTeX.

    Example:
      >>> latex_text("atr δ=0.07 & 50%")
      'atr $\\\\delta$=0.07 \\\\& 50\\\\%'
    """
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def latex(table: Table) -> str:
    """A table in LaTeX with booktabs, floating, captioned and labelled."""
    wide = len(table.columns)
    columns = "l" + "r" * wide
    if table.wide:
        columns = "l" + "r" * (wide - 1) + r"p{0.4\linewidth}"
    lines = [
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{latex_text(' '.join([table.title + '.', *table.notes]))}}}",
        rf"\label{{tab:{table.key}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_latex_head(table),
        r"\midrule",
    ]
    for number, row in enumerate(table.rows):
        if row.kind == "section":
            rule = [r"\midrule"] if number else []
            lines += [
                *rule,
                rf"\multicolumn{{{wide + 1}}}{{l}}{{\textbf{{{latex_text(row.label)}}}}}\\",
            ]
            continue
        label = latex_text(row.label) + (f" ({latex_text(row.note)})" if row.note else "")
        lines.append(" & ".join([label, *map(_latex_cell, row.cells)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_head(table: Table) -> list[str]:
    names = [name for _, names in table.head for name in names]
    head = " & ".join([latex_text(table.corner), *map(latex_text, names)]) + r" \\"
    if not any(over for over, _ in table.head):
        return [head]
    above, rules, column = [""], [], 2
    for over, below in table.head:
        above.append(rf"\multicolumn{{{len(below)}}}{{c}}{{{latex_text(over)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{column + len(below) - 1}}}")
        column += len(below)
    return [" & ".join(above) + r" \\", "".join(rules), head]


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    text = rf"\textbf{{{text}}}" if cell.strong else text
    return text + (rf" {{\scriptsize {latex_text(cell.note)}}}" if cell.note else "")
