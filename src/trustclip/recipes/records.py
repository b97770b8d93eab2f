"""A run directory: everything a run is and did, readable without this program.

``config.yaml`` (settings, all of them), ``environment.json``, ``metrics.jsonl`` (a line per logged
step), ``samples.jsonl`` (a line per completion), ``summary.json`` (the outcome), ``final/`` (the
trained model). Lines are appended and flushed as they come: what was computed is on disk.
"""

import dataclasses
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import yaml

import trustclip

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "math-verify")


class RunDirectory:
    """Folder of one run, created with its settings and environment in it.

    Args:
      path: the folder.
      command: name of the command that runs, e.g. ``"rl"``.
      settings: its settings, a dataclass.

    Raises:
      ValueError: the folder already holds a run.
    """

    def __init__(self, path: Path, command: str, settings: Any) -> None:
        if (path / "config.yaml").exists():
            raise ValueError(f"{path} already holds a run; choose another --output-dir.")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.started = time.time()
        (path / "config.yaml").write_text(_config(command, settings))
        write_json(path / "environment.json", environment())

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
        if not (path / "config.yaml").exists():
            return cls(path, command, settings)
        stored = yaml.safe_load((path / "config.yaml").read_text()) or {}
        asked = yaml.safe_load(_config(command, settings))
        for key in {**asked, **stored}:
            if key not in stored or key not in asked or stored[key] != asked[key]:
                raise ValueError(
                    f"{path} holds a run with {key}={stored.get(key)!r}, not {asked.get(key)!r}; "
                    "continue it with the same settings or choose another --output-dir."
                )
        run = cls.__new__(cls)
        run.path, run.started = path, time.time()
        return run

    @property
    def final(self) -> Path:
        """Folder of the trained model."""
        return self.path / "final"

    @property
    def quarantine(self) -> Path:
        """Where unreadable problem rows are listed."""
        return self.path / "quarantine.jsonl"

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        append_jsonl(self.path / "metrics.jsonl", [row])

    def sample(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to ``samples.jsonl``."""
        append_jsonl(self.path / "samples.jsonl", rows)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, whole or not at all."""
        seconds = round(time.time() - self.started, 1)
        write_json(
            self.path / "summary.json",
            {**summary, "seconds": seconds, "versions": environment()["versions"]},
        )


def _config(command: str, settings: Any) -> str:
    config = {"command": command, **_plain(dataclasses.asdict(settings))}
    return yaml.safe_dump(config, sort_keys=False)


def environment() -> dict[str, Any]:
    """Versions and machine, for a run's record and for `trustclip doctor`."""
    versions = {"trustclip": trustclip.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "versions": versions,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "argv": sys.argv[1:],
    }


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
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(_plain(value), file, indent=2, ensure_ascii=False)
        file.write("\n")
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
