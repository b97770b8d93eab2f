"""A page that uses a word of the house before it defines or links it fails the strict build."""

import re

from sphinx.application import Sphinx
from sphinx.util import logging

#: Words of the house -> what a page may write for each. ``docs/glossary.md`` has their meanings.
WORDS = {
    "anchor": "anchors?",
    "arena": "arenas?",
    "candidates": "candidates?",
    "floor": "floors?",
    "guard": "guards?",
    "inward": "inward",
    "lag": "lags?",
    "outward": "outward",
    "primer": "primer|primed|primes",
    "strict": "strict",
    "twin": "twins?",
}
#: Pages with other readers, and pages that are made by the build.
OTHERS = (
    "decisions",
    "glossary",
    "smollm2",
    "papers",
    "lab/",
    "methods/",
    "project/",
    "reference/",
)
#: Text that is not read as words: code, directives, formulas, and the addresses of links.
_SILENT = re.compile(
    r"^(`{3,}|:{3,}).*?^\1[ \t]*$|<!--.*?-->|`[^`]+?`|\$[^$\n]+\$|^#.*?$|(?<=\])\([^)]*\)",
    re.M | re.S,
)
#: A word may first stand in a link, or in a sentence that sets it off because it defines it.
_TOLD = re.compile(r"\[[^\]]*\]|(?<!\*)(\*{1,2})[^*\n]+\1(?!\*)")


def undefined(text: str) -> list[str]:
    """Words of the house whose first use on a page is neither a link nor set off by stars.

    Example:
      >>> undefined("The sample has a lag."), undefined("The *lag* is its age. A lag of 2 is old.")
      (['lag'], [])
    """
    text = _SILENT.sub("", text)
    told = [match.span() for match in _TOLD.finditer(text)]
    found = []
    for word, forms in WORDS.items():
        first = re.search(rf"\b(?:{forms})\b", text, re.IGNORECASE)
        if first and not any(a <= first.start() < b for a, b in told):
            found.append(word)
    return found


def _refused(app: Sphinx, docname: str, source: list[str]) -> None:
    if not docname.startswith(OTHERS):
        for word in undefined(source[0]):
            text = f"'{word}' stands here before it is defined: link it, glossary.md#{word}"
            logging.getLogger(__name__).warning(text, location=docname)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _refused)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
