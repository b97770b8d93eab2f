"""Running a suite: its unfinished runs, several at a time, resumable after any failure."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console
from rich.table import Table

from trustclip.findings.groups import describe
from trustclip.logs.identity import flat
from trustclip.support.consent import names_in
from trustclip.support.jsonl import append_jsonl, scan, write_text
from trustclip.support.lock import only_process
from trustclip.support.terminal import announce, print_table
from trustclip.support.text import one_line
from trustclip.train.suite.launchers.local import Interruptions, RunProcess, environment, gpus
from trustclip.train.suite.launchers.slurm import Slurm, SlurmRun, resources_of
from trustclip.train.suite.plan import Job, Plan, plan
from trustclip.train.suite.table import Results

#: ``trustclip``, called with ``run FILE`` or ``sft --OPTION=VALUE ...``.
COMMAND = (sys.executable, "-m", "trustclip")
POLL_SECONDS = 0.1

State = Literal["waiting", "running", "ending", "finished", "failed", "interrupted", "blocked"]


def run_suite(
    path: Path,
    console: Console,
    *,
    max_parallel: int | None = None,
    on: str = "local",
    resources: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    command: Sequence[str] = COMMAND,
) -> int:
    """Run the unfinished runs of a suite, and write its table.

    Finished runs are left as they are, interrupted ones are resumed, and failed ones are retried.
    Ctrl-C or SIGTERM asks the runs to save and stop; a second one kills them.

    Args:
      path: YAML file of `SuiteSettings`.
      console: for the progress and the table.
      max_parallel: runs at a time; when None, 1 on this machine and all under Slurm, which has
        its own queue.
      on: ``"local"`` or ``"slurm"``.
      resources: of a run under Slurm, as `resources_of` takes them.
      dry_run: only list what would run.
      command: ``trustclip``; its status is 0 if everything is saved.

    Returns:
      Exit status: 0 if every run is finished, 1 if not, 128 + signal after one.
    """
    if max_parallel is not None and max_parallel < 1:
        raise ValueError(f"max_parallel must be at least 1, got {max_parallel}.")
    request = resources_of(on, resources or {})
    suite = plan(path)
    if dry_run:
        console.print(_intention(suite))
        return 0
    slots = max_parallel or (1 if request is None else len(suite.jobs))
    devices = gpus() if request is None and slots > 1 else []
    slurm = None if request is None else Slurm(request)

    def start(job: Job, slot: int) -> RunProcess | SlurmRun:
        words = [*command, *_arguments(job)]
        if slurm is not None:
            return slurm.start(job.path, words)
        return RunProcess(job.path, words, environment(slot, slots, devices))

    with only_process(suite.out):
        write_text(suite.out / "suite.yaml", _yaml(suite.resolved()))
        allowed = _consent([job.settings for job in suite.jobs])
        line = f"trustclip suite {shlex.quote(str(path))}{allowed}"
        return _Suite(suite, console, slots, start, line).run()


#: A run that has been started.
Running = RunProcess | SlurmRun
#: Starts a job in a slot.
Start = Callable[[Job, int], Running]


class Watched:
    """How far a run is, read from its growing ``metrics.jsonl``."""

    def __init__(self, job: Job) -> None:
        self._path, self._read = job.path / "metrics.jsonl", 0
        # With several tasks the last row of an evaluation is their average; a single task has none.
        self._average = "," in (job.settings.get("eval") or {}).get("tasks", "")
        self.updates, self.score = job.updates, ""
        self.refresh()

    def refresh(self) -> bool:
        """Read new rows; True if an evaluation is among them."""
        size = self._path.stat().st_size if self._path.exists() else 0
        scored = False
        # A resumed run has truncated the file to its checkpoint.
        for line in scan(self._path, self._read if size >= self._read else 0) if size else ():
            if line.torn:
                break
            self._read, row = line.offset + len(line.content), line.row or {}
            if row.get("stage") == "eval" and (row.get("task") == "average") >= self._average:
                for name, mean in row.items():
                    if name.startswith("mean@") and "/" not in name and mean is not None:
                        text = f"{name.replace('mean', 'Mean')} {mean:.1%}"
                        self.score = f"update {row.get('step')}/{self.updates}, {text}"
                        scored = True
        return scored


class _Suite:
    def __init__(self, suite: Plan, console: Console, slots: int, start: Start, line: str) -> None:
        self._plan, self._console, self._start_run = suite, console, start
        self._slots = slots
        self._results = Results(suite, line)
        self._states: dict[str, State] = {job.name: "waiting" for job in suite.jobs}
        self._active: dict[int, tuple[Job, Running]] = {}
        self._failures: dict[str, str] = {}
        self._watched: dict[str, Watched] = {}

    def run(self) -> int:
        self._note("suite", "started", runs=len(self._plan.runs))
        for job in self._plan.runs:
            if job.summary is not None:
                self._finish(job)
        self._results.write()
        self._skip_spare_sft()
        with Interruptions() as interruptions:
            while self._advance(interruptions):
                self._tell_scores()
                time.sleep(POLL_SECONDS)
        status = interruptions.status or int(len(self._failures) > 0)
        self._note("suite", "ended", status=status)
        return self._conclude(status)

    def _skip_spare_sft(self) -> None:
        """Mark an SFT that no unfinished run needs as finished, even if its folder is missing."""
        needed = {j.needs for j in self._plan.runs if self._states[j.name] != "finished"}
        for job in self._plan.jobs:
            if job.method is None and (job.summary is not None or job.path not in needed):
                self._states[job.name] = "finished"

    def _advance(self, interruptions: Interruptions) -> bool:
        """Poll and start runs; False once none is left."""
        for slot, (job, process) in list(self._active.items()):
            status = process.poll()
            if status is not None:
                del self._active[slot]
                self._close(job, process, status)
        if interruptions.count:
            self._end_all(now=interruptions.count > 1)
            return bool(self._active)
        for job in self._plan.jobs:
            if len(self._active) >= self._slots:
                break
            if self._states[job.name] == "waiting" and self._ready(job):
                self._start(job)
        return bool(self._active)

    def _ready(self, job: Job) -> bool:
        if job.needs is None:
            return True
        state = self._states[job.needs.name]
        if state in ("failed", "interrupted"):
            self._states[job.name] = "blocked"
            self._failures[job.name] = f"waits for {job.needs.name}"
        return state == "finished"

    def _start(self, job: Job) -> None:
        slot = min(set(range(self._slots)) - self._active.keys())
        self._watched[job.name] = Watched(job)
        process = self._start_run(job, slot)
        self._active[slot] = job, process
        self._states[job.name] = "running"
        # Without a pid, a process of an earlier call holds the folder; wait for it.
        self._note(job.name, "started" if process.pid else "found running", pid=process.pid)

    def _end_all(self, *, now: bool) -> None:
        for slot, (job, process) in list(self._active.items()):
            if process.pid is None:
                del self._active[slot]
                self._states[job.name] = "interrupted"
                self._note(job.name, "left running")
            elif now:
                process.kill()
            elif self._states[job.name] == "running":
                self._states[job.name] = "ending"
                process.ask_to_end()
                self._note(job.name, "asked to end")

    def _close(self, job: Job, process: Running, status: int) -> None:
        """Record the end of a process, judged by its run directory, then by its exit status."""
        self._tell_scores()
        ending = self._states[job.name] == "ending"
        seconds = round(time.monotonic() - process.started, 1)
        if job.summary is not None:
            self._note(job.name, "finished", seconds=seconds)
            self._finish(job)
            self._results.write()
        elif process.pid is None:
            self._states[job.name] = "waiting"
            self._note(job.name, "gone")
        elif status == 0 or ending:
            self._states[job.name] = "interrupted"
            self._failures[job.name] = "ended before its last update"
            self._note(job.name, "interrupted", seconds=seconds, status=status)
        else:
            lines = process.last_lines()
            self._states[job.name] = "failed"
            end = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
            self._failures[job.name] = f"{end}: {one_line(lines[-1]) if lines else 'no output'}"
            self._note(job.name, "failed", seconds=seconds, status=status, log=lines)

    def _finish(self, job: Job) -> None:
        self._states[job.name] = "finished"
        if job.method is None:
            return
        try:
            self._results.add(job)
        except (OSError, ValueError, KeyError) as error:
            self._failures[job.name] = f"finished, but cannot be read: {error!r}"

    def _note(self, name: str, event: str, **details: Any) -> None:
        row = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "run": name, "event": event, **details}
        append_jsonl(self._plan.out / "events.jsonl", [row])
        reason = f" ({self._failures[name]})" if event == "failed" else ""
        announce(self._console, f"{name}: {event}{reason}")

    def _tell_scores(self) -> None:
        """Print the new evaluations of the active runs."""
        for name, run in self._watched.items():
            if self._states[name] in ("running", "ending") and run.refresh():
                announce(self._console, f"{name}: {run.score}")

    def _conclude(self, status: int) -> int:
        file = self._results.write()
        print_table(self._console, self._results.table().overview())
        announce(self._console, f"table in {file}")
        if self._failures:
            missing = len(self._failures)
            self._console.print(f"{missing} not finished; run the same command again to continue:")
            for name, reason in self._failures.items():
                announce(self._console, f"  {name}: {reason}")
        return status


def _arguments(job: Job) -> list[str]:
    """Arguments of ``trustclip`` for the job; the recipe of a run is written to its folder."""
    job.path.mkdir(parents=True, exist_ok=True)
    if job.method is None:
        options = {k: v for k, v in flat(job.settings).items() if v is not None and v != {}}
        return ["sft", *(f"--{key}={value}" for key, value in options.items())]
    file = job.path / "recipe.yaml"
    write_text(file, _yaml(job.settings))
    return ["run", str(file), *_consent(job.settings).split()]


def _consent(settings: Any) -> str:
    """The flag for a worker whose settings name modules: the plan has been allowed to."""
    return " --allow-code" if names_in(settings) else ""


def _yaml(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True)


def _intention(suite: Plan) -> Table:
    """The table of jobs for ``--dry-run``."""
    table = Table(title=f"{suite.settings.name}: {suite.out}", title_justify="left", box=None)
    for header in ("run", "setting", "method", "updates", "state"):
        table.add_column(header, justify="right" if header == "updates" else "left")
    for job in suite.jobs:
        begun = "to be resumed" if (job.path / "config.yaml").exists() else "new"
        state = begun if job.summary is None else "finished"
        method = "SFT" if job.method is None else describe(job.method.to_dict())
        table.add_row(job.name, job.setting, method, str(job.updates or "?"), state)
    return table
