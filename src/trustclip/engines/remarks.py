"""The result type of configuration checks."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Remark:
    """One sentence about a configuration: an error if the run would fail or ignore a setting."""

    level: Literal["error", "note"]
    text: str
