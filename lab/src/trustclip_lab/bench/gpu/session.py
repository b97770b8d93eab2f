"""`trustclip bench gpu`: stages in turn, within a number of minutes; a second call goes on.

A stage runs in a process of its own and writes each case as it ends, so that an error after which
the device takes no more work, or a hang, costs one case.
"""

import contextlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trustclip.logs.writing.environment import versions
from trustclip.support.checked import Count
from trustclip.support.jsonl import append_jsonl, read_jsonl, read_mapping, write_json, write_text
from trustclip.support.marks import Argument
from trustclip.support.names import listed, unknown
from trustclip.support.text import markdown_table
from trustclip_lab.bench.gpu import STAGES
from trustclip_lab.bench.gpu.cases import CannotRun, Case, Place, Row, Stage, stage
from trustclip_lab.bench.table import Table, machine

#: Packages whose versions decide a result, present or not.
PACKAGES = (
    *("torch", "triton", "transformers", "trl", "peft", "accelerate", "datasets"),
    *("liger-kernel", "cut-cross-entropy", "quack-kernels", "nvidia-cutlass-dsl"),
)
#: Exit status of a process whose device takes no more work.
BROKEN = 75
#: Seconds for the end of a session and of a stage; without so many no stage is begun.
_RESERVE, _MARGIN, _LEAST = 30.0, 5.0, 20.0


@dataclass(frozen=True)
class GpuOptions:
    """Everything that a GPU settles, in stages; a second call goes on with what is missing."""

    topic: Argument[Literal["gpu"]] = "gpu"
    """What is measured."""
    out: Path = Path("runs/gpu")
    """Folder of README.md and cases.jsonl; a second call goes on with what is missing."""
    minutes: Count = 9
    """The session ends within them."""
    stages: str = ",".join(STAGES)
    """Stages to run, the first ones first."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Device; on a CPU the shapes are tiny and the figures mean nothing."""
    tiny: bool = False
    """Tiny shapes on a GPU too."""

    def __post_init__(self) -> None:
        for name in self.chosen:
            if name not in STAGES:
                raise ValueError(unknown("stage", name, STAGES))

    @property
    def chosen(self) -> list[str]:
        """The names in `stages`."""
        return listed(self.stages)


def run(options: GpuOptions) -> list[Table]:
    """Run what is missing, and what failed before; the tables of everything that is done."""
    import torch

    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise ValueError("--device cuda: PyTorch finds no CUDA device here. Allowed: auto, cpu.")
    device = "cuda" if available and options.device != "cpu" else "cpu"
    place = Place(device, options.tiny or device == "cpu", options.out)
    box = describe(device)
    open_session(place, box)
    end = time.monotonic() + 60 * options.minutes - _RESERVE
    stages = {name: stage(name) for name in options.chosen}
    # Once round, each stage for its own minutes; then again, for as long as there is time.
    for whole in (False, True):
        for name, one in stages.items():
            left = end - time.monotonic()
            run_stage(name, one, place, left if whole else min(left, 60 * one.minutes))
            write_text(place.folder / "README.md", page(box, stages, place))
    return [table for name, one in stages.items() for table in one.tables(done(name, place))]


def describe(device: str) -> dict[str, Any]:
    """The machine and its packages as JSON values; what is a GPU's, only where there is one."""
    box: dict[str, Any] = {**machine(device), "packages": versions(PACKAGES)}
    if device == "cuda":
        import torch

        card = torch.cuda.get_device_properties(0)
        names = ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem")
        box |= {"capability": f"{card.major}.{card.minor}", "cuda": torch.version.cuda}
        box |= dict(zip(names, _query(names), strict=False))
    return box


def _query(names: Sequence[str]) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", "--id=0"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # none, or one that hangs
        output = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return [value.strip() for value in output.stdout.split(",")]
    return []


def open_session(place: Place, box: dict[str, Any]) -> None:
    """Prepare a folder: the cases that failed are to be run again.

    Raises:
      ValueError: it holds the results of another machine, or of other packages.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    same = {name: value for name, value in box.items() if name != "date"}
    identity = place.folder / "machine.json"
    if identity.is_file() and read_mapping(identity) != same:
        raise ValueError(
            f"{place.folder} holds the results of another machine, or of other packages: choose "
            "another --out."
        )
    write_json(identity, same)
    kept = [json.dumps(asdict(r)) for r in rows_of(place.folder) if r.state != "failed"]
    write_text(place.folder / "cases.jsonl", "".join(f"{line}\n" for line in kept))


def rows_of(folder: Path) -> list[Row]:
    """The outcomes so far."""
    path = folder / "cases.jsonl"
    return [Row(**row) for row in read_jsonl(path)] if path.is_file() else []


def done(name: str, place: Place) -> list[Row]:
    """The outcomes of a stage's cases that are done."""
    return [row for row in rows_of(place.folder) if (row.stage, row.state) == (name, "done")]


def missing(name: str, one: Stage, place: Place) -> list[str]:
    """Keys of a stage's cases without an outcome."""
    known = {row.key for row in rows_of(place.folder) if row.stage == name}
    return [] if "all" in known else [c.key for c in one.cases(place) if c.key not in known]


def run_stage(name: str, one: Stage, place: Place, seconds: float) -> None:
    """Run the missing cases of a stage in a process, and in another where that one breaks."""
    lacking = [package for package in one.needs if importlib.util.find_spec(package) is None]
    if lacking and missing(name, one, place):
        _append(place, Row(name, "all", "cannot", f"not installed here: {', '.join(lacking)}"))
    end, begun = time.monotonic() + seconds, place.folder / "begun"
    while (keys := missing(name, one, place)) and (left := end - time.monotonic()) > _LEAST:
        begun.unlink(missing_ok=True)
        until = time.monotonic() + left - _MARGIN
        process = multiprocessing.get_context("spawn").Process(
            target=work, args=(name, one, keys, place, until)
        )
        process.start()
        process.join(left)
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        key = begun.read_text(encoding="utf-8") if begun.exists() else None
        if process.exitcode != BROKEN and (key or (process.exitcode and not late)):
            why = "its time was up" if late else f"its process ended with {process.exitcode}"
            _append(place, Row(name, key or "all", "failed", f"{why}; see {name}.log"))
        if late or not process.exitcode:
            return


def work(name: str, one: Stage, keys: Collection[str], place: Place, until: float) -> None:
    """Run these cases of a stage, in this process, while there is time."""
    with open(place.folder / f"{name}.log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for case in one.cases(place):
        expected = case.seconds if place.cuda else min(case.seconds, 10.0)
        if case.key in keys and time.monotonic() + expected <= until:
            (place.folder / "begun").write_text(case.key, encoding="utf-8")
            row = outcome(name, case, place)
            _append(place, row)
            (place.folder / "begun").unlink()
            if "CUDA error" in row.why:
                raise SystemExit(BROKEN)


def outcome(name: str, case: Case, place: Place) -> Row:
    """Run a case; whatever it raises becomes a row."""
    print(f"{name}: {case.key}", flush=True)
    started = time.monotonic()
    try:
        row = Row(name, case.key, "done", values=case.run(place))
    except CannotRun as reason:
        row = Row(name, case.key, "cannot", str(reason))
    except ImportError as error:
        row = Row(name, case.key, "cannot", f"a package cannot be imported here: {error}")
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())
        row = Row(name, case.key, "failed", f"{type(error).__name__}: {text[:300]}")
    return replace(row, seconds=time.monotonic() - started)


def _append(place: Place, row: Row) -> None:
    append_jsonl(place.folder / "cases.jsonl", [asdict(row)])


# -- the page --------------------------------------------------------------------------------------


def page(box: dict[str, Any], stages: dict[str, Stage], place: Place) -> str:
    """Everything that the folder holds, in Markdown."""
    parts = ["# trustclip on a GPU", f"Measured on {box['date']}: `make gpu`."]
    if "capability" not in box:
        parts.append(
            "**No GPU was at hand: this ran at tiny shapes on a CPU, so it shows that the stages "
            "work, and no figure of it says anything about a GPU.**"
        )
    facts = [(name, str(v)) for name, v in box.items() if name not in ("packages", "date")]
    parts.append(markdown_table(("machine", ""), facts))
    present = {n: v for n, v in box["packages"].items() if v != "not installed"}
    parts.append(f"Packages: {', '.join(f'{n} {v}' for n, v in present.items())}.")
    if absent := [name for name in box["packages"] if name not in present]:
        parts.append(f"Not there: {', '.join(absent)}.")
    for name, one in stages.items():
        parts += [f"## {one.title}", *_section(name, one, place)]
    return "\n\n".join(parts) + "\n"


def _section(name: str, one: Stage, place: Place) -> list[str]:
    """A stage; of tiny shapes the times, which say nothing, are in ``cases.jsonl`` alone."""
    rows, finished = rows_of(place.folder), done(name, place)
    if one.timed and place.tiny:
        parts = ["\n".join(["Ran, at tiny shapes:", "", *(f"- {row.key}" for row in finished)])]
    else:
        parts = [table.markdown() for table in one.tables(finished)]
    for state, words in (("failed", "Failed"), ("cannot", "Cannot run here")):
        reasons = [f"- {r.key}: {r.why}" for r in rows if (r.stage, r.state) == (name, state)]
        if reasons:
            parts.append("\n".join([f"{words}:", "", *reasons]))
    if keys := missing(name, one, place):
        parts.append(f"Not yet run: {'; '.join(keys)}.")
    return parts
