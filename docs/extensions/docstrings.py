"""Docstrings write mathematics as `$...$` and `$$...$$`; Sphinx reads roles and directives."""

import re
from typing import Any

from sphinx.application import Sphinx

_BLOCK = re.compile(r"^( *)\$\$\n(.*?)\n *\$\$ *$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"\$([^$]+?)\$(?=(\w?))", re.DOTALL)
_EXAMPLE = re.compile(r"^ *(>>>|\.\.\. )")


def _inline(match: re.Match[str]) -> str:
    formula = " ".join(match[1].split())
    return f":math:`{formula}`" + ("\\ " if match[2] else "")


def translated(text: str) -> str:
    r"""A docstring with its formulas as reStructuredText.

    Example:
      >>> translated("the ratio $w_t$")
      'the ratio :math:`w_t`'
    """

    def block(match: re.Match[str]) -> str:
        indent, formula = match[1], match[2].strip()
        lines = "\n".join(f"{indent}   {line.strip()}" for line in formula.splitlines())
        return f"{indent}.. math::\n\n{lines}\n"

    text = _BLOCK.sub(block, text)
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        part if any(map(_EXAMPLE.match, part.splitlines())) else _INLINE.sub(_inline, part)
        for part in paragraphs
    )


def _process(_: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = translated("\n".join(lines)).split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
