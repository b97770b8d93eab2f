"""Formulas as MathML, which browsers draw themselves: no script and no network.

A formula that cannot be translated is a warning, and so fails a strict build.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from trustclip_lab.pages.mathml import mathml

LOG = logging.getLogger(__name__)


def _mathml(self: Any, node: Any, display: str) -> str:
    try:
        return mathml(node.astext(), display)
    except ValueError as error:
        LOG.warning("%s", error, location=node)
        return f"<code>{self.encode(node.astext())}</code>"


def visit_math(self: Any, node: Any) -> None:
    self.body.append(_mathml(self, node, "inline"))
    raise nodes.SkipNode


def visit_math_block(self: Any, node: Any) -> None:
    self.body.append('<div class="formula">' + _mathml(self, node, "block") + "</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("config-inited", lambda _, config: setattr(config, "html_math_renderer", "mathml"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
