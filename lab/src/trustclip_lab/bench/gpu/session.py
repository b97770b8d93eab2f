"""A session: stages in turn, each in its own process, within a number of minutes, resumed."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trustclip.support.names import unknown
from trustclip_lab.bench.counts import check_counts
from trustclip_lab.bench.gpu import STAGES
from trustclip_lab.bench.gpu.box import box, identity
from trustclip_lab.bench.gpu.cases import Place, Row, Stage, stage
from trustclip_lab.bench.gpu.page import write_results
from trustclip_lab.bench.gpu.record import adopt
from trustclip_lab.bench.gpu.worker import BROKEN, append
from trustclip_lab.bench.table import Table

#: Seconds kept for ending the last stage and writing the page.
_RESERVE = 30.0
#: Least seconds in which a stage is begun: a process starts, and a small case runs.
_LEAST = 20.0
#: Beginning of the reason of a case whose time was up.
_LATE = "no time was left for it"


@dataclass(frozen=True)
class GpuOptions:
    """Options of `trustclip bench gpu`."""

    out: Path = Path("runs/gpu")
    """Folder of results.json, README.md and figures; a second call goes on with what is missing."""
    minutes: int = 9
    """The session ends within them."""
    stages: str = ",".join(STAGES)
    """Stages to run, the first ones first."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Device; on a CPU the shapes are tiny and the figures mean nothing."""
    tiny: bool = False
    """Tiny shapes on a GPU too."""
    adopt: bool = False
    """At the end let head="auto" follow what was measured: measured.json goes into the package."""

    def __post_init__(self) -> None:
        check_counts(self, "minutes")
        for name in self.chosen:
            if name not in STAGES:
                raise ValueError(unknown("stage", name, STAGES))

    @property
    def chosen(self) -> list[str]:
        """The names in `stages`."""
        return [name.strip() for name in self.stages.split(",") if name.strip()]


def run(options: GpuOptions) -> list[Table]:
    """Run what is missing; the tables of everything that is done."""
    import torch

    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise ValueError("--device cuda: PyTorch finds no CUDA device here. Allowed: auto, cpu.")
    device = "cuda" if available and options.device != "cpu" else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(Place(device, options.tiny or device == "cpu", options.out), box(device))
    end = time.monotonic() + 60 * options.minutes - _RESERVE - _age()
    names = options.chosen
    # Once round, each stage for its own minutes; then again, for as long as there is time.
    for whole in (False, True):
        for name in names:
            remaining = end - time.monotonic()
            limit = remaining if whole else min(remaining, 60 * stage(name).minutes)
            session.run_stage(name, limit)
            write_results(options.out, session.box, names, session.rows(), session.missing)
    tables = [t for name in names for t in stage(name).tables(session.done(name))]
    if options.adopt:
        tables.append(adopt(options.out))
    return tables


def _age() -> float:
    """Seconds since this process began, most of them spent on imports; 0 where it is unknown."""
    try:
        # After the name, which may have anything in it: the start in ticks since the machine's.
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        )
        now = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


class Session:
    """Rows of one machine in a folder, and the processes that add to them.

    Args:
      place: where the cases run.
      box: the machine, see `box`.
    """

    def __init__(self, place: Place, box: dict[str, Any]) -> None:
        self.place, self.box = place, box
        self._box = identity(box)

    def rows(self) -> list[Row]:
        """The rows of this machine, the last of each case."""
        last: dict[tuple[str, str], Row] = {}
        for row in self._journal():
            last[row.stage, row.key] = row
        return list(last.values())

    def done(self, name: str) -> list[Row]:
        """The rows of a stage's cases that are done."""
        return [row for row in self.rows() if row.stage == name and row.state == "done"]

    def missing(self, name: str) -> list[str]:
        """Keys of the cases without an outcome, and of those that failed once."""
        attempts = [row for row in self._journal() if row.stage == name]
        spent = dict.fromkeys((row.key for row in attempts), 0.0)
        for row in attempts:
            # What was cut short for want of time may find more of it the next time.
            late = row.why.startswith(_LATE)
            spent[row.key] += 1.0 if row.state != "failed" else (0.25 if late else 0.5)
        settled_keys = {key for key, share in spent.items() if share >= 1}
        if self._lacking(stage(name)):
            return []
        return [case.key for case in stage(name).cases(self.place) if case.key not in settled_keys]

    def run_stage(self, name: str, seconds: float) -> None:
        """Run the missing cases of a stage in a process, and in another when that one breaks."""
        if lacking := self._lacking(stage(name)):
            why = f"not installed here: {', '.join(lacking)}"
            if not any(row.stage == name for row in self.rows()):
                append(self.place.folder, Row(name, "all", "cannot", why, box=self._box))
            return
        end = time.monotonic() + seconds
        while self.missing(name) and (remaining := end - time.monotonic()) > _LEAST:
            if not self._process(name, remaining):
                return

    def _process(self, name: str, seconds: float) -> bool:
        """Run a stage's process; True if it broke at a case and another may go on after it."""
        missing = self.missing(name)
        every = [case.key for case in stage(name).cases(self.place)]
        command = [
            *(sys.executable, "-m", "trustclip_lab.bench.gpu.worker", name),
            *("--out", str(self.place.folder), "--device", self.place.device, "--box", self._box),
            *("--seconds", f"{seconds - 5:.0f}", *(["--tiny"] * self.place.tiny)),
            *("--done", json.dumps([key for key in every if key not in missing])),
        ]
        begun = self.place.folder / "begun"
        begun.unlink(missing_ok=True)
        with open(self.place.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            late = False
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                status, late = BROKEN, True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status == 0:
            return False
        why = _LATE if late else f"its process ended with status {status}"
        at = begun.read_text(encoding="utf-8") if begun.exists() else None
        if at is not None or status != BROKEN:
            why = f"{why}; see {name}.log"
            append(self.place.folder, Row(name, at or "all", "failed", why, box=self._box))
        return not late and (at is not None or status == BROKEN)

    def _journal(self) -> Iterator[Row]:
        path = self.place.folder / "cases.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            with contextlib.suppress(ValueError, TypeError):  # the last line of a killed session
                row = Row(**json.loads(line))
                if row.box == self._box:
                    yield row

    @staticmethod
    def _lacking(stage: Stage) -> Sequence[str]:
        return [name for name in stage.needs if importlib.util.find_spec(name) is None]
