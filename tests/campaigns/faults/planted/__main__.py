"""Planted bugs caught: ``python -m tests.campaigns.faults.planted [--only N ...] [--jobs J]``.

``--seeds stores=300 runs=150 evaluations=40`` are the seeds of each campaign that are played on a
bug. Prints a line for each bug and, at the end, caught / planted. The exit status is 1 if more than
`SPARED` of all survive, or one of those asked for by ``--only``; 2 if a bug
no longer applies, or a campaign fails without one.
"""

import argparse
import importlib
import multiprocessing
import sys
from collections.abc import Sequence
from typing import Any

from . import ROOT, SEEDS, Bug, Notice, PlantError, bugs, noticed, without

#: Bugs that may survive.
SPARED = 1
#: What every campaign imports: once, before the processes part that each import another library.
HEAVY = (
    "torch", "transformers.trainer", "datasets", "pyarrow.parquet", "safetensors.torch", "pytest",
    "rich.console", "scipy.stats", "accelerate", "yaml",
    "torch.distributed.checkpoint.hf_storage", "torch.distributed.tensor",
)  # fmt: skip


def caught(chosen: Sequence[Bug], seeds: dict[str, int], jobs: int) -> dict[int, Notice]:
    """What notices each bug, by its number; each is played in a process of its own."""
    found: dict[int, Notice] = {}
    asked = [(bug, seeds) for bug in chosen]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for bug, by in zip(chosen, pool.imap(noticed, asked, chunksize=1), strict=True):
            found[bug.number] = by
            print(f"{bug.number:3} {told(by):45} {bug.name}", flush=True)
        fail = pool.apply(without, (frozenset(by for by in found.values() if by),))
    if fail:
        raise PlantError(f"these fail without a bug as well: {sorted(map(str, fail))}")
    return found


def told(by: Notice) -> str:
    if isinstance(by, str):
        return by.partition("::")[0] or "NOT CAUGHT"
    return f"{by[0]}, " + ("undisturbed" if by[1] is None else f"seed {by[1]}")


def _numbers(texts: Sequence[str]) -> dict[str, int]:
    given = dict(text.split("=") for text in texts)
    return {name: int(given.get(name, SEEDS[name])) for name in SEEDS}


def main() -> int:
    parser: Any = argparse.ArgumentParser(
        "python -m tests.campaigns.faults.planted", description=__doc__
    )
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="numbers of bugs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seeds", nargs="+", default=[], metavar="CAMPAIGN=N")
    asked = parser.parse_args()
    chosen = [bug for bug in bugs() if not asked.only or bug.number in asked.only]
    try:
        for bug in chosen:
            bug.planted((ROOT / "src" / "trustclip" / bug.file).read_text())
        for name in HEAVY:
            importlib.import_module(name)
        found = caught(chosen, _numbers(asked.seeds), asked.jobs)
    except PlantError as error:
        print(error, file=sys.stderr)
        return 2
    missed = [number for number, by in found.items() if not by]
    print(f"caught {len(found) - len(missed)} / {len(found)} planted")
    return int(len(missed) > (0 if asked.only else SPARED))


if __name__ == "__main__":
    sys.exit(main())
