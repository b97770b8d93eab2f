"""The controls of docs/smollm2-plan.md: an exact twin, and updates on which nothing can act.

    python benchmarks/smollm2_controls.py runs/controls runs/trust-regions-* --seed 5

The twin of `atr` is clip-higher with its bounds to fifteen digits: in a block, at both rates, every
answer and every weight must be those of `atr`, whose runs are in the other folders. With one update
a generation every ratio is 1: two generations of the four arms must be the same. It adds a row for
each of these runs, with hashes of its answers and weights, to benchmarks/smollm2/controls.parquet.
Finished runs are not made again; all runs must be of one machine.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from smollm2 import FOLDER, KEY, RATE, SUITE, added, key_of

import trustclip as tc
from trustclip.logs.reader import find, read_run
from trustclip.logs.run import Run

#: Columns that say which run a row is of.
CONTROL = ("control", *KEY)
#: Two generations of one update each, at which no constraint can act.
INERT = {
    "rl.gradient_accumulation_steps": 8,
    "rl.num_iterations": 1,
    "rl.max_steps": 2,
    "rl.save_steps": 2,
    "rl.allow_inert": True,
}


def twin_of(delta: float) -> dict[str, Any]:
    """Clip-higher with the bounds of `atr` to fifteen digits, of the same gradient."""
    low, high = map(float, tc.interval("atr", delta=delta))
    return {"name": "clip_higher", "low": round(1 - low, 15), "high": round(high - 1, 15)}


def suites(suite: Path, folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """The suites of both controls, by name.

    Args:
      suite: of the experiment.
      folder: of the runs.
      seed: of the block.
    """
    plan = yaml.safe_load(suite.read_text(encoding="utf-8"))
    plan |= {"recipe": str((suite.parent / plan["recipe"]).resolve()), "seeds": [seed]}
    twin = twin_of(plan["methods"]["atr"]["delta"])
    made = {
        "twin": plan | {"methods": {"twin": twin}, "reference": "twin"},
        "inert": plan
        | {"changes": plan["changes"] | INERT}
        | {"sweep": plan["sweep"] | {RATE: [max(plan["sweep"][RATE])]}},
    }
    return {
        name: one | {"name": name, "output_dir": str(folder / name)} for name, one in made.items()
    }


def runs_of(suite: Mapping[str, Any], folder: Path) -> list[Run]:
    """The runs of a suite, made where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{suite['name']}.yaml"
    file.write_text(yaml.safe_dump(dict(suite), sort_keys=False), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "trustclip", "suite", str(file)], check=True)
    return [read_run(path) for path in find([Path(suite["output_dir"])])]


def rows_of(control: str, runs: list[Run]) -> Iterator[dict[str, Any]]:
    """A row for each trained run: hashes of all of its answers, and of its weights."""
    for run in runs:
        if run.entry.get("method") is None or not run.summary.get("finished"):
            continue
        answers = hashlib.sha256()
        for line in (run.path / "samples.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            told = [row["stage"], row["step"], row["id"], row["response"]]
            answers.update(json.dumps(told).encode())
        weights = hashlib.sha256()
        for file in sorted((run.path / "final").glob("*.safetensors")):
            weights.update(file.read_bytes())
        yield {
            "control": control,
            **key_of(run),
            "answers": answers.hexdigest(),
            "weights": weights.hexdigest(),
        }


def main() -> None:
    """Make what is not there yet, and add its rows to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the runs of the controls")
    parser.add_argument("experiment", type=Path, nargs="+", help="folders of the block's runs")
    parser.add_argument("--seed", type=int, default=0, help="of the block, made on this machine")
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    plans = suites(options.suite, options.folder, options.seed)
    found = {name: runs_of(one, options.folder) for name, one in plans.items()}
    experiment = [read_run(path) for path in find(options.experiment)]
    block = [run for run in experiment if run.seed == options.seed]
    found["twin"] += [run for run in block if run.entry["label"] == "atr"]
    options.to.mkdir(exist_ok=True)
    rows = [row for name, runs in found.items() for row in rows_of(name, runs)]
    print(f"{added(options.to / 'controls.parquet', rows, CONTROL)} runs in controls.parquet")


if __name__ == "__main__":
    main()
