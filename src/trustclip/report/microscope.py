"""The microscope: a page for files of tokens, and the methods that it looks through.

The page computes what each method keeps with the gate algebra of all pages
(``templates/gates.js.j2``); here is listed which methods can be looked through, and what of them
can be moved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from markupsafe import Markup

import trustclip
from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import method
from trustclip.constraints.shadow import refusal
from trustclip.constraints.thresholds import thresholds
from trustclip.report.draw.marks import DARK_PALETTE, PALETTE
from trustclip.report.html import embedded, environment, rendered, script_hash
from trustclip.report.tokens import views
from trustclip.support.checked import UpToOne

#: What a file of tokens can have of the optional fields of `TokenBatch`.
SUPPLIED = ("logp_rollout", "entropy", "lag")
#: Methods that are looked through until the reader chooses.
CHOSEN = ("clip", "atr", "dppo")
#: Scripts of every page with tokens, in their order.
SCRIPTS = ("gates.js.j2", "files.js.j2", "microscope.js.j2")
#: A slider ends at these factors of its start.
_FURTHEST = (1 / 64, 64.0)
#: Starts of sliders of a number that is unset by default: a threshold, and a ratio above 1.
_STARTS = (0.1, 0.5, 2.0)


@cache
def offered() -> dict[str, dict[str, Any]]:
    """Every method that a file of tokens can be looked at through, for the page.

    Example:
      >>> offered()["clip"]["spec"], offered()["clip"]["moved"]
      ({'name': 'clip', 'epsilon': 0.2, 'side': 'outward', 'level': 'token'}, ['epsilon'])
      >>> "trpo" in offered()
      False
    """
    found = {name: method(name) for name in methods()}
    return {name: _offer(m) for name, m in found.items() if not refusal(m, SUPPLIED, "a file")}


def _offer(chosen: Method) -> dict[str, Any]:
    hints = get_type_hints(type(chosen), include_extras=True)
    moved = thresholds(chosen)
    return {
        "spec": chosen.to_dict(),
        "requires": list(chosen.requires),
        "does": (type(chosen).__doc__ or "").strip().splitlines()[0].partition(": ")[2],
        "dials": list(dials(chosen)),
        "moved": list(moved),
        "usual": moved,
        "widest": {name: 1.0 for name in moved if hints.get(name) == UpToOne},
    }


def dials(chosen: Method, within: str = "") -> Iterator[dict[str, Any]]:
    """What can be moved of a method and of its parts, between values that its class allows.

    Args:
      chosen: the method, at the values where its sliders start.
      within: path of the part that it is, with a dot at the end.

    Example:
      >>> [(d["path"], d["kind"]) for d in dials(method("kl2"))]
      [('delta', 'number'), ('side', 'choice')]
    """
    hints = get_type_hints(type(chosen))
    for item in fields(chosen):  # type: ignore[arg-type]
        default, hint = getattr(chosen, item.name), hints[item.name]
        path = f"{within}{item.name}"
        if isinstance(default, Method):
            yield from dials(default, f"{path}.")
        elif get_origin(hint) is not None and isinstance(default, str):
            values = [v for v in get_args(hint) if _allowed(chosen, item.name, v)]
            if len(values) > 1:
                yield {"path": path, "kind": "choice", "values": values}
        elif isinstance(default, float) or (default is None and float in get_args(hint)):
            found = _range(chosen, item.name, default)
            if found is not None:
                yield {"path": path, "kind": "number", "optional": default is None, **found}


def _allowed(chosen: Method, name: str, value: Any) -> bool:
    """Whether a value makes a method that a file of tokens suffices for."""
    try:
        made = replace(chosen, **{name: value})  # type: ignore[type-var]
    except ValueError:
        return False
    return not refusal(made, SUPPLIED, "a file")


def _range(chosen: Method, name: str, default: float | None) -> dict[str, float] | None:
    """Start and ends of a slider: factors of the default, halved until the class allows them."""
    usual = chosen.value(name) if default is None else default
    starts = _STARTS if usual is None else (usual,)
    start = next((s for s in starts if s > 0 and _allowed(chosen, name, s)), None)
    if start is None:
        return None
    ends = []
    for factor in _FURTHEST:
        while not _allowed(chosen, name, start * factor):
            factor = 1.0 if abs(factor - 1) < 0.01 else factor**0.875
        ends.append(start * factor)
    whole = 1.0 if ends[1] < 1 < start * _FURTHEST[1] and _allowed(chosen, name, 1.0) else ends[1]
    return {"start": start, "low": ends[0], "high": whole}


def tokens_data(named: Sequence[tuple[str, Path]]) -> dict[str, Any]:
    """What a page with tokens holds: see `trustclip.report.tokens.views`, and the methods."""
    return {**views(named), "methods": offered(), "chosen": CHOSEN}


def microscope_page(paths: Sequence[Path], title: str, shown: str = "") -> str:
    """A page for files of tokens, as HTML; it opens further ones itself.

    Args:
      paths: files of tokens or run directories that are in it from the start, possibly none.
      title: of the page.
      shown: what is said of these.

    Raises:
      ValueError: there are no tokens in a path, or a row is not as it should be.
    """
    scripts = [Markup(text) for text in library()] + rendered("common.js.j2", *SCRIPTS)
    page = environment().get_template("microscope.html.j2")
    return page.render(
        title=title,
        shown=shown or ", ".join(path.name for path in paths),
        scripts=scripts,
        hashes=[script_hash(script) for script in scripts],
        tokens=embedded(tokens_data([(path.name, path) for path in paths])),
        version=trustclip.__version__,
        parquet="MIT licence" if library() else "",
        colours={"light": PALETTE, "dark": DARK_PALETTE},
    )


def library() -> list[str]:
    """The reader of Parquet for browsers, where the build brought it: ``make parquet-reader``."""
    file = Path(__file__).parent / "templates" / "parquet.min.js"
    return [file.read_text(encoding="utf-8")] if file.is_file() else []
