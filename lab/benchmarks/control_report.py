"""The runs of the control suite as one file, and the table of docs/lab/control.md from it.

    trustclip control --preset small --seeds 20
    python lab/benchmarks/control_report.py runs/control     # control/runs.parquet, the page
    python lab/benchmarks/control_report.py                  # the page alone

Of the page it writes what is between ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from pyarrow import Table, parquet

from trustclip.support.text import markdown_table
from trustclip_lab.control import PRESETS
from trustclip_lab.control.suite import COLUMNS, cells, lines, middles, rows
from trustclip_lab.pages import filled

ROOT = Path(__file__).parents[2]
RUNS, PAGE = ROOT / "lab/benchmarks/control/runs.parquet", ROOT / "docs/lab/control.md"
SMALL = replace(PRESETS["small"], seeds=20)
#: Symmetric, and as wide as `atr`.
WIDE = "clip 0.375"
#: Shorter names.
LABELS = {
    "{name: clip, epsilon: 0.375}": WIDE,
    "{name: truly_ppo, variant: truly}": "truly_ppo (truly)",
}
#: Numbers of a run.
OUTCOME = ("final", "training", "gated", "k3", "ess")

Outcomes = dict[tuple[str, str], list[dict[str, float]]]


def collect(folder: Path) -> None:
    """Write every run of the suite in ``folder`` as a row."""
    records = []
    for cell in cells(SMALL):
        result = json.loads((folder / cell.path.name).read_text(encoding="utf-8"))
        key = {"env": cell.env, "method": cell.method, "seed": cell.seed}
        records.append(key | {name: float(result["outcome"][name]) for name in OUTCOME})
    parquet.write_table(Table.from_pylist(records), RUNS, compression="zstd")


def read() -> Outcomes:
    """(Environment, method) -> its runs, in the order of the suite."""
    names = [LABELS.get(method, method) for method in SMALL.methods]
    outcomes: Outcomes = {(env, name): [] for env in SMALL.envs for name in names}
    for row in parquet.read_table(RUNS).to_pylist():
        outcome = {name: row[name] for name in OUTCOME}
        method: str = row["method"]
        outcomes[row["env"], LABELS.get(method, method)].append(outcome)
    return outcomes


def blocks() -> dict[str, str]:
    """Text of every block of the page, by name."""
    outcomes = read()
    pair = {key: runs for key, runs in outcomes.items() if key[1] in (WIDE, "atr")}
    shares = [
        (name, f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]")
        for name, one in middles(outcomes, SMALL.base).items()
    ]
    return {
        "control": tables(outcomes, SMALL.base),
        "control-width": tables(pair, WIDE),
        "control-middle": markdown_table(["method", "share of clip's final return"], shares),
    }


def tables(outcomes: Outcomes, base: str) -> str:
    """Final returns, then those while training; p and what follows are of both together."""
    head = [title.format(reference=base) for title in COLUMNS]
    table_lines = list(lines(rows(outcomes, base)))
    final = markdown_table(head[:7], [line[:7] for line in table_lines])
    training = markdown_table(head[:2] + head[7:], [line[:2] + line[7:] for line in table_lines])
    return f"{final}\n\n{training}"


def main() -> None:
    """Collect the runs of a folder, if one is given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="of `trustclip control`")
    if (folder := parser.parse_args().folder) is not None:
        collect(folder)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks()), encoding="utf-8")


if __name__ == "__main__":
    main()
