"""Runs the missing cases of one stage in a separate process, so that none can break another.

``python -m trustclip_lab.bench.gpu.worker STAGE --out FOLDER --device cuda --seconds 100``
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from trustclip_lab.bench.gpu.box import clocks
from trustclip_lab.bench.gpu.cases import CannotRun, Case, Place, Row, stage

#: Exit status of a process whose device takes no more work.
BROKEN = 75


def run_cases(name: str, place: Place, done: Sequence[str], seconds: float, box: str = "") -> int:
    """Run the cases of a stage that are not done, while there is time.

    Args:
      name: of the stage.
      place: where.
      done: keys of cases to leave out.
      seconds: a case that would take longer than what is left of them is not begun.
      box: identifies the machine in the rows.

    Returns:
      0, or `BROKEN` after an error that the device does not recover from.
    """
    end = time.monotonic() + seconds
    for case in stage(name).cases(place):
        expected = case.seconds if place.cuda else min(case.seconds, 10.0)
        if case.key in done or time.monotonic() + expected > end:
            continue
        (place.folder / "begun").write_text(case.key, encoding="utf-8")
        row, broken = outcome(name, case, place)
        append(place.folder, replace(row, box=box))
        (place.folder / "begun").unlink()
        if broken:
            return BROKEN
    return 0


def outcome(name: str, case: Case, place: Place) -> tuple[Row, bool]:
    """Run a case; whatever it raises becomes a row."""
    print(f"{name}: {case.key}", flush=True)
    started, broken = time.monotonic(), False
    try:
        row = Row(name, case.key, "done", values=case.run(place))
    except CannotRun as reason:
        row = Row(name, case.key, "cannot", str(reason))
    except (ImportError, ModuleNotFoundError) as error:
        row = Row(name, case.key, "cannot", f"a package cannot be imported here: {error}")
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())
        row = Row(name, case.key, "failed", f"{type(error).__name__}: {text[:300]}")
        broken = "CUDA error" in text
    return replace(row, seconds=time.monotonic() - started, clocks=clocks()), broken


def append(folder: Path, row: Row) -> None:
    """Add a row to the session's journal, safe on disk."""
    line = json.dumps(asdict(row)).replace("NaN", "null")
    with open(folder / "cases.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stage")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--box", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--done", default="[]")
    args = parser.parse_args(argv)
    place = Place(args.device, args.tiny, args.out)
    return run_cases(args.stage, place, json.loads(args.done), args.seconds, args.box)


if __name__ == "__main__":
    sys.exit(main())
