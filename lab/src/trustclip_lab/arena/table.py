"""The arena's table: one row for each run, as Parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.support.inside import part_of
from trustclip_lab.stack.results import number

Row = dict[str, Any]

#: Columns and how they are stored. ``width`` is the threshold in the constraint's own unit, nan
#: without one; ``fell`` and ``time`` are generations, nan for never; ``passk`` is Pass@K on
#: held-out prompts at the end; ``entropy``, ``k3`` (old to current policy, nats) and ``gated``
#: are means over tokens and generations; ``seconds`` CPU seconds of the stack over its runs.
COLUMNS = {
    "stage": "text", "design": "text", "task": "text", "depth": "int16", "constraint": "text",
    "width": "float64", "label": "text", "learning_rate": "float64", "seed": "int32",
    "generations": "int16", "start": "float32", "end": "float32", "best": "float32",
    "area": "float32", "collapsed": "int8", "fell": "float32", "time": "float32",
    "passk": "float32", "entropy": "float32", "k3": "float32", "gated": "float32",
    "seconds": "float32",
}  # fmt: skip


def parse_row(row: Mapping[str, str]) -> Row:
    """A row of a cell's file, with its numbers.

    Example:
      >>> parse_row({"stage": "test", "depth": "4", "fell": "", "end": "0.5"})
      {'stage': 'test', 'depth': 4, 'fell': nan, 'end': 0.5}
    """
    converters = {"text": str, "int8": int, "int16": int, "int32": int}
    return {name: converters.get(COLUMNS[name], number)(text) for name, text in row.items()}


def write_runs(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table, whole or not at all.

    Args:
      path: of the Parquet file.
      rows: with every one of `COLUMNS`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"text": pa.dictionary(pa.int16(), pa.string())}
    columns = {
        name: pa.array([row[name] for row in rows], kinds.get(kind) or pa.type_for_alias(kind))
        for name, kind in COLUMNS.items()
    }
    part = part_of(path)
    pq.write_table(pa.table(columns), part, compression="zstd", compression_level=19)
    part.replace(path)


def read_runs(path: Path) -> list[Row]:
    """Rows of a table.

    Raises:
      ValueError: the file is not a table of the arena.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}.") from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise ValueError(f"{path} is not a table of the arena: it lacks {', '.join(missing)}.")
    return table.select(list(COLUMNS)).to_pylist()
