"""Pages of the laboratory: the report's templates and its own; Markdown with computed blocks."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jinja2 import ChoiceLoader, Environment, PackageLoader

from trustclip.findings.finding import Finding
from trustclip.report.collect import Section
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.report.page import drawn


def templates() -> Environment:
    """The templates of reports, and the laboratory's own."""
    shared, own = environment(), PackageLoader("trustclip_lab.pages")
    return shared.overlay(loader=ChoiceLoader([own, *([shared.loader] if shared.loader else [])]))


@dataclass(frozen=True)
class Contents:
    """A page that is not about run directories."""

    headline: str
    subject: str
    findings: Sequence[Finding]
    sections: Sequence[Section]
    series: Mapping[str, int]


def sections_page(contents: Contents, title: str) -> str:
    """A page of figures and tables that are not those of run directories, as HTML."""
    sections = [part for part in contents.sections if part.figures or part.tables]
    page = templates().get_template("sections.html.j2")
    return page_of(
        page,
        rendered("common.js.j2", "page.js.j2"),
        title=title,
        report=contents,
        parts_of={},
        anchors={},
        sections=sections,
        legend=[{"label": label, "series": n} for label, n in contents.series.items()],
        pictures=drawn([figure for part in sections for figure in part.figures]),
        samples=embedded({"columns": [], "problems": [], "runs": []}),
    )


def filled(text: str, blocks: Mapping[str, str], others: Collection[str] = ()) -> str:
    """A page in Markdown with its blocks, ``<!-- NAME --> ... <!-- /NAME -->``, replaced.

    Args:
      text: the page.
      blocks: their new texts, by name.
      others: names of blocks that another program writes. They stay as they are.

    Raises:
      KeyError: the page has a block that is in neither.

    Example:
      >>> filled("<!-- n -->old<!-- /n -->", {"n": "new"}).split()
      ['<!--', 'n', '-->', 'new', '<!--', '/n', '-->']
    """

    def block(match: re.Match[str]) -> str:
        if match[1] in others:
            return match[0]
        return f"<!-- {match[1]} -->\n\n{blocks[match[1]]}\n\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", block, text, flags=re.DOTALL)
