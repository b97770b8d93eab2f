"""Parquet files of others, row by row and within bounds: a thousand bytes can hold a billion zeros.

What a file holds follows from its own description before anything is unpacked, and from its texts
before they are written out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustclip.support.reading import opened

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Values in lists, and different texts, in a row group, over the columns that are read.
MOST_VALUES, MOST_TEXTS = 32_000_000, 4_000_000
#: Bytes of a row group, unpacked, and of a row, written out.
MOST_BYTES = 256 << 20
#: How many times its size in the file a row group may take above that.
MOST_PACKED = 16
#: Rows that are unpacked at once.
ROWS = 64
#: Bytes of such rows, written out, above which they are written out one by one.
MOST_AT_ONCE = 16 << 20


def columns(path: Path) -> list[str]:
    """Names of the columns of a file."""
    with _opened(path) as file:
        return file.schema_arrow.names


def rows(
    path: Path,
    wanted: Sequence[str] | None = None,
    *,
    most_bytes: int = MOST_BYTES,
) -> Iterator[dict[str, Any]]:
    """Rows of a file, of the wanted columns or of all.

    Args:
      path: the file.
      wanted: columns to read.
      most_bytes: what a row group may take unpacked, where it is packed `MOST_PACKED`-fold at
        most; another one may take `MOST_BYTES`.

    Raises:
      ValueError: it is no Parquet, or holds more than the bounds of this module allow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _opened(path) as file:
        names = file.schema_arrow.names if wanted is None else [*wanted]
        texts = _checked(path, file, {*names}, most_bytes)
        # As places in a dictionary, equal texts take no memory.
        again = pq.ParquetFile(opened(path), metadata=file.metadata, read_dictionary=texts)
    try:
        batches = again.iter_batches(batch_size=ROWS, columns=names)
        for part, size in (part for batch in batches for part in _parts(batch)):
            if size > MOST_BYTES:
                raise ValueError(
                    f"{path}: a row takes more than {MOST_BYTES >> 20} MiB, the most that is read."
                )
            yield from _written_out(path, part)
    except (pa.ArrowException, MemoryError, OSError) as error:
        raise _unreadable(path, error) from error


def _parts(batch: "pa.RecordBatch") -> Iterator[tuple["pa.RecordBatch", int]]:
    """A batch as a whole where it is small, or else its rows; each with its bytes, written out."""
    size = sum(map(_memory, batch.columns))
    if size <= MOST_AT_ONCE:
        yield batch, size
        return
    for row in (batch.slice(number, 1) for number in range(len(batch))):
        yield row, sum(map(_memory, row.columns))


def _written_out(path: Path, batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """Rows of a batch as mappings; a text may be no UTF-8, and a date beyond those of Python."""
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError, LookupError) as error:
        raise _unreadable(path, error) from error


def _opened(path: Path) -> "pq.ParquetFile":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(opened(path))
    except (pa.ArrowException, MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> ValueError:
    reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return ValueError(f"{path} cannot be read as Parquet: {reason}.")


def _checked(path: Path, file: "pq.ParquetFile", names: set[str], most_bytes: int) -> list[str]:
    """Paths of the columns of text, of a file whose row groups are within bounds.

    What a row group holds is taken from what the file says of itself.
    """
    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    # A row holds one value of each other column.
    lists = {leaf.path for leaf in leaves if leaf.max_repetition_level}
    texts = {leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"}
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(column) for column in range(group.num_columns)]
        read = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in names]
        # Different texts take a byte each, or more.
        different = [
            min(chunk.num_values, chunk.total_uncompressed_size)
            for chunk in read
            if chunk.path_in_schema in texts
        ]
        values = [chunk.num_values for chunk in read if chunk.path_in_schema in lists]
        unpacked = sum(chunk.total_uncompressed_size for chunk in read)
        packed = min(sum(chunk.total_compressed_size for chunk in read), path.stat().st_size)
        found = {
            "values in lists": (sum(values), MOST_VALUES),
            "texts": (sum(different), MOST_TEXTS),
            "bytes": (unpacked, most_bytes if unpacked <= MOST_PACKED * packed else MOST_BYTES),
        }
        for what, (count, most) in found.items():
            if count > most:
                raise ValueError(
                    f"{path}: a row group holds {count:,} {what}, and may hold {most:,}; write "
                    "smaller row groups."
                )
    return sorted(texts)


def _memory(array: "pa.Array") -> int:
    """About how many bytes the values of an array take as objects of Python."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported
    kind, count = array.type, len(array)
    if pa.types.is_dictionary(kind):
        texts = pc.value_counts(array.indices.drop_null())
        lengths = pc.binary_length(array.dictionary.take(texts.field("values")))
        return 56 * count + (pc.sum(pc.multiply(lengths, texts.field("counts"))).as_py() or 0)
    if pa.types.is_nested(kind):
        if pa.types.is_map(kind):
            start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
            parts = [part.slice(start, end - start) for part in (array.keys, array.items)]
        else:
            inner = array.flatten()
            parts = inner if isinstance(inner, list) else [inner]
        return (240 if pa.types.is_struct(kind) else 64) * count + sum(map(_memory, parts))
    return 32 * count
