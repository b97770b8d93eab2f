"""The table of all statements: ``trustclip theory``."""

from collections.abc import Callable

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


def run_theory(console: Console) -> int:
    """Print every statement and whether it holds.

    Args:
      console: where the table goes.

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
