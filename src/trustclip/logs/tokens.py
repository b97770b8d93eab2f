"""Records of single tokens: what a constraint saw of each completion, and what it did.

One row a completion, as JSON lines (``.jsonl``) or Parquet (``.parquet``). Lists have one entry per
token. Only ``logp`` and ``advantage`` must be there:

==================  ==========================================================================
column              meaning
==================  ==========================================================================
``logp``            log-probability of each token under the policy in training, nats
``advantage``       of each token, or one number for the completion
``mask``            true where a token counts; without it, all do
``logp_old``        under the policy that the update started from, nats
``logp_rollout``    under the sampler, nats; null where it gave none
``entropy``         of the policy in training at each position, nats
``coefficient``     derivative of the objective in each ``logp``, as the run used it
``kept``            true where the gate left a token's gradient as it was
``token_id``        id of each token
``token``           text of each token
``step``            updates done when the update began
``generated``       updates done when the completion was sampled
``index``           number of the completion in its generation
``group``           number of its prompt
``reward``          of the completion
==================  ==========================================================================

Other columns are left alone. Files are read row by row, so their size is not limited by memory.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trustclip.constraints.batch import TokenBatch
from trustclip.support import parquet
from trustclip.support.inside import Inside, part_of
from trustclip.support.jsonl import append_jsonl, numbered
from trustclip.support.names import nearest
from trustclip.support.reading import BEYOND

#: Columns with a number per token; those that may be given as one number.
FLOATS = ("logp", "logp_old", "logp_rollout", "entropy", "advantage", "coefficient")
FLAGS = ("mask", "kept")
#: Columns with one number for the completion.
WHOLE = ("step", "generated", "index", "group")
REQUIRED = ("logp", "advantage")
#: Endings of files of tokens.
SUFFIXES = (".jsonl", ".parquet")
#: Folder of a run directory with its files of tokens.
TOKENS = "tokens"
#: Files in it.
UPDATE = re.compile(r"update-\d{6,}(-rank\d+)?\.parquet")


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one completion; the module's table says what each column is.

    Arrays have the shape [time].
    """

    logp: NDArray[np.float64]
    advantage: NDArray[np.float64]
    mask: NDArray[np.bool_]
    logp_old: NDArray[np.float64] | None = None
    logp_rollout: NDArray[np.float64] | None = None
    entropy: NDArray[np.float64] | None = None
    coefficient: NDArray[np.float64] | None = None
    kept: NDArray[np.bool_] | None = None
    token_id: NDArray[np.int64] | None = None
    token: Sequence[str] | None = None
    step: int | None = None
    generated: int | None = None
    index: int | None = None
    group: int | None = None
    reward: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "TokenRow":
        """A row of a file, checked.

        Raises:
          ValueError: a column is missing, is of another length than ``logp``, or holds something
            else than numbers.

        Example:
          >>> row = TokenRow.of({"logp": [-1.0, -2.0], "advantage": 0.5})
          >>> row.advantage.tolist(), row.mask.tolist()
          ([0.5, 0.5], [True, True])
          >>> TokenRow.of({"logp": [-1.0], "advantages": [0.5]})
          Traceback (most recent call last):
          ...
          ValueError: there is no column `advantage`; the nearest is `advantages`.
        """
        for name in REQUIRED:
            if row.get(name) is None:
                near = nearest(name, list(row))
                hint = f"the nearest is `{near}`" if near else f"found {', '.join(row) or 'none'}"
                raise ValueError(f"there is no column `{name}`; {hint}.")
        if not isinstance(row["logp"], Sequence | np.ndarray):
            raise ValueError("`logp` must hold one entry per token, in a list.")
        length = len(row["logp"])
        columns: dict[str, Any] = {"mask": np.ones(length, dtype=bool)}
        for field in dataclasses.fields(cls):
            value = row.get(field.name)
            if value is not None:
                columns[field.name] = _column(field.name, value, length)
        return cls(**columns)

    def to_dict(self) -> dict[str, Any]:
        """The row as files hold it, without the columns that are not there."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        return {k: v for k, v in plain.items() if v is not None}

    @property
    def update(self) -> int | None:
        """Number of the update that the completion was used in, as in logs: the first is 1."""
        return None if self.step is None else self.step + 1

    @property
    def lag(self) -> int | None:
        """Updates between the sampling of the completion and its use."""
        if self.step is None or self.generated is None:
            return None
        return self.step - self.generated


def _column(name: str, value: Any, length: int) -> Any:
    """One column of a row as `TokenRow` holds it."""
    try:
        if name in WHOLE:
            return int(value)
        if name == "reward":
            return float(value)
        if name == "token":
            # Half a surrogate pair fits into no file.
            column: Any = [str(t).encode("utf-8", "backslashreplace").decode() for t in value]
        elif name == "token_id":
            column = np.asarray(value, dtype=np.int64)
        else:
            # A null, in a float column, becomes NaN.
            column = np.asarray(value, dtype=np.float64)
            column = np.where(np.abs(column) > BEYOND, np.nan, column)
            if name == "advantage" and column.ndim == 0:
                column = np.full(length, column)
            if name in FLAGS and not np.isin(column, (0, 1)).all():
                raise ValueError("each is true or false")
            column = column.astype(bool if name in FLAGS else np.float64)
        shape = (len(column),) if name == "token" else column.shape
    except (TypeError, ValueError, OverflowError) as error:
        kind = "a number" if name in (*WHOLE, "reward") else "one entry per token"
        raise ValueError(f"`{name}` must hold {kind}: {error}.") from error
    if shape != (length,):
        raise ValueError(f"`{name}` has the shape {list(shape)}, `logp` has {length} tokens.")
    return column


def token_files(path: Path) -> list[Path]:
    """The files of tokens in a folder, each kind in the order of their names; or itself."""
    if not path.is_dir():
        return [path]
    return [file for suffix in SUFFIXES for file in Inside(path).files(f"*{suffix}")]


def read_tokens(path: Path, remarks: list[str] | None = None) -> Iterator[TokenRow]:
    """Rows of a file of tokens, or a folder's in the order of names; a torn end is a remark.

    Raises:
      ValueError: there is no such file, a row is not as the module's table says, or the file is
        beyond the bounds of `trustclip.support.reading`; the message names file and line.
    """
    files = token_files(path)
    if not files or not files[0].is_file():
        raise ValueError(f"{path}: there are no tokens; expected a .jsonl or .parquet file.")
    for file in files:
        if file.suffix not in SUFFIXES:
            raise ValueError(f"{file}: expected a .jsonl or .parquet file.")
        for number, row in _parquet(file) if file.suffix == ".parquet" else numbered(file, remarks):
            try:
                yield TokenRow.of(row)
            except ValueError as error:
                raise ValueError(f"{file}:{number}: {error}") from error


def _parquet(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    there, names = parquet.columns(file), {field.name for field in dataclasses.fields(TokenRow)}
    # Without the required ones, the names that are there make a better message.
    whole = set(REQUIRED) <= set(there)
    yield from enumerate(parquet.rows(file, [n for n in there if n in names or not whole]), 1)


#: Tokens of a row group that we write: with all their columns within the bounds of a reader.
_TOKENS = 1_000_000
#: Path in Parquet of the numbers in a column's lists.
_ITEMS = "%s.list.element"


def write_tokens(path: Path, rows: Iterable[TokenRow]) -> None:
    """Write rows as a file of tokens, whole or not at all; JSON lines are appended.

    Raises:
      ValueError: the name ends in something else.
    """
    if path.suffix == ".jsonl":
        append_jsonl(path, (row.to_dict() for row in rows))
        return
    if path.suffix != ".parquet":
        raise ValueError(f"{path}: expected a name that ends in .jsonl or .parquet.")
    import pyarrow as pa
    import pyarrow.parquet as pq

    part, plain = part_of(path), [row.to_dict() for row in rows]
    names = [f.name for f in dataclasses.fields(TokenRow) if any(f.name in row for row in plain)]
    table = pa.table({name: [row.get(name) for row in plain] for name in names})
    longest = max((len(row["logp"]) for row in plain), default=1)
    size = max(1, min(parquet.ROWS, _TOKENS // max(longest, 1)))
    # Numbers of 32 bits take no more room than that where each of their bytes has its own stream.
    packed: Any = [_ITEMS % name for name in FLOATS]
    texts: Any = [_ITEMS % "token"]
    pq.write_table(
        table, part, row_group_size=size, compression="zstd", use_byte_stream_split=packed,
        use_dictionary=texts,
    )  # fmt: skip
    part.replace(path)


def padded(rows: Sequence[TokenRow], name: str) -> torch.Tensor:
    """A column of rows, 0 to the right of each, NaN in a row without it. [rows, longest row]."""
    kind = np.bool_ if name in FLAGS else np.float64
    out = np.zeros((len(rows), max(len(row.logp) for row in rows)), dtype=kind)
    for line, row in zip(out, rows, strict=True):
        value = getattr(row, name)
        line[: len(value) if value is not None else None] = np.nan if value is None else value
    return torch.from_numpy(out)


def token_batch(rows: Sequence[TokenRow]) -> TokenBatch:
    """Rows as the input of a method, padded on the right.

    ``logp_old`` is ``logp`` where no row has it: the run did not move between sampling and update.
    A column that some rows lack is left out, except ``logp_rollout``, which is NaN in those.

    Returns:
      Fields of shape [rows, longest completion]; `keys` are numbers of the tokens in ``rows``.
    """
    logp = padded(rows, "logp")
    have = {name: [getattr(row, name) is not None for row in rows] for name in FLOATS}
    optional: dict[str, Any] = {}
    if any(have["logp_rollout"]):
        optional["logp_rollout"] = padded(rows, "logp_rollout")
    if all(have["entropy"]):
        optional["entropy"] = padded(rows, "entropy")
    if all(row.group is not None for row in rows):
        groups = torch.tensor([row.group for row in rows])  # [B]
        optional["groups"] = groups.unsqueeze(1).expand(logp.shape).contiguous()
    optional["keys"] = torch.arange(logp.numel()).view(logp.shape)
    logp_old = padded(rows, "logp_old") if all(have["logp_old"]) else logp
    return TokenBatch(logp, logp_old, padded(rows, "advantage"), padded(rows, "mask"), **optional)
