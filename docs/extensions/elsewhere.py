"""Links from a page to a file of the repository outside `docs/`: to that file's page on the site.

The pages are also read where the repository is, so their links name files.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

#: File of the repository -> page of the site.
PAGES = {
    "README.md": "index",
    "CHANGELOG.md": "project/changes",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
    "benchmarks/RESULTS.md": "project/measurements",
}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")


def _linked(app: Sphinx, docname: str, source: list[str]) -> None:
    # A page that includes a file of the repository has that file's links, relative to its folder.
    root, here = Path(app.srcdir).parent, (Path(app.srcdir) / docname).parent

    def replaced(match: re.Match[str]) -> str:
        text, up, path, anchor = match[1], match[2], match[3], match[4] or ""
        target = (here / up / path).resolve()
        if not target.is_relative_to(root) or target.is_relative_to(app.srcdir):
            return match[0]
        name = target.relative_to(root).as_posix()
        if name in PAGES:
            return f"[{text}](/{PAGES[name]}.md{anchor})"
        return f"{text} (`{name}`)" if text != name and text.strip("`") != name else f"`{name}`"

    source[0] = _LINK.sub(replaced, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _linked)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
