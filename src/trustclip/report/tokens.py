"""Recorded tokens as a page holds them: of many completions a sample."""

import base64
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trustclip.logs.recognise import token_rows
from trustclip.logs.samples import problem_of, problem_texts, shards, whole
from trustclip.logs.tokens import TokenRow
from trustclip.support.jsonl import scan

#: Maximum number of completions, and of their tokens, in a page.
MAX_COMPLETIONS, MAX_TOKENS = 2000, 1_000_000
#: Numbers of a token in the page.
COLUMNS = ("logp", "logp_old", "logp_rollout", "entropy", "advantage", "coefficient")


def strings(row: TokenRow) -> Sequence[str]:
    """Text of each token; its id where no text was recorded."""
    if row.token is not None:
        return row.token
    return ["?"] * len(row.logp) if row.token_id is None else [f"#{i}" for i in row.token_id]


#: Numbers of the texts of tokens in the page, by text and id (-1 where none was recorded): each is
#: held once, however often it occurs.
Texts = dict[tuple[str, int], int]


def views(named: Sequence[tuple[str, Path]]) -> dict[str, Any]:
    """The recorded tokens of runs, for the page; of many, a sample.

    Each has its name there, and its file or folder of tokens; or its run directory, whose problems
    and gold answers are joined.

    Raises:
      ValueError: there are no tokens, or a row is not as `trustclip.logs.tokens` says.
    """
    texts: Texts = {}
    content = bytearray()
    runs = [_view(path, name, texts, content, len(named)) for name, path in named]
    tokens = base64.b64encode(zlib.compress(content, 6)).decode()
    return {
        "columns": COLUMNS,
        "runs": runs,
        "texts": [[*text] for text in texts],
        "tokens": tokens,
    }


def _view(path: Path, name: str, texts: Texts, content: bytearray, share: int) -> dict[str, Any]:
    places, total = max(MAX_COMPLETIONS // share, 1), 0
    chosen: list[tuple[int, tuple[TokenRow, dict[str, Any]]]] = []
    random = np.random.default_rng(0)
    for row in _completions(path):
        # Each completion ends up in the page with the same probability, in one pass.
        place = total if total < places else int(random.integers(total + 1))
        if place < places:
            chosen[place : place + 1] = [(total, row)]
        total += 1
    chosen.sort(key=lambda pair: pair[0])
    room, rows = MAX_TOKENS // share, []
    for _, (row, about) in chosen:
        room -= len(row.logp)
        if room < 0:
            break
        content += _pack(row, texts)
        rows.append(_facts(row) | about)
    return {"name": name, "total": total, "rows": rows}


def _completions(path: Path) -> Iterator[tuple[TokenRow, dict[str, Any]]]:
    """Each completion of a run or of a file of tokens, and what it is about."""
    problems = problems_in(path) if (path / "config.yaml").is_file() else {}
    for row in token_rows(path):
        problem, gold = problems.get((row.generated, row.index), (None, None))
        yield row, {"problem": problem, "gold": gold}


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
