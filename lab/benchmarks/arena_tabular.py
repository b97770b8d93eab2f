"""The arena's questions where everything is exact: ``trustclip tabular --preset arena``.

    trustclip tabular --preset arena --out rows.jsonl
    python lab/benchmarks/arena_tabular.py rows.jsonl          # arena-tabular/runs.parquet

lab/benchmarks/arena_report.py writes the page from it.
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trustclip.support.text import markdown_table
from trustclip_lab.tabular import PRESETS, Outcome, Row
from trustclip_lab.tabular.sweep import at_best_rates, head, lines

FILE = Path(__file__).parent / "arena-tabular/runs.parquet"
#: What the preset's last methods are, by their bounds.
LABELS = dict(zip(PRESETS["arena"].methods[-3:], ("twin", "mirrored", "symmetric"), strict=True))
FIELDS = [field.name for field in fields(Outcome)]
KEYS = {"environment": pa.string(), "learning_rate": pa.float64(), "method": pa.string()}


def write(source: Path) -> None:
    """One row for each run, from the JSON lines of the command."""
    rows: list[dict[str, object]] = []
    for text in source.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        key = {name: row[name] for name in KEYS} | {"method": label(row["method"])}
        rows += [{**key, "seed": i, **outcome} for i, outcome in enumerate(row["outcomes"])]
    kinds = {**KEYS, "seed": pa.int32(), **dict.fromkeys(FIELDS, pa.float64())}
    FILE.parent.mkdir(exist_ok=True)
    table = pa.table({n: pa.array([row[n] for row in rows], kind) for n, kind in kinds.items()})
    pq.write_table(table, FILE, compression="zstd", compression_level=19)


def label(method: str) -> str:
    """Short name of a method of the preset."""
    return LABELS.get(method, method)


def read() -> list[Row]:
    """Rows as the command makes them."""
    by_row: dict[tuple[str, float, str], list[Outcome]] = {}
    for row in pq.read_table(FILE).to_pylist():
        key = (row["environment"], row["learning_rate"], row["method"])
        by_row.setdefault(key, []).append(Outcome(*(row[name] for name in FIELDS)))
    return [Row(*key, tuple(outcomes)) for key, outcomes in by_row.items()]


def block() -> str:
    """Each method at its best rate, and all at one rate, as Markdown."""
    rows = read()
    best = at_best_rates(rows, "tree")
    texts = [f"Each at its own rate, on {len(best[0].outcomes)} problems:", _table(best)]
    for rate in dict.fromkeys(row.learning_rate for row in rows):
        own = [row for row in rows if row.learning_rate == rate]
        texts += [f"All at the rate {rate:g}, on {len(own[0].outcomes)} problems:", _table(own)]
    return "\n\n".join(texts)


def _table(rows: list[Row]) -> str:
    columns = 7  # what the exact gates miss is on the theory's side
    cells = [line[:columns] for line in lines(rows, "atr")]
    return markdown_table(head("constraint (rate)", "atr")[:columns], cells)


def main() -> None:
    """Write the table of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="what the command wrote by --out")
    write(parser.parse_args().source)
    print(block())


if __name__ == "__main__":
    main()
