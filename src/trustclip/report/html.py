"""What every page is made with: templates, data that stays data, and the policy of its scripts."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

import trustclip
from trustclip.report.draw.marks import DARK_PALETTE, PALETTE
from trustclip.support.text import harmless


@cache
def environment() -> Environment:
    """Templates of the pages; texts are escaped."""
    loader = PackageLoader("trustclip.report")
    return Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_inert
    )


def _inert(value: Any) -> Any:
    """A text without characters that reorder or hide what stands beside it."""
    return harmless(value) if type(value) is str else value


def embedded(value: Any) -> Markup:
    """JSON that is safe inside a script element, whatever its texts contain.

    Example:
      >>> embedded(["</script>", "<!--", "\\u2028"])
      Markup('["\\\\u003c/script\\\\u003e","\\\\u003c!--","\\\\u2028"]')
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def script_hash(script: str) -> str:
    """Hash that allows this script in the page's content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def page_of(template: Template, scripts: Sequence[Markup], **content: Any) -> str:
    """A page of a template, with the scripts that its policy allows and the colours of figures."""
    page = template.render(
        scripts=scripts,
        hashes=[script_hash(script) for script in scripts],
        version=trustclip.__version__,
        colours={"light": PALETTE, "dark": DARK_PALETTE},
        **content,
    )
    # Without half a surrogate pair: a text from a run may hold one, and no file can.
    return page.encode("utf-8", "backslashreplace").decode()


def rendered(*names: str, pages: Environment | None = None) -> list[Markup]:
    """Scripts of a page, as their templates make them; perhaps of pages other than the report's."""
    pages = pages or environment()
    return [Markup(pages.get_template(name).render()) for name in names]
