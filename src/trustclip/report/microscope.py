"""The microscope: a page for files of tokens, a sample of many, and the methods it looks through.

The page computes what each method keeps from the numbers of `trustclip.report.gates`.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import method
from trustclip.logs.recognise import token_rows
from trustclip.logs.samples import problem_of, problem_texts, shards, whole
from trustclip.logs.tokens import TokenRow
from trustclip.report import gates
from trustclip.report.html import embedded, environment, page_of, rendered
from trustclip.support.jsonl import scan

#: Methods that are looked through until the reader chooses.
CHOSEN = ("clip", "atr", "dppo")
#: Scripts of every page with tokens, in their order.
SCRIPTS = ("gates.js.j2", "microscope.js.j2")
#: What the sample is: `benchmarks/microscope_sample.py`.
SAMPLE = "a sample: SmolLM2-135M on word sums, trained with atr, with a sampler of int8 weights"

#: Maximum number of completions, and of their tokens, in a page.
MAX_COMPLETIONS, MAX_TOKENS = 2000, 1_000_000
#: Numbers of a token in the page.
COLUMNS = ("logp", "logp_old", "logp_rollout", "entropy", "advantage", "coefficient")
#: Numbers of the texts of tokens in the page, by text and id (-1 where none was recorded): each is
#: held once, however often it occurs.
Texts = dict[tuple[str, int], int]


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
    found = {}
    for name in methods():
        chosen = method(name)
        interval = gates.interval(chosen)
        curve = None if interval else gates.curve(chosen)
        if interval or curve:
            found[name] = {
                "spec": chosen.to_dict(),
                "does": (type(chosen).__doc__ or "").strip().splitlines()[0].partition(": ")[2],
                "dials": list(_dials(chosen, interval["dials"] if interval else {})),
                "interval": interval,
                "curve": curve,
            }
    return found


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
    """What a page with tokens holds: the recorded tokens of runs, of many a sample; and methods.

    Each run has its name on the page, and its file or folder of tokens; or its run directory, whose
    problems and gold answers are joined. ``colours`` are places in the palette of methods that the
    page has drawn already.

    Raises:
      ValueError: there are no tokens, or a row is not as `trustclip.logs.tokens` says.
    """
    texts: Texts = {}
    content = bytearray()
    return {
        "columns": COLUMNS,
        "runs": [_view(path, name, texts, content, len(runs)) for name, path in runs],
        "texts": [[*text] for text in texts],
        "tokens": base64.b64encode(zlib.compress(content, 6)).decode(),
        "methods": applicable_methods(),
        "chosen": CHOSEN,
        "colours": dict(colours or {}),
    }


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


def _view(path: Path, name: str, texts: Texts, content: bytearray, share: int) -> dict[str, Any]:
    problems = problems_in(path) if (path / "config.yaml").is_file() else {}
    places, total = max(MAX_COMPLETIONS // share, 1), 0
    chosen: list[tuple[int, TokenRow]] = []
    random = np.random.default_rng(0)
    for row in token_rows(path):
        # Each completion ends up in the page with the same probability, in one pass.
        place = total if total < places else int(random.integers(total + 1))
        if place < places:
            chosen[place : place + 1] = [(total, row)]
        total += 1
    chosen.sort(key=lambda pair: pair[0])
    room, rows = MAX_TOKENS // share, []
    for _, row in chosen:
        room -= len(row.logp)
        if room < 0:
            break
        content += _pack(row, texts)
        problem, gold = problems.get((row.generated, row.index), (None, None))
        rows.append({**_facts(row), "problem": problem, "gold": gold})
    return {"name": name, "total": total, "rows": rows}


def problems_in(run: Path) -> dict[tuple[Any, Any], tuple[str, str | None]]:
    """Problem and gold answer of each completion of a run, by (generation, number)."""
    texts = problem_texts(run)
    problems: dict[tuple[Any, Any], tuple[str, str | None]] = {}
    for row in (line.row for shard in shards(run) for line in scan(shard)):
        if row is None or row.get("stage") != "rl":
            continue
        if (text := problem_of(row, texts)) is not None:
            gold = row.get("gold")
            at = whole(row.get("step")), whole(row.get("index"))
            problems[at] = text, None if gold is None else str(gold)
    return problems


def _facts(row: TokenRow) -> dict[str, Any]:
    optional = ("logp_rollout", "entropy", "coefficient", "kept", "token_id")
    return {
        "update": row.update,
        "generated": row.generated,
        "index": row.index,
        "group": row.group,
        "reward": None if row.reward is None or not np.isfinite(row.reward) else row.reward,
        "length": len(row.logp),
        "has": [name for name in optional if getattr(row, name) is not None],
    }


def _pack(row: TokenRow, texts: Texts) -> bytes:
    """Numbers of a completion: columns in single precision, flags, and places of its texts."""
    length = len(row.logp)
    unknown = np.full(length, np.nan)
    by_column = {name: getattr(row, name) for name in COLUMNS}
    by_column["logp_old"] = row.logp if row.logp_old is None else row.logp_old
    numbers = [unknown if by_column[name] is None else by_column[name] for name in COLUMNS]
    kept = np.zeros(length, bool) if row.kept is None else row.kept
    flags = row.mask.astype("<u4") | kept.astype("<u4") << 1
    ids = np.full(length, -1) if row.token_id is None else row.token_id
    pairs = zip(strings(row), map(int, ids), strict=True)
    places = [texts.setdefault(text, len(texts)) for text in pairs]
    with np.errstate(over="ignore"):
        columns = np.concatenate(numbers).astype("<f4").tobytes()
    return columns + flags.tobytes() + np.asarray(places, dtype="<u4").tobytes()


def strings(row: TokenRow) -> Sequence[str]:
    """Text of each token; its id where no text was recorded."""
    if row.token is not None:
        return row.token
    return ["?"] * len(row.logp) if row.token_id is None else [f"#{i}" for i in row.token_id]
