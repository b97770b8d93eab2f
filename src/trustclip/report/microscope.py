"""The microscope: a page for files of tokens, and the methods that it looks through.

The page computes what each method keeps from the numbers of `trustclip.report.gates`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import method
from trustclip.report import gates
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.report.tokens import views

#: Methods that are looked through until the reader chooses.
CHOSEN = ("clip", "atr", "dppo")
#: Scripts of every page with tokens, in their order.
SCRIPTS = ("gates.js.j2", "microscope.js.j2")
#: What the sample is: `benchmarks/microscope_sample.py`.
SAMPLE = "a sample: SmolLM2-135M on word sums, trained with atr, with a sampler of int8 weights"


@cache
def applicable_methods() -> dict[str, dict[str, Any]]:
    """Every method that a page can compute from a token's log-probabilities alone.

    Others read more: the sampler's, the entropy, whole batches. ``trustclip shadow`` computes them.

    Example:
      >>> applicable_methods()["clip"]["spec"]
      {'name': 'clip', 'epsilon': 0.2, 'side': 'outward', 'level': 'token'}
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
    return {**views(runs), **offered}


def token_page(paths: Sequence[Path], title: str) -> str:
    """The microscope, a page for files of tokens, as HTML.

    In it are the files of tokens, run directories and prime-rl's exports of ``paths``; without
    any, this package's sample.

    Raises:
      ValueError: a path holds none of these.
    """
    sample = [(SAMPLE, Path(__file__).with_name("sample.jsonl"))]
    shown = [(path.name, path) for path in paths] or sample
    return page_of(
        environment().get_template("microscope.html.j2"),
        rendered("common.js.j2", *SCRIPTS),
        title=title,
        shown=", ".join(name for name, _ in shown),
        tokens=embedded(tokens_data(shown)),
    )
