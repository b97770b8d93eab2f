"""The result type of configuration checks."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Remark:
    """One sentence about a configuration.

    Args:
      level: ``"error"`` if the run would fail or ignore a setting; otherwise ``"note"``.
      text: the sentence.
    """

    level: Literal["error", "note"]
    text: str
