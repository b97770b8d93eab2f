"""How scores of other programs are read: options of commands, and of the functions behind them."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from trustclip.support.names import unknown

#: What a row may say, and the names of columns that are understood without being told.
PARTS = ("arm", "seed", "step", "task", "problem", "sample", "score", "of", "family")
#: A number in the id or text of a problem.
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
#: How a curve becomes one number of its run.
Rule = Literal["end", "area", "best"]


@dataclass(kw_only=True)
class Choice:
    """How scores of other programs are read; see docs/compare.md.

    Args:
      columns: Which column says what, as in arm=model,seed=run,problem=id,sample=k,score=correct.
        Further parts: step, task, family, and of (the number of answers; score counts the right).
      where: Read only rows with these values, as in filter=strict-match.
      cluster: How problems form families, the independent units of all tests: a column that names
        the family; a sign such as - (the part of the id before its last sign is the family); or
        numbers (ids that differ only in their numbers are one family).
      right: An answer is right from this score on; when unset, scores are shares from 0 to 1.
      curve: Compare this curve of TensorBoard, wandb or tables, one log for each run.
      by: What is compared of a curve, or of scores at several steps; name it before you look.

    Raises:
      ValueError: an unknown part or rule, or what is no pair NAME=VALUE.
    """

    columns: str = ""
    where: str = ""
    cluster: str = ""
    right: float | None = None
    curve: str = ""
    by: Rule = "end"

    @cached_property
    def column_of(self) -> dict[str, str]:
        """Column of each part, one of `PARTS`, where it is named."""
        pairs = _pairs(self.columns, "columns")
        for part in pairs:
            if part not in PARTS:
                raise ValueError(unknown("part", part, PARTS, of="a score"))
        if self.by not in get_args(Rule):
            raise ValueError(unknown("rule for a curve", self.by, get_args(Rule)))
        return pairs

    @cached_property
    def values(self) -> dict[str, str]:
        """Values that columns must have; rows with others are left out."""
        return _pairs(self.where, "where")

    @cached_property
    def in_ids(self) -> bool:
        """Whether the ids tell the family, and no column."""
        return re.fullmatch(r"[^\w\s]+|_|numbers", self.cluster) is not None

    def family_of(self, problem: str) -> str:
        """What an id has before the last sign, or without its numbers; else the id itself."""
        if self.cluster == "numbers":
            return NUMBER.sub("#", problem)
        return problem.rpartition(self.cluster)[0] or problem


def _pairs(text: str, option: str) -> dict[str, str]:
    """``"arm=model,seed=run"`` as a mapping."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise ValueError(
                f"--{option} is NAME=VALUE, separated by commas, such as arm=model,seed=run; got "
                f"{name + sign + value!r}."
            )
    return {name.strip(): value.strip() for name, _, value in pairs}
