"""The runs of docs/smollm2-width-plan.md: width and learning rate of a trust region, SmolLM2.

    git worktree add --detach ../width COMMIT    # the commit whose program makes the runs
    cd ../width
    OMP_NUM_THREADS=1 setsid nohup nice -n 5 taskset -c 0 \
        python benchmarks/smollm2_width.py runs/width > ../width.log 2>&1 &

It runs what the tables lack, first the calibration of the controller, then the blocks, and after
the first one the controls. Each run is added to the tables in runs/width/tables when it ends. They
begin as a copy of the committed ones, benchmarks/smollm2-width/, and are copied there to be
committed, in another work tree: in this one they would be changes to the commit that makes the
runs. Started again after any interruption it goes on; `kill -TERM -- -PID` asks it to save and
stop. The runs with the controller are made once `HELD` is set; the others do not wait for it.
"""

import argparse
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from smollm2 import KEY as RUN
from smollm2 import RATE, SUITE, added, collect, made_of
from smollm2_controls import CONTROL, INERT, rows_of, twin_of

import trustclip as tc
from trustclip.logs.reader import find, read_run
from trustclip.logs.writing.environment import processor

FOLDER = Path(__file__).with_name("smollm2-width")
#: Columns that say which run a row is of.
KEY = (*RUN, "processor")
#: Blocks of the grid, and seeds that are for calibration alone.
SEEDS, CALIBRATION = tuple(range(8, 18)), (900, 901)
RATES = (1.6e-4, 2.77e-4, 4.8e-4)
WIDTHS = (0.1, 0.2, 0.4)
#: Rate at which shapes of one width are compared.
MIDDLE = RATES[1]
DELTA = 0.07
#: What the controller holds k3 at, nats, and by what factor its mean may miss that.
TARGET, FACTOR = 0.015, 1.5
#: Rates of the controller, in the order in which calibration tries them; see the plan.
GAINS = (0.03, 0.01, 0.1)
#: The one that calibration has chosen; see the plan. None until then.
HELD: float | None = 0.1
#: Seconds between looks for runs that have ended.
PATIENCE = 30.0


def held_at(gain: float) -> dict[str, Any]:
    """The clip whose threshold moves so that k3 stays at `TARGET`."""
    hold = {"controller": "target_kl", "kl": TARGET, "rate": gain, "low": 0.01, "high": 0.8}
    return {"name": "clip", "epsilon": hold | {"initial": 0.2}}


def shapes() -> dict[str, dict[str, Any]]:
    """Constraints of the log width of `atr`: itself, its log mirror, and the symmetric one."""
    low, high = map(float, tc.interval("atr", delta=DELTA))
    half = math.sqrt(high / low)
    return {
        "atr": {"name": "atr", "delta": DELTA},
        "mirrored": {"name": "clip_higher", "low": 1 - 1 / high, "high": 1 / low - 1},
        "symmetric": {"name": "clip_higher", "low": 1 - 1 / half, "high": half - 1},
    }


def arms(held: float | None) -> dict[str, tuple[dict[str, Any], tuple[float, ...]]]:
    """Every arm with its method and its rates; the adaptive one only where its gain is known."""
    grid = {f"clip-{width}": ({"name": "clip", "epsilon": width}, RATES) for width in WIDTHS}
    alike = {name: (method, (MIDDLE,)) for name, method in shapes().items()}
    return grid | alike | ({} if held is None else {"held": (held_at(held), RATES)})


Arms = Mapping[str, tuple[Mapping[str, Any], Sequence[float]]]


def suite(
    name: str, folder: Path, seeds: Sequence[int], runs: Arms, changes: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """A suite of these arms, a label for each rate; all else is that of the first experiment.

    Args:
      name: of the suite, and of its folder.
      folder: of all runs.
      seeds: of the blocks.
      runs: method and rates of each arm.
      changes: to every run.
    """
    plan = yaml.safe_load(SUITE.read_text(encoding="utf-8"))
    del plan["sweep"]
    labels = {
        f"{arm}_{rate}": (method, rate) for arm, (method, rates) in runs.items() for rate in rates
    }
    return plan | {
        "name": name,
        "recipe": str((SUITE.parent / plan["recipe"]).resolve()),
        "output_dir": str(folder / name),
        "seeds": list(seeds),
        "changes": plan["changes"] | {"rl.save": "adapter"} | dict(changes),
        "methods": {label: dict(method) for label, (method, _) in labels.items()},
        "method_changes": {label: {RATE: rate} for label, (_, rate) in labels.items()},
        "reference": next(iter(labels)),
    }


def run(plan: Mapping[str, Any], tables: Path | None) -> None:
    """Run what is left of a suite; runs are added to the tables as they end.

    Raises:
      subprocess.CalledProcessError: runs have failed three times, or were stopped.
    """
    out = Path(plan["output_dir"])
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.parent / f"{plan['name']}.yaml"
    file.write_text(yaml.safe_dump(dict(plan), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "trustclip", "suite", str(file)]
    added_before: set[Path] = set()
    for last in (False, False, True):
        process = subprocess.Popen(command)
        while process.poll() is None:
            time.sleep(PATIENCE)
            added_before |= _harvest(out, tables, added_before)
        _harvest(out, tables, added_before)
        if process.returncode == 0:
            return
        if last or process.returncode > 128:
            raise subprocess.CalledProcessError(process.returncode, command)


def _harvest(out: Path, tables: Path | None, known: set[Path]) -> set[Path]:
    """Add runs that have ended since to the tables; their folders."""
    new = {path.parent for path in out.glob("*-seed*/summary.json")} - known
    new = {path for path in new if read_run(path).summary.get("finished")}
    if new and tables is not None:
        collect(sorted(new), tables, KEY, made=True)
    return new


def k3_held(tables: Path) -> dict[float, dict[float, float]]:
    """Mean k3 of generations 4 to 16 over both seeds of calibration, by gain and rate."""
    path = tables / "calibration" / "generations.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    found: dict[float, dict[float, float]] = {}
    for gain in GAINS:
        for rate in RATES:
            seen = [
                row["k3"]
                for row in rows
                if (row["arm"], row["rate"]) == (f"held-{gain}", rate) and row["generation"] >= 4
            ]
            if len(seen) >= 13 * len(CALIBRATION):
                found.setdefault(gain, {})[rate] = sum(seen) / len(seen)
    return found


def chosen(tables: Path) -> float | None:
    """The gain that the plan's rule takes: the first that holds k3, else the one nearest to it.

    None as long as calibration has more to try.
    """
    known = {gain: by for gain, by in k3_held(tables).items() if len(by) == len(RATES)}
    miss = {g: max(abs(math.log(k / TARGET)) for k in by.values()) for g, by in known.items()}
    for gain in GAINS:
        if gain not in miss:
            return None
        if miss[gain] <= math.log(FACTOR):
            return gain
    return min(miss, key=lambda gain: miss[gain])


def calibrate(folder: Path, tables: Path) -> None:
    """Try the controller's settings until the rule of the plan takes one."""
    for gain in GAINS:
        if chosen(tables) is not None:
            return
        ends_first = (RATES[-1], RATES[0], MIDDLE)
        plan = {f"held-{gain}": (held_at(gain), ends_first)}
        name = f"calibration-{gain}"
        run(suite(name, folder, CALIBRATION, plan), tables / "calibration")


def control(folder: Path, tables: Path, seed: int) -> None:
    """The exact twin of `atr` in a block, and one update a generation under every fixed arm."""
    path = tables / "controls.parquet"
    if path.exists():
        return
    twin = {"twin": (twin_of(DELTA), (MIDDLE,))}
    inert = {name: (method, (MIDDLE,)) for name, (method, _) in arms(None).items()}
    run(suite("twin", folder, [seed], twin), None)
    run(suite("inert", folder, [seed], inert, INERT), None)
    asked = [
        ("twin", folder / "twin"),
        ("inert", folder / "inert"),
        ("twin", folder / f"block-{seed}"),
    ]
    rows = []
    for name, place in asked:
        for one in map(read_run, find([place])):
            of_atr = one.seed == seed and one.entry["label"].startswith("atr_")
            if not place.name.startswith("block") or of_atr:
                rows += [row | made_of(one) for row in rows_of(name, [one])]
    added(path, rows, CONTROL)


def there(tables: Path) -> dict[int, dict[str, set[tuple[str, float]]]]:
    """Arm and rate of the runs in the tables, by block and by kind of processor."""
    path = tables / "answers.parquet"
    columns = ["arm", "rate", "seed", "processor"]
    rows = pq.read_table(path, columns=columns).to_pylist() if path.exists() else []
    found: dict[int, dict[str, set[tuple[str, float]]]] = {}
    for row in rows:
        kinds = found.setdefault(row["seed"], {})
        kinds.setdefault(row["processor"], set()).add((row["arm"], row["rate"]))
    return found


def blocks(folder: Path, tables: Path, runs: Arms) -> Iterator[tuple[int, Arms]]:
    """The blocks that are not finished, with the arms that lack a run or have a folder here.

    A block that only another kind of processor has begun comes last: it may be finished there, and
    is made whole here otherwise.
    """
    kind, known = processor(), there(tables)
    asked = {(arm, rate) for arm, (_, rates) in runs.items() for rate in rates}
    elsewhere = [seed for seed in SEEDS if seed in known and kind not in known[seed]]
    for seed in sorted(SEEDS, key=lambda seed: (seed in elsewhere, seed)):
        if any(asked <= made for made in known.get(seed, {}).values()):
            continue
        mine = known.get(seed, {}).get(kind, set())
        here = {path.name.partition("-seed")[0] for path in folder.glob(f"block-{seed}/*-seed*")}
        left = {
            arm: (method, [r for r in rates if (arm, r) not in mine or f"{arm}_{r}" in here])
            for arm, (method, rates) in runs.items()
        }
        yield seed, {arm: (method, rates) for arm, (method, rates) in left.items() if rates}


def main() -> None:
    """Run what the tables lack, in the order of the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the runs, and of the tables to begin with")
    folder: Path = parser.parse_args().folder
    tables = folder / "tables"
    if FOLDER.exists() and not tables.exists():
        shutil.copytree(FOLDER, tables)
    if HELD is None:
        calibrate(folder, tables)
    for seed, left in blocks(folder, tables, arms(HELD)):
        run(suite(f"block-{seed}", folder, [seed], left), tables)
        control(folder, tables, seed)


if __name__ == "__main__":
    main()
