"""The program ``trustclip`` as one rank of a job that a test times.

LATE=0 makes the first rank wait before each file that it writes whole, and the others find out
whether they wait for it. HOLD=FILE makes it create the file when it logs for the first time, and
go on when the file is gone.
"""

import os
import time
from pathlib import Path

from trustclip.cli.main import command
from trustclip.support import jsonl
from trustclip.train.runs.directory import RunDirectory


def be_late() -> None:
    """Wait before each file that is written whole."""
    write = jsonl.write_bytes

    def write_late(path: Path, content: bytes) -> None:
        time.sleep(1)
        write(path, content)

    jsonl.write_bytes = write_late


def hold_at(file: Path) -> None:
    """Create a file at the first line of the log, and wait until it is gone."""
    log, hold = RunDirectory.log, [file]

    def log_and_wait(run: RunDirectory, row: dict) -> None:
        log(run, row)
        if hold:
            here = hold.pop()
            here.touch()
            while here.exists():
                time.sleep(0.02)

    RunDirectory.log = log_and_wait  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ.get("LATE"):
        be_late()
    if os.environ["RANK"] == "0" and "HOLD" in os.environ:
        hold_at(Path(os.environ["HOLD"]))
    command()
