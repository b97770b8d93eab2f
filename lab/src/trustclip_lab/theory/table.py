"""The table of all statements, and the figures: ``trustclip theory``."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustclip_lab.theory.theorems import (
    Check,
    clips_have_one_gradient,
    entropies_differ,
    estimators_estimate,
    k3_is_an_interval,
    steps_differ,
)

CHECKS: tuple[Callable[[], list[Check]], ...] = (
    clips_have_one_gradient,
    k3_is_an_interval,
    steps_differ,
    entropies_differ,
    estimators_estimate,
)


def run_theory(console: Console, figures: Path | None = None) -> int:
    """Print every statement and whether it holds; optionally draw the figures.

    Args:
      console: where the table goes.
      figures: folder for the three figures (SVG), made if missing; None for none.

    Returns:
      0 if every statement holds or fails as expected, else 1.
    """
    checks = [check for group in CHECKS for check in group()]
    console.print(_table(checks))
    surprises = [check.statement for check in checks if not check.as_expected]
    holding = sum(check.holds for check in checks)
    if surprises:
        text = Text.assemble(("not as expected:", "red"), " ", "; ".join(surprises))
        console.print(text, highlight=False)
    else:
        console.print(
            f"{len(checks)} statements: {holding} hold, {len(checks) - holding} fail as expected",
            highlight=False,
        )
    if figures is not None:
        from trustclip_lab.theory.figures import draw_all

        for path in draw_all(figures):
            console.print(str(path), highlight=False)
    return 1 if surprises else 0


def _table(checks: list[Check]) -> Table:
    table = Table("statement", "cases", "worst error", "verdict", box=None, pad_edge=False)
    for check in checks:
        colour = "red" if not check.as_expected else "green" if check.holds else "yellow"
        verdict = Text("holds" if check.holds else "fails", colour)
        error = "" if check.error is None else f"{check.error:.1e}"
        how = f": {check.how}" if check.how else ""
        table.add_row(check.statement, str(check.cases), error, verdict.append(how, "default"))
    return table
