"""The microscope: a page for files of tokens, and the methods that it looks through.

The page computes what each method keeps from the numbers of `trustclip.report.gates`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import method
from trustclip.logs.recognise import holds_tokens, looked_for
from trustclip.logs.tokens import REQUIRED
from trustclip.report import gates
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.report.tokens import views
from trustclip.support import parquet
from trustclip.support.reading import content

#: Methods that are looked through until the reader chooses.
CHOSEN = ("clip", "atr", "dppo")
#: Scripts of every page with tokens, in their order.
SCRIPTS = ("gates.js.j2", "files.js.j2", "microscope.js.j2")
#: What the sample is: `benchmarks/microscope_sample.py`.
SAMPLE = "a sample: SmolLM2-135M on word sums, trained with atr, with a sampler of int8 weights"
#: Largest file of another program that is put into a page, bytes.
LARGEST = 64 << 20


@cache
def applicable_methods() -> dict[str, dict[str, Any]]:
    """Every method that a page can compute from a token's log-probabilities alone.

    Others read more: the sampler's, the entropy, whole batches. ``trustclip shadow`` computes them.

    Example:
      >>> applicable_methods()["clip"]["spec"], applicable_methods()["clip"]["moved"]
      ({'name': 'clip', 'epsilon': 0.2, 'side': 'outward', 'level': 'token'}, ['epsilon'])
      >>> "trpo" in applicable_methods()
      False
    """
    offers = {name: _offer(method(name)) for name in methods()}
    return {name: offer for name, offer in offers.items() if offer is not None}


def _offer(chosen: Method) -> dict[str, Any] | None:
    interval = gates.interval(chosen)
    curve = None if interval else gates.curve(chosen)
    if interval is None and curve is None:
        return None
    numbers = interval["dials"] if interval else {}
    return {
        "spec": chosen.to_dict(),
        "does": (type(chosen).__doc__ or "").strip().splitlines()[0].partition(": ")[2],
        "dials": list(_dials(chosen, numbers)),
        "moved": list(numbers),
        "tightest": {name: values[0] for name, values in numbers.items()},
        "widest": {name: values[-1] for name, values in numbers.items()},
        "interval": interval,
        "curve": curve,
    }


def _dials(chosen: Method, numbers: Mapping[str, Sequence[float]]) -> Iterator[dict[str, Any]]:
    """What can be moved of an interval: its numbers, its side and the level of its ratio."""
    for name, values in numbers.items():
        ends = {"start": getattr(chosen, name), "low": values[0], "high": values[-1]}
        yield {"path": name, "kind": "number", **ends}
    choices = {"side": gates.SIDES, "level": gates.LEVELS}
    for name in (item.name for item in fields(chosen)):  # type: ignore[arg-type]
        if numbers and name in choices:
            yield {"path": name, "kind": "choice", "values": choices[name]}


def tokens_data(
    runs: Sequence[tuple[str, Path]], colours: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """What a page with tokens holds: see `trustclip.report.tokens.views`, and the methods.

    ``colours`` are places in the palette of methods that the page has drawn already.
    """
    offered = {"methods": applicable_methods(), "chosen": CHOSEN, "colours": dict(colours or {})}
    return {**views(runs), **offered, "files": []}


def token_page(paths: Sequence[Path], title: str) -> str:
    """The microscope, a page for files of tokens, as HTML; it opens further ones itself.

    In it from the start are the files of tokens, run directories, prime-rl's exports, TRL's
    completions, verl's rollouts and UNIPO's steps of ``paths``; without any, this package's sample.

    Raises:
      ValueError: a path holds none of these.
    """
    recorded = [path for path in paths if _has_tokens(path)]
    others = [_read_foreign(path) for path in paths if path not in recorded]
    if not paths:
        sample = Path(__file__).with_name("sample.jsonl")
        others = [{"name": SAMPLE, "text": sample.read_text(encoding="utf-8")}]
    data = {**tokens_data([(path.name, path) for path in recorded]), "files": others}
    library = reader()
    scripts = [*([Markup(library)] if library else []), *rendered("common.js.j2", *SCRIPTS)]
    return page_of(
        environment().get_template("microscope.html.j2"),
        scripts,
        title=title,
        shown=", ".join(path.name for path in paths) or SAMPLE,
        tokens=embedded(data),
        parquet=bool(library),
    )


def _has_tokens(path: Path) -> bool:
    if path.is_dir():
        return True
    if path.suffix == ".parquet" and path.is_file():
        return set(REQUIRED) <= set(parquet.columns(path))
    try:
        return holds_tokens(path)
    except (ValueError, OSError):
        return False


def _read_foreign(path: Path) -> dict[str, str]:
    """A file of another program as the page reads it: its text, or its rows as JSON lines."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file.")
    if path.stat().st_size > LARGEST:
        raise ValueError(
            f"{path} has more than {LARGEST >> 20} MiB, too much to lie in a page: write the page "
            "without it, and open the file there."
        )
    if path.suffix == ".parquet":
        rows = parquet.rows(path, kept=True)
        return {"name": path.name, "text": "\n".join(json.dumps(row, default=str) for row in rows)}
    text = content(path).decode("utf-8", "replace")
    if text.lstrip()[:1] not in ("{", "["):
        raise ValueError(f"{path} is neither JSON, JSON lines nor Parquet: {looked_for()}.")
    return {"name": path.name, "text": text}


def reader() -> str:
    """The script that reads Parquet in a browser; empty where the build did not bring it.

    ``make parquet-reader`` builds it from pinned packages; wheels and the site have it.
    """
    file = Path(__file__).parent / "templates" / "parquet.min.js"
    return file.read_text(encoding="utf-8") if file.is_file() else ""
