"""Parquet files of others, row by row and within bounds: a thousand bytes can hold a billion zeros.

What a file holds follows from its own description before anything is unpacked, and from its texts
before they are written out.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustclip.support.reading import opened

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Values and texts in a row group, over the columns that are read.
MOST_VALUES, MOST_TEXTS = 32_000_000, 4_000_000
#: Bytes of a row group, unpacked, and of a row, written out.
MOST_BYTES = 256 << 20
#: Bytes of all rows, written out, for those who keep them.
MOST_KEPT = 512 << 20
#: Rows that are unpacked at once.
ROWS = 64


def columns(path: Path) -> list[str]:
    """Names of the columns of a file."""
    with _file(path) as file:
        return file.schema_arrow.names


def metadata(path: Path) -> Mapping[bytes, bytes]:
    """What the writer of a file has added to its schema; empty where it is no Parquet."""
    try:
        with _file(path) as file:
            return file.schema_arrow.metadata or {}
    except ValueError:
        return {}


def rows(
    path: Path, wanted: Sequence[str] | None = None, *, kept: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of a file, of the wanted columns or of all; ``kept``: the caller will keep them.

    Raises:
      ValueError: it is no Parquet, or holds more than the bounds of this module allow.
    """
    import pyarrow as pa

    with _file(path, texts := _texts(path)) as file:
        names = file.schema_arrow.names if wanted is None else [*wanted]
        _check(path, file.metadata, set(names), texts)
        try:
            total = 0
            for batch in file.iter_batches(batch_size=ROWS, columns=names):
                for row in (batch.slice(number, 1) for number in range(len(batch))):
                    size = sum(map(_memory, row.columns))
                    total += size if kept else 0
                    if size > MOST_BYTES or total > MOST_KEPT:
                        most = MOST_BYTES if size > MOST_BYTES else MOST_KEPT
                        what = "one row takes" if size > MOST_BYTES else "its rows take"
                        raise ValueError(
                            f"{path}: {what} more than {most >> 20} MiB, the most that is read."
                        )
                    yield row.to_pylist()[0]
        except (pa.ArrowException, MemoryError, OSError) as error:
            raise ValueError(f"{path} cannot be read as Parquet: {_reason(error)}.") from error


def _file(path: Path, texts: Sequence[str] = ()) -> "pq.ParquetFile":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # As places in a dictionary, equal texts take no memory.
        return pq.ParquetFile(opened(path), read_dictionary=[*texts])
    except (pa.ArrowException, MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} cannot be read as Parquet: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__


def _chunks(file: "pq.FileMetaData") -> Iterator[list[Any]]:
    for number in range(file.num_row_groups):
        group = file.row_group(number)
        yield [group.column(column) for column in range(group.num_columns)]


def _texts(path: Path) -> list[str]:
    """Paths of the columns of text."""
    with _file(path) as file:
        chunks = [chunk for group in _chunks(file.metadata) for chunk in group]
    texts = (chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY")
    return [*dict.fromkeys(texts)]


def _check(path: Path, file: "pq.FileMetaData", names: set[str], texts: Sequence[str]) -> None:
    """Refuse a row group of too many values, from what the file says of itself."""
    for group in _chunks(file):
        read = [chunk for chunk in group if chunk.path_in_schema.split(".")[0] in names]
        written = [chunk.num_values for chunk in read if chunk.path_in_schema in texts]
        found = {
            "values": (sum(chunk.num_values for chunk in read), MOST_VALUES),
            "texts": (sum(written), MOST_TEXTS),
            "bytes": (sum(chunk.total_uncompressed_size for chunk in read), MOST_BYTES),
        }
        for what, (count, most) in found.items():
            if count > most:
                raise ValueError(
                    f"{path}: a row group holds {count:,} {what}, and may hold {most:,}; write "
                    "smaller row groups."
                )


def _memory(array: "pa.Array") -> int:
    """About how many bytes the values of an array take as objects of Python."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported
    kind, count = array.type, len(array)
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).take(array.indices)
        return 56 * count + (pc.sum(lengths).as_py() or 0)
    if pa.types.is_nested(kind):
        if pa.types.is_map(kind):
            start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
            parts = [part.slice(start, end - start) for part in (array.keys, array.items)]
        else:
            inner = array.flatten()
            parts = inner if isinstance(inner, list) else [inner]
        return (240 if pa.types.is_struct(kind) else 64) * count + sum(map(_memory, parts))
    return 32 * count
