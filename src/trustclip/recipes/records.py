"""A run directory: everything a run is and did, readable without this program.

``config.yaml`` (settings, all of them), ``environment.json``, ``metrics.jsonl`` (a line per logged
step), ``samples.jsonl`` and further shards (a line per completion), ``gates.jsonl`` (a line per
update: gated share of its completions), ``problems.jsonl``, ``summary.json`` (the outcome),
``final/`` (the trained model). Lines are appended and flushed as they come: what was computed is on
disk.
"""

import dataclasses
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import yaml

import trustclip
from trustclip.tasks.problem import Problem

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "math-verify")

#: Files that only grow while a run goes on, and that a resumed run cuts back to its checkpoint.
APPENDED = ("metrics.jsonl", "samples*.jsonl", "gates.jsonl")

#: A shard of samples is followed by another when it has grown past this.
SHARD_BYTES = 64 * 2**20


class RunDirectory:
    """Folder of one run, created with its settings and environment in it.

    Under several ranks the first one creates the folder and writes the records of all; the others
    append only the completions that they have sampled themselves.

    Args:
      path: the folder.
      command: name of the command that runs, e.g. ``"rl"``.
      settings: its settings, a dataclass.

    Raises:
      ValueError: the folder already holds a run.
    """

    def __init__(self, path: Path, command: str, settings: Any) -> None:
        if (path / "config.yaml").exists() and _rank() == 0:
            raise ValueError(f"{path} already holds a run; choose another --output-dir.")
        self._open(path)
        if _rank() == 0:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "environment.json", environment())
            write_text(path / "config.yaml", _config(command, settings))

    @classmethod
    def resumed(cls, path: Path, command: str, settings: Any) -> Self:
        """The run that ``path`` holds, to be continued, or a new one where there is none.

        Args:
          path: the folder.
          command: name of the command that runs.
          settings: its settings, all of them as they were.

        Raises:
          ValueError: the folder holds a run of another command or with other settings.
        """
        if not (path / "config.yaml").exists() or _rank() != 0:
            return cls(path, command, settings)
        stored = _flat(yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {})
        asked = _flat(yaml.safe_load(_config(command, settings)))
        # Where a run lies, and how often it is saved, is no part of what it computes.
        for key in {**asked, **stored}:
            if key.rpartition(".")[2] in ("output_dir", "save_steps", "save_total_limit", "sink"):
                continue
            if key not in stored or key not in asked or stored[key] != asked[key]:
                raise ValueError(
                    f"{path} holds a run with {key}={stored.get(key)!r}, not {asked.get(key)!r}; "
                    "continue it with the same settings or choose another --output-dir."
                )
        run = cls.__new__(cls)
        run._open(path)
        return run

    def _open(self, path: Path) -> None:
        self.path = path
        self._started, self._cpu = time.time(), time.process_time()

    @property
    def leads(self) -> bool:
        """Whether this process writes what belongs to all ranks."""
        return _rank() == 0

    @property
    def final(self) -> Path:
        """Folder of the trained model."""
        return self.path / "final"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def quarantine(self) -> Path:
        """Where unreadable problem rows are listed."""
        return self.path / "quarantine.jsonl"

    @property
    def summary(self) -> dict[str, Any]:
        """What `summarize` wrote, or nothing yet."""
        path = self.path / "summary.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        if self.leads:
            append_jsonl(self.path / "metrics.jsonl", [row])

    def notice(self, step: int, name: str, text: str) -> None:
        """Append what a guard has to say to ``metrics.jsonl``."""
        self.log({"stage": "notice", "step": step, "notice": name, "text": text})

    def sample(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to the newest shard of ``samples.jsonl``."""
        number, rank = 0, f"-rank{_rank()}" if _rank() else ""
        while True:
            suffix = f"-{number:05d}" if number else ""
            shard = self.path / f"samples{rank}{suffix}.jsonl"
            if not shard.exists() or shard.stat().st_size < SHARD_BYTES:
                return append_jsonl(shard, rows)
            number += 1

    def gates(self, row: Mapping[str, Any]) -> None:
        """Append the gated shares of one update's completions to ``gates.jsonl``."""
        append_jsonl(self.path / "gates.jsonl", [row])

    def problems(self, problems: Iterable[Problem], task: str | None = None) -> None:
        """Write down the problems used, unless they are already."""
        path = self.path / "problems.jsonl"
        known = {(row["task"], row["id"]) for row in read_jsonl(path)} if path.exists() else set()
        if self.leads:
            append_jsonl(
                path,
                [
                    {"id": p.id, "task": task, "problem": p.problem, "answer": p.answer}
                    for p in problems
                    if (task, p.id) not in known
                ],
            )

    def cursor(self) -> dict[str, int]:
        """Sizes of the files that grow, once they are safely on disk."""
        sizes = {}
        for path in self._appended():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[path.name] = path.stat().st_size
        return sizes

    def rewind(self, cursor: Mapping[str, int]) -> None:
        """Cut the files that grow back to a `cursor`; what came after will come again.

        Raises:
          ValueError: a file is shorter than it was: something was lost that will not come again.
        """
        for path in self._appended():
            size = cursor.get(path.name)
            if size is None:
                path.unlink()
            elif path.stat().st_size > size:
                os.truncate(path, size)
        for name, size in cursor.items():
            path = self.path / name
            if not path.exists() or path.stat().st_size < size:
                raise ValueError(f"{path} has lost lines since the checkpoint: {size} bytes then.")

    def _appended(self) -> list[Path]:
        return sorted(path for pattern in APPENDED for path in self.path.glob(pattern))

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, whole or not at all."""
        spent = {
            "seconds": round(time.time() - self._started, 1),
            "cpu_seconds": round(time.process_time() - self._cpu, 1),
        }
        if self.leads:
            write_json(self.path / "summary.json", {**summary, **spent, "versions": versions()})


def samples(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of all shards of a run directory's samples, in the order they were written."""
    for path in sorted(folder.glob("samples*.jsonl"), key=lambda path: path.stem):
        yield from read_jsonl(path)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _config(command: str, settings: Any) -> str:
    config = {"command": command, **_plain(dataclasses.asdict(settings))}
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def versions() -> dict[str, str]:
    """Versions of what results depend on."""
    found = {"trustclip": trustclip.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def environment() -> dict[str, Any]:
    """Versions and machine, for a run's record and for `trustclip doctor`."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "argv": sys.argv[1:],
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Commit of the working directory's repository, and whether it has changes; None without."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "changed": bool(git("status", "-s"))}
    except (OSError, subprocess.SubprocessError):
        return None


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows as JSON lines, in one write, flushed.

    A number that is not finite becomes null: JSON has no other word for it.
    """
    text = "".join(json.dumps(_plain(row), ensure_ascii=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line torn by a kill is left out.

    Raises:
      ValueError: a line other than the last is no JSON.
    """
    # By bytes: a completion may hold characters that text mode takes for the end of a line, and a
    # kill may cut one in half.
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{path}:{number} is no JSON: {error}") from error
    return rows


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
