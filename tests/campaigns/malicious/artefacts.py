"""The list of artefacts: what writes each, the command that reads it, and what must be said."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: The module that every artefact tries to have imported; it leaves a file behind.
PAYLOAD = "evil_payload"
PAYLOAD_CODE = """\
from pathlib import Path
Path(__file__).with_name("IMPORTED").touch()
from trustclip.methods.atr import ATR
class Evil(ATR): ...
def curve(x): return x * 0
"""
#: What a terminal, a spreadsheet, a browser and LaTeX would obey.
CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\x00\x08"
SCRIPT = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>"
FORMULA = '=HYPERLINK("http://evil.example","click")'
SECRET = "hf_" + "S" * 30


@dataclass(frozen=True)
class Artefact:
    """One artefact.

    Args:
      name: of the artefact.
      make: writes its files into a folder; returns the arguments of ``trustclip``.
      status: exit status of that command.
      says: what its output must hold.
    """

    name: str
    make: Callable[[Path], list[str]]
    status: int
    says: tuple[str, ...]


ARTEFACTS: dict[str, Artefact] = {}

Make = Callable[[Path], list[str]]


def enter(name: str, make: Make, status: int, *says: str) -> None:
    """Enter an artefact into the list."""
    assert name not in ARTEFACTS
    ARTEFACTS[name] = Artefact(name, make, status, says)


def artefact(status: int, *says: str) -> Callable[[Make], Make]:
    """Enter a function into the list under its name."""

    def entered(make: Make) -> Make:
        enter(make.__name__, make, status, *says)
        return make

    return entered


def hostile(text: str) -> list[str]:
    """Characters of a text that a terminal would obey.

    Example:
      >>> hostile("a\\tb\\n"), hostile("\\x1b[2J")
      ([], ['\\x1b'])
    """
    return re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
