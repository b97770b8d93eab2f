"""The documentation site: `make docs` builds it from these pages, the package and its data."""

import logging
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "src"),
    str(HERE.parent / "lab/src"),
    str(HERE.parent / "lab/benchmarks"),
]

import trustclip  # noqa: E402

# It says every table of every font that a figure's PDF embeds.
logging.getLogger("fontTools").setLevel(logging.WARNING)

project = "trustclip"
author = "the trustclip authors"
release = version = trustclip.__version__
copyright = "2026, the trustclip authors"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "extensions.mathml",
    "extensions.docstrings",
    "extensions.elsewhere",
    "extensions.generated",
    "extensions.glossary",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_extra", "_templates"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_display_short_literal_types = True
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_favicon = "_static/icon.svg"
html_title = f"trustclip {release}"
html_extra_path = ["_extra"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {"top_of_page_buttons": []}
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
