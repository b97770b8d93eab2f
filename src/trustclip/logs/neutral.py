"""Tokens in our own format, `trustclip.logs.tokens`, whichever program wrote them."""

from collections.abc import Iterator
from pathlib import Path

from trustclip.logs.digest import digest
from trustclip.logs.log import Log, Source, first_row
from trustclip.logs.tokens import REQUIRED, SUFFIXES, TOKENS, TokenRow, read_tokens, token_files
from trustclip.support.inside import Inside
from trustclip.support.reading import lines

#: Optional columns, and what they answer.
_ANSWERS = {
    "step": "the course over updates",
    "logp_old": "how far the policy moved",
    "kept": "whether the constraint acted",
    "logp_rollout": "whether the sampler differs",
    "entropy": "entropy",
}


def _accepts(path: Path, head: bytes) -> bool:
    if path.suffix == ".parquet":
        return True
    first = first_row(head)
    return path.suffix == ".jsonl" and bool({*REQUIRED, "logp_rollout"} & set(first))


def _candidates(folder: Path) -> list[Path]:
    """Files of tokens in a folder, its folder ``tokens``, or itself if it holds nothing else."""
    options = [Inside(folder).file(f"{TOKENS}{suffix}") for suffix in SUFFIXES]
    paths = [path for path in options if path.is_file()]
    inner = Inside(folder).file(TOKENS)
    if inner.is_dir() and token_files(inner):
        paths.append(inner)
    if not paths:
        files = [path for path in token_files(folder) if path.is_file()]
        known = all(_accepts(path, next(lines(path), b"")) for path in files)
        paths = [folder] if files and known else []
    return paths


def _read(path: Path) -> Log:
    """Read a file of tokens, or a folder of them.

    Raises:
      ValueError: it lacks a column, is damaged, or holds two runs.
    """
    remarks: list[str] = []
    tokens = digest(path, _course(path, remarks))
    unknown = [
        f"{what} (there is no column `{name}`)"
        for name, what in _ANSWERS.items()
        if name not in tokens.has
    ]
    unknown.append("truncation")
    return Log(
        path, "unknown trainer", "tokens", tokens.rows, digest=tokens, unknown=unknown,
        remarks=remarks,
    )  # fmt: skip


def _course(path: Path, remarks: list[str]) -> Iterator[TokenRow]:
    """The completions in the order of their updates, which a second run in a file would break."""
    for file in token_files(path):
        first = last = None
        for row in read_tokens(file, remarks):
            step = row.step or 0
            first = step if first is None else first
            if last is not None and step < last and step <= first:
                raise ValueError(
                    f"{file} holds two runs: completions of update {step} come after those of "
                    f"update {last}; give each run a file of its own."
                )
            last = step
            yield row


SOURCE = Source(
    "tokens.parquet or tokens.jsonl with logp and advantage (any trainer)",
    _accepts,
    _candidates,
    _read,
    read_tokens,
)
