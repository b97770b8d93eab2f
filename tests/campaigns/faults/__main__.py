"""``python -m tests.campaigns.faults CAMPAIGN [--seeds N] [--first F] [--jobs J]``.

``--seed S`` replays one. ``--minutes M`` begins no seed after that time, and names the last.

Prints counts as JSON and every seed that failed; the exit status is 1 if one has.
"""

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from . import IMPORTED

#: Failing seeds that are told in full.
SHOWN = 20
#: Campaign, which is a module of this package -> what makes its player there.
CAMPAIGNS = {"runs": "stand_in", "stores": "runs", "real": "runs", "evaluations": "runs"}


def timely(seeds: range, minutes: float) -> Iterator[int]:
    """The seeds for which there is time."""
    end = time.monotonic() + 60 * minutes
    for seed in seeds:
        if time.monotonic() > end:
            return
        yield seed


def play(campaign: str, seeds: Iterable[int]) -> dict[str, Any]:
    """Counts and failures of a campaign's seeds."""
    import torch

    torch.set_num_threads(1)
    sys.path[:0] = IMPORTED
    module = importlib.import_module(f".{campaign}", __package__)
    runs = importlib.import_module(".runs", __package__)
    return runs.campaign(seeds, getattr(module, CAMPAIGNS[campaign]))


def shared(campaign: str, seeds: range, jobs: int) -> dict[str, Any]:
    """`play` by several processes, each of which takes as many of the seeds."""
    size = -(-len(seeds) // jobs)
    parts = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    total: Counter[str] = Counter()
    found: dict[str, Any] = {"failures": {}}
    with ProcessPoolExecutor(jobs) as pool:
        for told in pool.map(partial(play, campaign), parts):
            found["failures"] |= told.pop("failures")
            found["operations of one process"] = told.pop("operations of one process")
            total.update(told)
    return {**dict(sorted(total.items())), **found}


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.campaigns.faults", description=__doc__)
    parser.add_argument("campaign", choices=CAMPAIGNS, nargs="?", default="runs")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, help="no seed begins after them; one process")
    asked = parser.parse_args()
    if asked.seed is not None:
        asked.first, asked.seeds = asked.seed, 1
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.minutes is not None:
        found = play(asked.campaign, timely(seeds, asked.minutes))
        seeds = seeds[: found["schedules"]]
    elif asked.jobs > 1:
        found = shared(asked.campaign, seeds, asked.jobs)
    else:
        found = play(asked.campaign, seeds)
    failures = found.pop("failures")
    print(
        json.dumps(
            {"seeds": f"{seeds.start} to {seeds.stop - 1}", **found, "failed": len(failures)},
            indent=1,
        )
    )
    for seed, story in list(failures.items())[:SHOWN]:
        again = f"python -m tests.campaigns.faults {asked.campaign} --seed {seed}"
        print(f"\nseed {seed}: {story}\nreplay: {again}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
