"""The runs of the experiment with SmolLM2 as small tables: what each generation scored and did.

    trustclip suite recipes/suites/trust-regions.yaml
    python benchmarks/smollm2.py runs/trust-regions    # as often as runs have ended
    python benchmarks/smollm2.py --remaining FOLDER    # suites of the runs that the tables lack

It adds the finished runs of the folder to benchmarks/smollm2/generations.parquet (a row for each
generation of a run) and answers.parquet (a row for each held-out problem); a run that is there
already must be the same. No texts are kept.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from trustclip.logs.reader import find, read_run
from trustclip.logs.run import Run

FOLDER = Path(__file__).with_name("smollm2")
SUITE = Path(__file__).parents[1] / "recipes/suites/trust-regions.yaml"
RATE = "rl.learning_rate"
#: Columns that say which run a row is of.
KEY = ("arm", "rate", "seed")
#: Means over the updates of a generation, by their names in metrics.jsonl.
LOGGED = {
    "gated": "trustclip/gated",
    "k3": "trustclip/k3",
    "entropy": "trustclip/entropy",
    "skipped": "trustclip/skipped",
    "sampler": "trustclip/sampler/abs",
}


def generations_of(run: Run) -> Iterator[dict[str, Any]]:
    """A row for each generation: how many completions were right, and means over its updates."""
    rewards, lengths = defaultdict(list), defaultdict(list)
    for row in _rows(run.path / "samples.jsonl"):
        if row["stage"] == "rl":
            rewards[row["step"]].append(row["reward"])
            lengths[row["step"]].append(row["tokens"])
    logged = [row for row in _rows(run.path / "metrics.jsonl") if row.get("stage") == "rl"]
    starts = sorted(rewards)
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], 10**9], strict=True), start=1):
        updates = [row for row in logged if start < row["step"] <= end]
        yield {
            **key_of(run),
            "generation": number,
            "updates": len(updates),
            "completions": len(rewards[start]),
            "right": int(sum(rewards[start])),
            "length": sum(lengths[start]) / len(lengths[start]),
            **{name: _mean(updates, theirs) for name, theirs in LOGGED.items()},
        }


def answers_of(run: Run) -> Iterator[dict[str, Any]]:
    """A row for each evaluation and held-out problem: samples, and how many are right."""
    counts: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in _rows(run.path / "samples.jsonl"):
        if row["stage"] == "eval":
            counts[row["step"], row["id"]].append(row["correct"])
    for (step, problem), right in counts.items():
        yield {
            **key_of(run),
            "update": step,
            "problem": problem,
            "samples": len(right),
            "right": sum(right),
        }


def key_of(run: Run) -> dict[str, Any]:
    """Arm, learning rate and seed of a run; what follows `_` in a label tells its runs apart."""
    return {
        "arm": run.entry["label"].partition("_")[0],
        "rate": run.config["rl"]["learning_rate"],
        "seed": run.config["seed"],
    }


def made_of(run: Run) -> dict[str, Any]:
    """By what a run was made: commit, kind of processor and version of PyTorch."""
    facts = run.environment
    git = facts["git"] or {"commit": "unknown", "changed": True}
    return {
        "commit": git["commit"] + ("+changes" if git["changed"] else ""),
        "processor": facts["processor"],
        "torch": facts["versions"]["torch"],
    }


def collect(
    folders: Sequence[Path], to: Path, key: Sequence[str] = KEY, *, made: bool = False
) -> int:
    """Add the finished runs of folders to the tables; the number of those runs.

    Args:
      folders: of runs or of suites.
      to: folder of the tables.
      key: columns that say which run a row is of.
      made: whether each row says by what its run was made, `made_of`.
    """
    runs = [run for path in find(folders) if (run := read_run(path)).summary.get("finished")]
    runs = [run for run in runs if run.entry.get("method") is not None]
    to.mkdir(parents=True, exist_ok=True)
    for name, rows_of in (("generations", generations_of), ("answers", answers_of)):
        rows = [row | (made_of(run) if made else {}) for run in runs for row in rows_of(run)]
        if rows:
            added(to / f"{name}.parquet", rows, key)
    return len(runs)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None


def added(path: Path, rows: Sequence[dict[str, Any]], key: Sequence[str] = KEY) -> int:
    """Add rows of runs that a table lacks, whole or not at all; the number of its runs.

    Args:
      path: of the table.
      rows: of one run or of several.
      key: columns that say which run a row is of.

    Raises:
      ValueError: a run is in the table with other rows.
    """
    known = pq.read_table(path).to_pylist() if path.exists() else []
    before, new = _by_run(known, key), _by_run(rows, key)
    for run, own in new.items():
        if run in before and json.dumps(before[run]) != json.dumps(own):
            raise ValueError(f"{path}: the run {run} is there already, and differs.")
    merged = before | new
    table = [row for run in sorted(merged) for row in merged[run]]
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(table), part, compression="zstd")
    part.replace(path)
    return len(merged)


def _by_run(
    rows: Sequence[dict[str, Any]], key: Sequence[str]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in key)].append(row)
    return found


def remaining(suite: Path, tables: Path) -> Iterator[dict[str, Any]]:
    """The suites, in the order of their blocks, whose runs are those that the tables lack.

    One holds all blocks of which nothing is there. A block that was begun has its own, or two where
    the two rates lack different arms. Their recipe is the one that comes with the package.

    Args:
      suite: of all runs.
      tables: folder of the tables; all runs are lacking where there are none.
    """
    plan = yaml.safe_load(suite.read_text(encoding="utf-8"))
    path = tables / "answers.parquet"
    known = pq.read_table(path).to_pylist() if path.exists() else []
    there = {tuple(row[name] for name in KEY) for row in known}
    groups: dict[tuple[tuple[str, ...], tuple[float, ...]], list[int]] = defaultdict(list)
    for seed in plan["seeds"]:
        rates = defaultdict(list)
        for rate in plan["sweep"][RATE]:
            rates[tuple(arm for arm in plan["methods"] if (arm, rate, seed) not in there)] += [rate]
        for arms, own in rates.items():
            if arms:
                groups[arms, tuple(own)].append(seed)
    for number, ((arms, own), seeds) in enumerate(groups.items(), start=1):
        name = f"{plan['name']}-from-{seeds[0]}-{number}"
        yield {
            **plan,
            "name": name,
            "recipe": Path(plan["recipe"]).stem,
            "output_dir": f"runs/{name}",
            "seeds": seeds,
            "methods": {arm: plan["methods"][arm] for arm in arms},
            "reference": arms[0],
            "sweep": plan["sweep"] | {RATE: list(own)},
        }


def main() -> None:
    """Add the finished runs of the folders that are named, or write suites of those lacking."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the tables")
    parser.add_argument("--remaining", type=Path, help="folder for the suites of what is lacking")
    options = parser.parse_args()
    if bool(options.folders) == bool(options.remaining):
        parser.error("give folders of runs, or --remaining FOLDER")
    if options.remaining:
        options.remaining.mkdir(parents=True, exist_ok=True)
        for plan in remaining(SUITE, options.to):
            file = options.remaining / f"{plan['name']}.yaml"
            file.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
            print(f"trustclip suite {file}")
        return
    print(f"{collect(options.folders, options.to)} finished runs are in {options.to}")


if __name__ == "__main__":
    main()
