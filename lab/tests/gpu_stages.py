"""Stages of made-up cases for `test_bench_gpu.py`: a session's processes import them by name."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from trustclip_lab.bench.gpu.cases import CannotRun, Case, Place, Row, Stage
from trustclip_lab.bench.table import Table


def cannot(place: Place) -> dict[str, Any]:
    raise CannotRun("this needs a GPU")


def fails(place: Place) -> dict[str, Any]:
    raise ValueError("no good")


def lost(place: Place) -> dict[str, Any]:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def dies(place: Place) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hangs(place: Place) -> dict[str, Any]:
    while True:
        time.sleep(1)


def fine(place: Place) -> dict[str, Any]:
    return {"x": 2.5, "pid": os.getpid()}


def cases(place: Place) -> Sequence[Case]:
    return [
        Case("a", cannot), Case("b", fails), Case("c", lost), Case("d", dies), Case("e", fine),
        Case("long", fine, 1e9),
    ]  # fmt: skip


def hanging(place: Place) -> Sequence[Case]:
    return [Case("a", hangs, 0.1), Case("b", fine)]


def unready(place: Place) -> Sequence[Case]:
    if os.environ.get("UNREADY"):
        raise RuntimeError("no case can be made here")
    return [Case("a", fine)]


def tables(rows: Sequence[Row]) -> list[Table]:
    return [Table("t", ("case", "value"), [(row.key, (row.values or {}).get("x")) for row in rows])]


STAGE = Stage("One", 1.0, cases, tables)
HANGING = Stage("Hanging", 1.0, hanging, tables)
UNREADY = Stage("Unready", 1.0, unready, tables)
