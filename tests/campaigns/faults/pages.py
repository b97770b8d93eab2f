"""Damaged run directories: a report of what is there, or one sentence, and never a traceback.

From the seed: which files of a run are damaged and how, by bytes (flipped, cut, doubled, emptied,
gone, a folder or a link in their place) or by meaning (a value of one row replaced by an odd one).
"""

import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import synthetic_runs
import yaml
from patience import NEVER
from synthetic_runs import undrawn

from trustclip.cli.main import main

from . import runs as base_runs
from .runs import LostError, memory_folder

#: Values that no run writes where others stand.
ODD = (
    None, True, -1, 0, 10**30, 1e308, 5e-324, "", "x", "-", "\u202e\x1b[2J", "</script>",
    "a" * 9999, [], {}, [[1]], [None], {"a": [1]}, {"": 1}, "NaN", "2026-01-01",
)  # fmt: skip


class Pages:
    """Reports of damaged copies of one suite of two runs."""

    operations = 0

    def __init__(self, base: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._whole, self._copy, self._out = base / "whole", base / "copy", base / "page"
        specs = {
            name: synthetic_runs.Spec({"name": name}, steps=8, every=4, k=2, tasks={"made": 4})
            for name in ("atr", "clip")
        }
        synthetic_runs.make_suite(self._whole, specs, seeds=(0,))

    def play(self, seed: int) -> list[str]:
        """Damage a copy as the seed says, and ask for its report."""
        dice, story = random.Random(seed), list[str]()
        base_runs.emptied(self._copy)
        shutil.copytree(self._whole, self._copy, dirs_exist_ok=True)
        for _ in range(dice.choice((1, 1, 2, 4))):
            files = sorted(path for path in self._copy.rglob("*") if path.is_file())
            if files:
                path = dice.choice(files)
                story.append(f"{path.relative_to(self._copy)}: {damage(path, dice)}")
        which = [self._copy] if dice.random() < 0.5 else sorted(self._copy.glob("*-seed*"))
        status, said = self._report(which or [self._copy], story)
        page = self._out / "index.html"
        if status == 0 and page.is_file() and page.stat().st_size > 10_000:
            self.counts["pages"] += 1
        elif status == 2 and said.startswith("trustclip report: ") and "Traceback" not in said:
            self.counts["sentences"] += 1
        else:
            raise LostError(f"status {status}, {said[-1500:]!r} after: {'; '.join(story)}")
        return story

    def _report(self, runs: list[Path], story: list[str]) -> tuple[int, str]:
        """Status and stderr of ``trustclip report``, without its figures."""
        base_runs.emptied(self._out)
        said = StringIO()
        command = ["report", *map(str, runs), "--output-dir", str(self._out)]
        with (
            mock.patch("trustclip.report.draw.figures.draw", undrawn),
            redirect_stderr(said),
            redirect_stdout(StringIO()),
        ):
            signal.alarm(round(NEVER))
            try:
                return main(command), said.getvalue()
            except SystemExit as error:
                return int(error.code or 0), said.getvalue()
            except BaseException as error:
                trace = sys.exc_info()[2]
                while trace and trace.tb_next:
                    trace = trace.tb_next
                place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
                text = f"{error!r} at {place} after: {'; '.join(story)}"
                raise LostError(text) from error
            finally:
                signal.alarm(0)


def _hangs(*_: object) -> None:
    raise LostError("the report waits for ever")


def damage(path: Path, dice: random.Random) -> str:
    """Damage a file; what was done, in words."""
    if path.suffix in (".json", ".jsonl", ".yaml") and dice.random() < 0.6:
        return _odd_value(path, dice)
    content = bytearray(path.read_bytes())
    how = dice.choice(("flip", "cut", "double", "empty", "noise", "gone", "folder", "link", "fifo"))
    if how == "flip" and content:
        for _ in range(dice.choice((1, 3, 50))):
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    elif how == "cut":
        del content[dice.randrange(len(content) + 1) :]
    elif how == "double":
        content *= 2
    elif how == "empty":
        content = bytearray()
    elif how == "noise":
        place = dice.randrange(len(content) + 1)
        content[place : place + 200] = dice.randbytes(200)
    if how not in ("gone", "folder", "link", "fifo"):
        path.write_bytes(content)
        return how
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(path)
    elif how == "fifo":
        os.mkfifo(path)
    return how


def _odd_value(path: Path, dice: random.Random) -> str:
    """Replace one value, or one key, by an odd one."""
    text = path.read_text(errors="replace")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    number = dice.randrange(len(lines)) if lines else 0
    try:
        value = (
            yaml.safe_load(lines[number]) if path.suffix == ".yaml" else json.loads(lines[number])
        )
    except (ValueError, IndexError, yaml.YAMLError):
        return "unchanged"
    odd, holder = dice.choice(ODD), value
    where = ""
    while isinstance(holder, dict | list) and holder:
        key: Any = (
            dice.choice(list(holder)) if isinstance(holder, dict) else dice.randrange(len(holder))
        )
        where += f".{key}"
        if not isinstance(holder[key], dict | list) or not holder[key] or dice.random() < 0.3:
            if dice.random() < 0.2:
                del holder[key]
                where += " removed"
            else:
                holder[key] = odd
                where += f" = {odd!r}"[:60]
            break
        holder = holder[key]
    else:
        value = odd
    dumped = yaml.safe_dump(value) if path.suffix == ".yaml" else json.dumps(value)
    lines[number] = dumped
    path.write_text("\n".join(lines) + "\n")
    return f"line {number + 1}: {where}"


def campaign(seeds: Iterable[int]) -> dict[str, Any]:
    """Play every seed; see `faults.runs.campaign`."""
    signal.signal(signal.SIGALRM, _hangs)
    with memory_folder() as base:
        return base_runs.played(seeds, Pages(base))
