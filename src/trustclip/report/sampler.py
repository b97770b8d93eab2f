"""The tokens on which trainer and sampler agree least, as a table."""

from collections.abc import Sequence
from typing import Any

from trustclip.findings.facts import ROUNDING
from trustclip.findings.groups import Group, names
from trustclip.findings.sampler import worst_tokens
from trustclip.report.tables import Cell, Table, TableRow


def worst_table(groups: Sequence[Group]) -> Table | None:
    """The tokens on which trainer and sampler agree least, of every group's first such run."""
    rows: list[TableRow] = []
    for title, group in zip(names(groups), groups, strict=True):
        tokens = next((worst for run in group.runs if (worst := worst_tokens(run))), [])
        if tokens and abs(tokens[0]["logp_old"] - tokens[0]["logp_rollout"]) > ROUNDING**0.5:
            rows.append(TableRow(title, kind="section"))
            rows += [_row(token, group) for token in tokens]
    if not rows:
        return None
    return Table(
        key="worst-tokens",
        title="Tokens on which trainer and sampler agree least",
        corner="Token",
        head=[
            ("Log-probability, nats", ["trainer (old)", "sampler", "difference"]),
            ("Place", ["sampled after update", "completion", "position"]),
        ],
        rows=rows,
        notes=["Of the ten worst tokens of every update, the ten worst of the run."],
    )


def _row(token: dict[str, Any], group: Group) -> TableRow:
    old, rollout = token["logp_old"], token["logp_rollout"]
    cells = [f"{old:.4g}", f"{rollout:.4g}", f"{old - rollout:+.3g}"]
    cells += [str(token[name]) for name in ("generated", "index", "position")]
    return TableRow(repr(token["text"]), [Cell(text) for text in cells], series=group.series)
