"""A method in the words of its docstring, as HTML: what it does, its formula, where it is from."""

import inspect
import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from trustclip.constraints.base import Method
from trustclip_lab.pages.mathml import mathml

_FORMULA = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
#: Code, a formula, a link with its text, the number of a paper.
_MARKUP = re.compile(
    r"``(?P<code>[^`]+)``|\$(?P<math>[^$]+)\$|`(?P<text>[^`<]+?)\s*<(?P<url>https?://[^>]+)>`_"
    r"|arXiv (?P<paper>\d{4}\.\d{5})",
    re.DOTALL,
)


@dataclass(frozen=True)
class About:
    """What a page says of a method.

    Args:
      does: the first line of its docstring, without its name.
      formula: the first formula; empty if it has none.
      source: its references; empty if it names none.
    """

    does: Markup
    formula: Markup
    source: Markup


def about(cls: type[Method]) -> About:
    """The words of a method's class.

    Example:
      >>> import trustclip as tc
      >>> str(about(tc.methods()["dual_clip"]).does)
      'A token of negative advantage is also cut once its ratio passes a ceiling.'
    """
    text = inspect.getdoc(cls) or ""
    first = text.splitlines()[0].partition(": ")[2] if text else ""
    formula_match = _FORMULA.search(text)
    formula = Markup(mathml(formula_match[1], "block")) if formula_match else Markup("")
    source = " ".join(text.partition("References:")[2].split())
    return About(inline(first[:1].upper() + first[1:]), formula, inline(source))


def inline(text: str) -> Markup:
    """A line of a docstring with its code, formulas and links; all else is text.

    Example:
      >>> str(inline("as ``a & b`` <i>"))
      'as <code>a &amp; b</code> &lt;i&gt;'
    """
    html, end = Markup(""), 0
    for match in _MARKUP.finditer(text):
        html += escape(text[end : match.start()]) + _markup(match)
        end = match.end()
    return html + escape(text[end:])


def _markup(match: re.Match[str]) -> Markup:
    if match["code"]:
        return Markup("<code>{}</code>").format(match["code"])
    if match["math"]:
        return Markup(mathml(match["math"]))
    url = match["url"] or f"https://arxiv.org/abs/{match['paper']}"
    return Markup('<a href="{}">{}</a>').format(url, match["text"] or match[0])
