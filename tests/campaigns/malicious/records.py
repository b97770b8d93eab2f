"""Runs, logs and tables that a stranger has changed so that a reader fails: bombs, shapes, links.

Each is made from a small run directory, a suite of it, its table, its tokens, or the logs of other
trainers in ``tests/data/logs``.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from synthetic_runs import Spec, make_run
from token_files import write

LOGS = Path(__file__).parents[2] / "data" / "logs"
SPEC = Spec({"name": "atr", "delta": 0.07}, seed=1, steps=8, every=4, k=2, completions=2,
            tasks={"amc23": 4})  # fmt: skip
PRIVATE = "text-of-somebody-else"

#: What stands in the place of a value.
_VALUES: tuple[Any, ...] = (
    5, -1.5, "x", [], {}, None, True, 10**400, 1.7e308, float("nan"), [1.7e308] * 4, [[[]]],
    {"a": {"b": []}}, [None], 10**18,
)  # fmt: skip
_DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
#: What stands in the place of a file.
_FILES: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda p: p.write_bytes(b""),
    "a list": lambda p: p.write_text("[]\n"),
    "a number": lambda p: p.write_text("5\n"),
    "a text": lambda p: p.write_text("x\n"),
    "zeros": lambda p: p.write_bytes(bytes(1000)),
    "three gigabytes": lambda p: os.truncate(p, 3 << 30),
    "a hundred thousand levels": lambda p: p.write_text(_DEEP + "\n"),
    "eighty levels": lambda p: p.write_text('{"a":' * 80 + "1" + "}" * 80 + "\n"),
    "twenty million lists": lambda p: p.write_text('{"a":[' + "[]," * 20_000_000 + "[]]}\n"),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
}
_RECORDS = ("config.yaml", "environment.json", "summary.json", "marks.json")
_ROWS = ("metrics.jsonl", "samples.jsonl", "gates.jsonl", "problems.jsonl")

Made = tuple[str, Callable[[Path], list[list[str]]]]


def base(folder: Path) -> Path:
    """A suite of one run that has every file which a reader opens."""
    run = make_run(folder / "suite" / "atr-0", SPEC)
    marks = {"neutral": {"output_dir": "where it is written"}, "extends": ""}
    (run / "marks.json").write_text(json.dumps(marks))
    rows = [json.loads(line) for line in (run / "gates.jsonl").read_text().splitlines()]
    token = {"generated": 0, "index": 0, "position": 1, "logp_old": -1.0, "logp_rollout": -2.0}
    rows[0]["worst"] = [{**token, "text": "a"}]
    (run / "gates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "tokens").mkdir()
    write(run / "tokens" / "update-000001.parquet", 4)
    entry = {"label": "atr", "model": "tiny", "seed": 0, "method": dict(SPEC.method)}
    suite = {"name": "s", "reference": "atr", "reaches": 0.9, "runs": {"atr-0": entry}}
    (run.parent / "suite.yaml").write_text(yaml.safe_dump(suite))
    return run.parent


def commands(path: Path, *, verify: bool = False) -> list[list[str]]:
    """The commands that read a run, a suite or a table."""
    out = ["report", str(path), "-o", str(path.parent / "out")]
    return [out, ["explain", str(path)], *([["verify", str(path)]] if verify else [])]


def places(value: Any, *, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a record; of a list, of its first item alone."""
    yield at
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from places(item, at=(*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], at=(*at, 0))


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A copy of a record with another value at a place; ``...`` leaves it out."""
    if not at:
        return new
    whole = inner = deepcopy(value)
    for key in at[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return whole


def mutants(value: Any, many: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Copies of a record, at each place with some of `_VALUES`, and without it."""
    for number, at in enumerate(places(value)):
        news = [_VALUES[(seed + 7 * number + i) % len(_VALUES)] for i in range(many)]
        for new in [*([...] if at and isinstance(at[-1], str) else []), *news]:
            name = ".".join(map(str, at)) or "all"
            yield f"{name} is {'left out' if new is ... else repr(new)[:20]}", put(value, at, new)


def made(suite: Path, many: int = 2, seed: int = 0) -> Iterator[Made]:
    """Every artefact: its name, and what makes it in a folder and gives the commands to try."""

    def of_run(
        change: Callable[[Path], Any], *, verify: bool = False, compare: bool = False
    ) -> Callable[[Path], Any]:
        def make(folder: Path) -> list[list[str]]:
            shutil.copytree(suite, folder / "suite")
            run = folder / "suite" / "atr-0"
            change(run)
            both = [["compare", str(run), str(suite / "atr-0")]] if compare else []
            return [*commands(run, verify=verify), *both]

        return make

    def text(name: str, content: str) -> Callable[[Path], Any]:
        return lambda run: (run / name).write_text(content)

    for name in (*_RECORDS, *_ROWS, "../suite.yaml"):
        for what, change in _FILES.items():
            yield f"{name} is {what}", of_run(lambda r, n=name, c=change: c(r / n), verify=True)
    for name in (*_RECORDS, "../suite.yaml"):
        dump = json.dumps if name.endswith("json") else yaml.safe_dump
        for what, value in mutants(
            yaml.safe_load((suite / "atr-0" / name).read_text()), many, seed
        ):
            yield f"{name}: {what}", of_run(text(name, dump(value)))
    for name in _ROWS:
        lines = (suite / "atr-0" / name).read_text().splitlines()
        kinds = {tuple(json.loads(line)): number for number, line in enumerate(lines)}
        for number in kinds.values():
            for what, value in mutants(json.loads(lines[number]), many, seed):
                rows = [*lines[:number], json.dumps(value), *lines[number + 1 :], ""]
                changed = text(name, "\n".join(rows))
                yield f"{name}:{number}: {what}", of_run(changed, compare=True)
    yield from _tables(suite, many, seed)
    yield from _tokens(suite, many, seed)
    yield from _logs(many, seed)


def links(suite: Path) -> Iterator[Made]:
    """A link out of the run or suite in the place of each file and folder in it."""
    names = (
        *_RECORDS,
        *_ROWS,
        "tokens",
        "tokens/update-000001.parquet",
        "../suite.yaml",
        "../atr-0",
    )
    for name in names:

        def make(folder: Path, name: str = name) -> list[list[str]]:
            shutil.copytree(suite, folder / "suite")
            run = folder / "suite" / "atr-0"
            target = folder / "elsewhere"
            (run / name).rename(target)
            if target.is_file():
                target.write_bytes(target.read_bytes().replace(b"amc23", PRIVATE.encode()))
            os.symlink(target, os.path.normpath(run / name))
            path = run.parent if name.startswith("..") else run
            return [*commands(path), ["tokens", str(path)]]

        yield f"{name} is a link", make

    def of_cookbook(folder: Path) -> list[list[str]]:
        (folder / "log").mkdir()
        target = LOGS / "tinker_cookbook" / "metrics.jsonl"
        (folder / "log" / "metrics.jsonl").symlink_to(target)
        return [["explain", str(folder / "log")]]

    yield "the log of another trainer is a link", of_cookbook


def _tables(suite: Path, many: int, seed: int) -> Iterator[Made]:
    """Tables of scores: columns of other types, too many rows, and numbers that are none."""
    scores = {"arm": ["a", "b"], "problem": ["1", "1"], "sample": [0, 0], "score": [1.0, 0.0]}
    table = pa.table(scores)

    def of(content: pa.Table) -> Callable[[Path], list[list[str]]]:
        def make(folder: Path) -> list[list[str]]:
            path = folder / "scores.parquet"
            pq.write_table(content, path)
            return [["report", str(path), "-o", str(folder / "out")], ["compare", str(path)]]

        return make

    for at, name in enumerate(table.column_names):
        yield f"scores without {name}", of(table.drop_columns([name]))
        for new in ([5, 7], ["x", "y"], [[1.5], []], [None, None], [{"a": 1}, None], [1e300, -1.0]):
            yield f"scores whose {name} is {new}", of(table.set_column(at, name, pa.array(new)))


def _tokens(suite: Path, many: int, seed: int) -> Iterator[Made]:
    """Files of tokens, as Parquet and as JSON lines."""

    def of(write: Callable[[Path], Any], name: str) -> Callable[[Path], list[list[str]]]:
        def make(folder: Path) -> list[list[str]]:
            path = folder / name
            write(path)
            out = ["--out", str(folder / "page.html")]
            tokens, page = ["tokens", str(path)], ["microscope", str(path), *out]
            return [["explain", str(path)], tokens, page, ["shadow", str(path)]]

        return make

    def lists(values: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)

    zeros = lists(pa.array(np.zeros(40_000_000, np.float32)))
    few = lists(pa.array(np.zeros(100_000, np.float32)))
    texts = lists(pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 10_000]))
    bombs = {
        "forty million zeros": {"logp": zeros, "advantage": zeros},
        "one advantage and forty million zeros": {"logp": zeros, "advantage": [1.0]},
        "a gigabyte of text": {"logp": few, "advantage": [1.0], "token": texts},
        "no row": {"logp": few[:0], "advantage": few[:0]},
        "huge numbers": {"logp": [[1.7e308] * 4], "advantage": [1.7e308]},
        "huge steps": {"logp": [[-1.0]] * 2, "advantage": [1.0, 1.0], "step": [2**62, -(2**62)]},
    }
    for name, columns in bombs.items():
        table = pa.table(columns)
        yield (
            f"tokens: {name}",
            of(lambda p, t=table: pq.write_table(t, p, compression="zstd"), "tokens.parquet"),
        )
    rows = pq.read_table(suite / "atr-0" / "tokens" / "update-000001.parquet").to_pylist()
    first = {key: value for key, value in rows[0].items() if value is not None}
    for what, value in mutants(first, many, seed):
        line = json.dumps(value)
        yield f"tokens: {what}", of(lambda p, s=line: p.write_text(s + "\n"), "tokens.jsonl")
    for what, change in _FILES.items():
        for name in ("tokens.jsonl", "tokens.parquet"):
            yield f"{name} is {what}", of(lambda p, c=change: (p.touch(), c(p)), name)


def _logs(many: int, seed: int) -> Iterator[Made]:
    """Logs of other trainers."""

    def of(write: Callable[[Path], Any], name: str) -> Callable[[Path], list[list[str]]]:
        def make(folder: Path) -> list[list[str]]:
            path = folder / name
            path.touch()
            write(path)
            return [["explain", str(path)], ["report", str(path), "-o", str(folder / "out")]]

        return make

    row = {"step": 1, "clip_ratio/region_mean": 0.1, "entropy": 1.0, "reward": 0.5, "loss": 0.1}
    state = {"global_step": 2, "max_steps": 2, "logging_steps": 1,
             "log_history": [row, {**row, "step": 2}]}  # fmt: skip
    sequence = min(LOGS.rglob("rank_*.jsonl")).read_text().splitlines()[0]
    console = (LOGS / "verl" / "console.log").read_text()
    logged = {"step": 1, "data": {"actor/pg_clipfrac": 0.1, "actor/entropy": 1.0}}
    records = {"trainer_state.json": state, "rank_0.jsonl": json.loads(sequence),
               "metrics.jsonl": logged}  # fmt: skip
    for name, record in records.items():
        for what, value in mutants(record, many, seed):
            line = json.dumps(value) + "\n"
            yield f"{name}: {what}", of(lambda p, s=line: p.write_text(s), name)
        for what, change in _FILES.items():
            yield f"{name} is {what}", of(change, name)
    steps = ("9" * 400, "9" * 5000, "-1", "1")
    for step in steps:
        lines = console + f"\nstep:{step} - actor/pg_clipfrac:{'9' * 400}.0 - actor/entropy:1e308\n"
        yield f"console: step {step[:9]}", of(lambda p, s=lines: p.write_text(s), "train.log")
    for what, change in _FILES.items():
        for name in ("train.log", "events.out.tfevents.1", "run-1.wandb"):
            yield f"{name} is {what}", of(change, name)
    yield from _trackers(of)


def _trackers(of: Callable[..., Any]) -> Iterator[Made]:
    """Frames of wandb and TensorBoard that claim more than there is."""
    frames = {
        "a record of many fragments": b":W&B\xe1\xbe\x00" + _fragments(3000),
        "a fragment of no kind": b":W&B\xe1\xbe\x00" + b"\0\0\0\0\xff\xff\x09",
    }
    for what, content in frames.items():
        yield f"wandb: {what}", of(lambda p, c=content: p.write_bytes(c), "run-1.wandb")
    for length in (1 << 40, (1 << 63) + 1, 10):
        head = length.to_bytes(8, "little") + bytes(4)
        yield (
            f"TensorBoard: a record of {length} bytes",
            of(lambda p, c=head: p.write_bytes(c + b"abc"), "events.out.tfevents.1"),
        )
    try:
        from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore
    except ImportError:
        return
    for value in ("null", "[]", "Infinity", '"x"', "1e400", "9" * 400, "{}"):
        record = Record()
        for key, text in (("_step", value), ("train/clip_ratio/region_mean", value)):
            item = record.history.item.add()
            item.key, item.value_json = key, text
        content = record.SerializeToString()
        frame = b":W&B\xe1\xbe\x00" + bytes(4) + len(content).to_bytes(2, "little") + b"\x01"
        yield (
            f"wandb: values {value[:9]}",
            of(lambda p, c=frame + content: p.write_bytes(c), "run-1.wandb"),
        )


def _fragments(count: int) -> bytes:
    """A record in ``count`` fragments, each of a whole block."""
    block = 32 * 1024
    first = bytes(4) + (block - 14).to_bytes(2, "little") + b"\x02" + bytes(block - 14)
    middle = bytes(4) + (block - 7).to_bytes(2, "little") + b"\x03" + bytes(block - 7)
    return first + middle * count
