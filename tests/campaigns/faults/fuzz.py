"""Coverage-guided fuzzing of what reads strangers' files and texts, by Atheris (libFuzzer).

``python -m tests.campaigns.faults.fuzz TARGET [--runs N] [--seed S] [--minutes M]`` ends with
status 0 if nothing but the documented errors came out; a failing input is written to
``build/fuzz`` and is replayed by ``python -m tests.campaigns.faults.fuzz TARGET FILE``. Without
Atheris, which only Linux and macOS have, the same targets are run on mutated examples (`smoke`), as
the tests do.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import warnings
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

BUILD = Path(__file__).parents[3] / "build" / "fuzz"


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
    with store.writing(8) as folder:
        (folder / "state.json").write_text("{}")
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
    """What the fuzzer begins with."""
    if target == "recipe":
        return [path.read_bytes() for path in sorted(Path("recipes").glob("*.yaml"))] or [b"rl: {}"]
    if target == "manifest":
        store = _checkpoint()
        with store.writing(8) as folder:
            (folder / "state.json").write_text("{}")
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


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.campaigns.faults.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("file", nargs="?", type=Path, help="play this input alone")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="end after that time; 0: never")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.file:
        TARGETS[asked.target](asked.file.read_bytes())
        return 0
    import atheris

    corpus = BUILD / asked.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(examples(asked.target)):
        (corpus / f"example-{number}").write_bytes(example)
    _instrument(atheris)
    options = [
        sys.argv[0], str(corpus), f"-runs={asked.runs}", f"-seed={asked.seed}", "-max_len=4096",
        f"-artifact_prefix={BUILD}/{asked.target}-", "-timeout=600", "-rss_limit_mb=8192",
        "-verbosity=0", "-print_final_stats=1", f"-max_total_time={round(60 * asked.minutes)}",
    ]  # fmt: skip
    atheris.Setup(options, TARGETS[asked.target])
    atheris.Fuzz()
    return 0


def _instrument(atheris: object) -> None:
    """Follow the branches of the modules that parse."""
    import types

    for name in _PARSERS:
        module = sys.modules[name]
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == name:
                setattr(module, key, atheris.instrument_func(value))  # type: ignore[attr-defined]


_PARSERS = (
    "trustclip.train.files", "trustclip.train.problems.verify.extraction",
    "trustclip.train.problems.verify.equivalence",
    "trustclip.support.jsonl", "trustclip.logs.tokens", "trustclip.support.text",
    "trustclip.logs.recognise", "trustclip.train.durable.store",
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
