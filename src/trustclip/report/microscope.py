"""The microscope: a page for files of tokens, and the methods that it looks through.

The page computes what each method keeps with the gate algebra of all pages
(``templates/gates.js.j2``); here is listed which methods can be looked through, and what of them
can be moved.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from markupsafe import Markup

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import method
from trustclip.constraints.shadow import refusal
from trustclip.constraints.thresholds import thresholds
from trustclip.logs.recognise import holds_tokens, looked_for
from trustclip.logs.tokens import REQUIRED
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.report.tokens import views
from trustclip.support.checked import UpToOne

#: What a file of tokens can have of the optional fields of `TokenBatch`.
SUPPLIED = ("logp_rollout", "entropy", "lag")
#: Methods that are looked through until the reader chooses.
CHOSEN = ("clip", "atr", "dppo")
#: Scripts of every page with tokens, in their order.
SCRIPTS = ("gates.js.j2", "files.js.j2", "microscope.js.j2")
#: What the sample is: `benchmarks/microscope_sample.py`.
SAMPLE = "a sample: SmolLM2-135M on word sums, trained with atr, with a sampler of int8 weights"
#: Largest file of another program that is put into a page, bytes.
LARGEST = 64 << 20
#: A slider ends at these factors of its start.
_FURTHEST = (1 / 64, 64.0)
#: Starts of sliders of a number that is unset by default: a threshold, and a ratio above 1.
_STARTS = (0.1, 0.5, 2.0)


@cache
def applicable_methods() -> dict[str, dict[str, Any]]:
    """Every method that a file of tokens can be looked at through, for the page.

    Example:
      >>> applicable_methods()["clip"]["spec"], applicable_methods()["clip"]["moved"]
      ({'name': 'clip', 'epsilon': 0.2, 'side': 'outward', 'level': 'token'}, ['epsilon'])
      >>> "trpo" in applicable_methods()
      False
    """
    by_name = {name: method(name) for name in methods()}
    return {name: _offer(m) for name, m in by_name.items() if not refusal(m, SUPPLIED, "a file")}


def _offer(chosen: Method) -> dict[str, Any]:
    hints = get_type_hints(type(chosen), include_extras=True)
    movable = thresholds(chosen)
    return {
        "spec": chosen.to_dict(),
        "requires": list(chosen.requires),
        "does": (type(chosen).__doc__ or "").strip().splitlines()[0].partition(": ")[2],
        "dials": list(dials(chosen)),
        "moved": list(movable),
        "usual": movable,
        "widest": {name: 1.0 for name in movable if hints.get(name) == UpToOne},
    }


def dials(chosen: Method, within: str = "") -> Iterator[dict[str, Any]]:
    """What can be moved of a method and of its parts, between values that its class allows.

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
            values = [v for v in get_args(hint) if _allows(chosen, item.name, v)]
            if len(values) > 1:
                yield {"path": path, "kind": "choice", "values": values}
        elif isinstance(default, float) or (default is None and float in get_args(hint)):
            ends = _range(chosen, item.name, default)
            if ends is not None:
                yield {"path": path, "kind": "number", "optional": default is None, **ends}


def _allows(chosen: Method, name: str, value: Any) -> bool:
    """Whether a value makes a method that a file of tokens suffices for."""
    try:
        changed = replace(chosen, **{name: value})  # type: ignore[type-var]
    except ValueError:
        return False
    return not refusal(changed, SUPPLIED, "a file")


def _range(chosen: Method, name: str, default: float | None) -> dict[str, float] | None:
    """Start and ends of a slider: factors of the default, halved until the class allows them."""
    usual = chosen.value(name) if default is None else default
    starts = _STARTS if usual is None else (usual,)
    start = next((s for s in starts if s > 0 and _allows(chosen, name, s)), None)
    if start is None:
        return None
    ends = []
    for factor in _FURTHEST:
        while not _allows(chosen, name, start * factor):
            factor = 1.0 if abs(factor - 1) < 0.01 else factor**0.875
        ends.append(start * factor)
    whole = 1.0 if ends[1] < 1 < start * _FURTHEST[1] and _allows(chosen, name, 1.0) else ends[1]
    return {"start": start, "low": ends[0], "high": whole}


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
        return set(REQUIRED) <= set(_table(path).schema_arrow.names)
    try:
        return holds_tokens(path)
    except (ValueError, OSError):
        return False


def _table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}.") from error


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
        rows = (row for part in _table(path).iter_batches(64) for row in part.to_pylist())
        return {"name": path.name, "text": "\n".join(json.dumps(row, default=str) for row in rows)}
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.lstrip()[:1] not in ("{", "["):
        raise ValueError(f"{path} is neither JSON, JSON lines nor Parquet: {looked_for()}.")
    return {"name": path.name, "text": text}


def reader() -> str:
    """The script that reads Parquet in a browser; empty where the build did not bring it.

    ``make parquet-reader`` builds it from pinned packages; wheels and the site have it.
    """
    file = Path(__file__).parent / "templates" / "parquet.min.js"
    return file.read_text(encoding="utf-8") if file.is_file() else ""
