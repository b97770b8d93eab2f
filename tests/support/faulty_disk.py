"""``trustclip rl`` on a disk that fails once, at any one of its file operations.

``faulty_disk.py FOLDER COUNT``: as many positions, spread over all; a line of JSON tells the rest.
Operations of Python on the run directory fail; those of libraries in other languages are not seen.
Importing takes longer than a run, so one process imports and forks the others.
"""

import builtins
import errno
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from commands import import_everything

from trustclip.cli.main import main
from trustclip.train.tiny import tiny_model

CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "truncate", "chmod", "open", "fsync")
CODES = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)
#: What depends on the clock, and hashes of files that do.
CLOCK = {"step_time", "seconds", "cpu_seconds", "hashes"}


class Disk:
    """Counts the operations below a folder, and fails one of them.

    Args:
      folder: whose operations count.
      fails: number of the one that fails, from 0; None for none.
    """

    def __init__(self, folder: Path, fails: int | None) -> None:
        self._below, self._fails, self.count = str(folder), fails, 0
        self._handles: set[int] = set()
        self._open = io.open
        builtins.open = io.open = self._opened  # type: ignore[assignment]
        for name in CALLS:
            setattr(os, name, self._checked(getattr(os, name)))

    def _hit(self, path: Any) -> bool:
        known = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._below)
        if not (known or (isinstance(path, int) and self._is_ours(path))):
            return False
        self.count += 1
        return self.count - 1 == self._fails

    def _is_ours(self, handle: int) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{handle}").startswith(self._below)
        except OSError:
            return False

    def _checked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._hit(path):
                code = CODES[self.count % len(CODES)]
                raise OSError(code, os.strerror(code), *([] if isinstance(path, int) else [path]))
            return call(path, *args, **kwargs)

        return checked

    def _opened(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not self._hit(file):
            return self._open(file, mode, *args, **kwargs)
        if self.count % 2 and "r" not in mode:  # it opens, and what is written does not fit
            return self._open("/dev/full", mode, *args, **kwargs)
        code = CODES[self.count % len(CODES)]
        raise OSError(code, os.strerror(code), str(file))


def rl(folder: Path, fails: int | None = None) -> tuple[int, str, int]:
    """Status, what it printed on stderr, and how many operations there were."""
    told = folder.with_suffix(".txt")
    child = os.fork()
    if child == 0:
        output = os.open(told, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        disk = Disk(folder, fails)
        status = 99
        try:
            status = main([
                "rl", "--preset", "tiny", "--model", str(folder.parent / "model"),
                "--output-dir", str(folder), "--max-steps", "3", "--save-steps", "1",
                "--steps-per-generation", "2", "--max-completion-length", "8", "--limit", "64",
                "--per-device-train-batch-size", "16",
            ])  # fmt: skip
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            folder.with_suffix(".count").write_text(str(disk.count))
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, told.read_text(), int(folder.with_suffix(".count").read_text())


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on what failed."""

    def rows(path: Path) -> list[Any]:
        lines = map(json.loads, path.read_text().splitlines())
        return [{k: v for k, v in row.items() if k not in CLOCK} for row in lines]

    summary = json.loads((folder / "summary.json").read_text())
    return {
        **{path.name: rows(path) for path in sorted(folder.glob("*.jsonl"))},
        "summary": {k: v for k, v in summary.items() if k not in CLOCK},
        "final": {
            path.name: path.read_bytes().hex()
            for path in sorted((folder / "final").iterdir())
            if path.name != "README.md"  # the card, which has the time and the folder's name
        },
        # The newest two, which `save_total_limit` keeps. Where removing an older one failed, a
        # warning names it, and a run that has finished removes nothing any more.
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").glob("step-*"))[-2:],
        "files": sorted(path.name for path in folder.iterdir()),
    }  # fmt: skip


def campaign(folder: Path, wanted: int) -> dict[str, Any]:
    import_everything()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokenizer = tiny_model()
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    status, said, operations = rl(folder / "whole")
    assert status == 0, said
    whole = outcome(folder / "whole")
    told: dict[str, Any] = {
        "operations": operations, "refused": 0, "ignored": 0, "wrong": [],
    }  # fmt: skip
    for number in range(wanted):
        place = number * operations // wanted
        run = folder / f"run-{place}"
        status, said, _ = rl(run, place)
        lines = [line for line in said.splitlines() if line and not line.startswith("warning: ")]
        if status == 0:
            told["ignored"] += 1
        elif status == 2 and len(lines) == 1 and lines[0].startswith("trustclip rl: "):
            told["refused"] += 1
        else:
            told["wrong"].append([place, status, said[-2000:]])
        status, said, _ = rl(run)
        if status != 0:
            told["wrong"].append([place, "again", status, said[-2000:]])
        elif (found := outcome(run)) != whole:
            differ = sorted(k for k in whole | found if whole.get(k) != found.get(k))
            told["wrong"].append([place, "differs", differ])
    return told


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]))))
