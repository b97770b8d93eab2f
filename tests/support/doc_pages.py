"""The documentation's pages, their Python and their commands."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

from trustclip.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages in the repository; those that a build writes are not.
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
    if not {"project", "_build"} & set(path.parts) and path.parent != DOCS / "methods"
)
#: Python that is not run says so in a comment before it, with the reason.
_BLOCK = re.compile(r"(?:<!-- not run: ([^\n]+?) -->\n+)?^```python\n(.*?)^```", re.M | re.S)


def name(path: Path) -> str:
    """A page as the repository names it."""
    return path.relative_to(ROOT).as_posix()


def python(page: Path) -> Iterator[str]:
    """Blocks that run one after the other; sessions are doctests of their own."""
    for reason, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if not reason and ">>>" not in block:
            yield block


def commands(page: Path) -> list[str]:
    """Calls of the program in a page's code blocks, without its name."""
    blocks = re.findall(
        r"^```(?:bash|console|text)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.match(r"(?:\$ )?trustclip ([^#|;&]+)", line) for line in lines]
    return [match[1].strip() for match in found if match]


#: A fenced block: its language or directive, what stands behind it, and its lines; before it, why
#: it is not run.
_FENCED = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?"
    r"^(?P<fence>`{3,}|:{3,})(?P<kind>\S*) *(?P<rest>[^\n]*)\n(?P<body>.*?)^(?P=fence)\s*$",
    re.M | re.S,
)


def blocks(page: Path) -> Iterator[dict[str, str]]:
    """Every fenced block of a page: ``kind``, ``rest``, ``body``, and ``reason`` or None."""
    for match in _FENCED.finditer(page.read_text(encoding="utf-8")):
        yield match.groupdict()


def pictures(page: Path) -> Iterator[str]:
    """Every picture of a page, as the page names it."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    yield from re.findall(r"^`{3,}\{(?:image|figure)\} (\S+)", text, re.M)


@cache
def help_of(command: str) -> str:
    """The help text of a command."""
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main([command, "--help"])
    return text.getvalue()
