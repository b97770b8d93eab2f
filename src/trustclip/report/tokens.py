"""Recorded tokens for people: what the constraint and others did to each, and to which strings."""

import base64
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustclip.constraints.base import Method
from trustclip.constraints.loss import gradient
from trustclip.constraints.registry import method
from trustclip.logs.recognise import token_rows
from trustclip.logs.samples import problem_of, problem_texts, shards, whole
from trustclip.logs.tokens import TokenRow, token_batch
from trustclip.logs.watched import sources
from trustclip.support.jsonl import scan

#: Methods whose gate is computed on the tokens of any run, at the defaults of their papers.
SHADOWS = ("clip", "clip_higher", "atr", "dppo", "gspo", "icepop")
#: Name of what the run itself did.
OWN = "this run"
#: Maximum number of completions, and of their tokens, in a page.
MAX_COMPLETIONS, MAX_TOKENS = 2000, 1_000_000
#: Strings in the table of those that are cut most often.
MAX_STRINGS = 20
#: Numbers of a token in the page.
COLUMNS = ("logp", "logp_old", "logp_rollout", "entropy", "advantage", "coefficient")


@dataclass(frozen=True)
class Judgement:
    """A completion, and what each constraint did to its tokens.

    Args:
      coefficients: gradient of the objective in each log-probability, by constraint. [time].
      kept: true where the gate left a gradient as it was, by constraint. [time].
    """

    row: TokenRow
    coefficients: dict[str, NDArray[np.float64]]
    kept: dict[str, NDArray[np.bool_]]

    def cut(self, name: str) -> NDArray[np.bool_]:
        """True for tokens that count and that a constraint has cut. Shape [time]."""
        return self.row.mask & ~self.kept[name]

    def share(self, name: str) -> float:
        """Share of its tokens that a constraint has cut."""
        return float(self.cut(name).sum() / max(self.row.mask.sum(), 1))


def judge(row: TokenRow, shadows: Sequence[Method]) -> Judgement:
    """What a run's own constraint, where it was recorded, and others did to a completion.

    Of the others, one that needs a number the row lacks is left out.
    """
    coefficients: dict[str, NDArray[np.float64]] = {}
    kept: dict[str, NDArray[np.bool_]] = {}
    if row.coefficient is not None:
        coefficients[OWN] = row.coefficient
        silent = (row.coefficient == 0) & (row.advantage != 0)
        kept[OWN] = ~silent if row.kept is None else row.kept
    batch = token_batch([row])
    for shadow in shadows:
        if all(getattr(batch, name) is not None for name in shadow.requires):
            c, surrogate = gradient(shadow, batch)
            coefficients[shadow.name] = c[0].double().numpy()
            kept[shadow.name] = surrogate.kept[0].numpy()
    return Judgement(row, coefficients, kept)


def judgements(path: Path, shadows: Sequence[str] = SHADOWS) -> Iterator[Judgement]:
    """Completions of a file or folder of tokens, judged one by one."""
    methods = [method(name) for name in shadows]
    for row in token_rows(path):
        yield judge(row, methods)


def strings(row: TokenRow) -> Sequence[str]:
    """Text of each token; its id where no text was recorded."""
    if row.token is not None:
        return row.token
    return ["?"] * len(row.logp) if row.token_id is None else [f"#{i}" for i in row.token_id]


@dataclass
class CutStrings:
    """Which strings each constraint cuts, over all completions that were added."""

    every: Counter[str] = field(default_factory=Counter)
    cut: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, item: Judgement) -> None:
        """Add the tokens of a completion that count."""
        texts = strings(item.row)
        self.every.update(compress(texts, item.row.mask))
        for name in item.kept:
            self.cut.setdefault(name, Counter()).update(compress(texts, item.cut(name)))

    def share(self, name: str) -> float:
        """Share of all tokens that a constraint has cut."""
        return self.cut[name].total() / max(self.every.total(), 1)

    def most_cut(self, name: str, count: int = MAX_STRINGS) -> list[tuple[str, int, int, float]]:
        """(string, its tokens, those cut, lift) of the most cut.

        The lift is the cut share of its tokens over that of all tokens.
        """
        return [
            (text, self.every[text], hits, hits / self.every[text] / self.share(name))
            for text, hits in self.cut[name].most_common(count)
        ]


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
    (source,) = sources([path])
    problems = problems_in(path) if source != path else {}
    for row in token_rows(source):
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
