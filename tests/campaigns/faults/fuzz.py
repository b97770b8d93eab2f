"""Mutated examples for what reads strangers' files and texts: nothing but the documented errors."""

import contextlib
import json
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from trustclip.logs.recognise import read_log
from trustclip.logs.tokens import TokenRow, read_tokens
from trustclip.support.jsonl import read_jsonl
from trustclip.support.text import markdown_text, one_line
from trustclip.train.durable.store import CheckpointError, CheckpointStore, verify
from trustclip.train.files import load_recipe
from trustclip.train.problems.verify.equivalence import compare
from trustclip.train.problems.verify.extraction import extract_answer


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None)


def _folder() -> Path:
    """A folder in memory, while this process lives."""
    return Path(_temporary().name)


def recipe(data: bytes) -> None:
    """A recipe is read, or refused with a ValueError."""
    path = _folder() / "recipe.yaml"
    path.write_bytes(data)
    with contextlib.suppress(ValueError, OSError):
        load_recipe(path)


def answer(data: bytes) -> None:
    """Answers are cut out of any text and compared without an error; equality is what it says."""
    text = data.decode("utf-8", "replace")
    for style in ("any", "boxed"):
        found = extract_answer(text, style)  # type: ignore[arg-type]
        if found is not None:
            assert compare(found, found) is not False or not found.strip()
    gold, _, given = text.partition("\n")
    compare(gold, given)


def log(data: bytes) -> None:
    """Logs of other trainers and files of tokens are read, or refused with a ValueError."""
    path = _folder() / "log.jsonl"
    path.write_bytes(data)
    for read in (read_log, read_jsonl, lambda p: list(read_tokens(p))):
        with contextlib.suppress(ValueError, OSError):
            read(path)


def manifest(data: bytes) -> None:
    """A checkpoint with any manifest is whole or refused, and nothing outside of it is read."""
    store = _checkpoint()
    path = store.path(8)
    (path / "manifest.json").write_bytes(data)
    try:
        verify(path)
    except CheckpointError:
        return
    listed = json.loads(data)["files"]
    assert set(listed) == {"state.json"} and listed["state.json"]["bytes"] == 2


@cache
def _checkpoint() -> CheckpointStore:
    store = CheckpointStore(_folder() / "run")
    store.origin(dict)
    (store.begin(8) / "state.json").write_text("{}")
    store.commit(8)
    return store


def shown(data: bytes) -> None:
    """Texts that are shown hold no control characters and no markup of their own."""
    text = data.decode("utf-8", "surrogateescape")
    line = one_line(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in line)
    written = markdown_text(text)
    assert "<" not in written and "\n" not in written


def row(data: bytes) -> None:
    """A row of tokens is taken or refused with a ValueError, and comes back as it was."""
    try:
        value = json.loads(data)
        taken = TokenRow.of(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return
    if taken is not None:
        again = TokenRow.of(taken.to_dict())
        assert repr(again.to_dict()) == repr(taken.to_dict())


TARGETS: dict[str, Callable[[bytes], None]] = {
    "recipe": recipe, "answer": answer, "log": log, "manifest": manifest, "shown": shown,
    "row": row,
}  # fmt: skip


def examples(target: str) -> list[bytes]:
    """What is mutated."""
    if target == "recipe":
        return [path.read_bytes() for path in sorted(Path("recipes").glob("*.yaml"))] or [b"rl: {}"]
    if target == "manifest":
        store = _checkpoint()
        (store.begin(8) / "state.json").write_text("{}")
        store.commit(8)
        return [(store.path(8) / "manifest.json").read_bytes()]
    if target in ("row", "log"):
        return [
            b'{"logp": [-1.0, -2.5], "advantage": 0.5, "mask": [true, false], "token": ["a", ""]}',
            b'{"step": 1, "loss": 0.1, "reward": NaN}\n{"step": 2, "kl": 1e400}\n',
            b'{"train/loss": 1, "global_step": 3}\n{"torn',
        ]
    return [
        rb"so \boxed{\frac{1}{2}} is it", rb"Answer: 34" + b"\n34.0", rb"$x \in [0, 1)$",
        "½ ٣ ３ \u202e1\u2028 <b>|`".encode(), rb"\boxed{1,000} or \boxed{\{1,2\}}", b"#### -7",
    ]  # fmt: skip


def smoke(target: str, runs: int, seed: int) -> None:
    """Mutated examples without guidance: cuts, doublings, flips and splices."""
    dice, pool = random.Random(seed), examples(target)
    for _ in range(runs):
        data = bytearray(dice.choice(pool))
        for _ in range(dice.randrange(1, 6)):
            place = dice.randrange(len(data) + 1)
            other = dice.choice(pool)
            data[place : place + dice.randrange(9)] = dice.choice((
                b"", dice.randbytes(3), other[: dice.randrange(20)], b"[" * 9, b"{}", b"-1", b"\n",
            ))  # fmt: skip
        TARGETS[target](bytes(data))
