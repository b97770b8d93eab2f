"""Which source a path is, from its content; one sentence where it is none, or several."""

from collections.abc import Iterator
from pathlib import Path

from trustclip.logs import flat, neutral, prime_rl, tensorboard, trl, verl, wandb
from trustclip.logs.log import Log, Source, first_row
from trustclip.logs.tokens import REQUIRED, TokenRow
from trustclip.support.names import nearest, some
from trustclip.support.reading import lines, opened

#: In the order in which a file is looked at: the cheapest tests first, console logs last.
SOURCES = tuple(one.SOURCE for one in (wandb, tensorboard, trl, prime_rl, neutral, flat, verl))

#: Bytes of a file that are looked at, beside its first line.
_HEAD = 1 << 20
#: Folders below a path that are searched.
_FOLDERS = 2000


def read_log(path: Path) -> Log:
    """Read the log of another trainer.

    Raises:
      ValueError: it is no log that we know, or several, or a damaged one.
    """
    source, place = _locate(path)
    return source.read(place)


def token_rows(path: Path) -> Iterator[TokenRow]:
    """The tokens of a log, one completion at a time, without computing anything from them.

    Raises:
      ValueError: there is no such log, or it has no tokens.
    """
    if not path.exists():
        raise ValueError(f"{path}: there are no tokens, and no such file or folder.")
    source, place = _locate(path)
    if source.rows is None:
        kinds = " or ".join(one.files for one in SOURCES if one.rows is not None)
        raise ValueError(f"{place} has no tokens; expected {kinds}.")
    return source.rows(place)


def holds_tokens(path: Path) -> bool:
    """Whether the log at a path, which must be one, is of tokens."""
    return _locate(path)[0].rows is not None


def _locate(path: Path) -> tuple[Source, Path]:
    """The source of a path, and the file or folder in it that is read; see `read_log`."""
    if path.is_file():
        return _source_of(path), path
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is neither a file nor a folder.")
    logs = list(_candidates(path))
    if not logs:
        # A folder of exports is found in itself, and in the one that holds it.
        logs = list(dict.fromkeys(hit for folder in _below(path) for hit in _candidates(folder)))
    if not logs:
        raise ValueError(f"{path} holds no log that can be read: {looked_for()}.")
    if len(logs) > 1:
        listing = some([place.relative_to(path) for _, place in logs])
        raise ValueError(f"{path} holds {len(logs)} logs; give one of them: {listing}.")
    return logs[0]


def looked_for() -> str:
    """The sources, in one line."""
    return f"looked for {'; '.join(source.files for source in SOURCES)}"


def holds_log(path: Path) -> bool:
    """Whether a path is a log of another trainer, or holds any number of them."""
    if path.is_file():
        return True
    folders = (path, *_below(path)) if path.is_dir() else ()
    return any(True for folder in folders for _ in _candidates(folder))


def _candidates(folder: Path) -> Iterator[tuple[Source, Path]]:
    for source in SOURCES:
        for place in source.candidates(folder):
            yield source, place


def _below(folder: Path) -> Iterator[Path]:
    """Folders below, without links and hidden ones, nearest first."""
    level, count = [folder], 0
    while level:
        inner = [
            path
            for parent in level
            for path in sorted(parent.iterdir())  # links are passed over
            if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
        ]
        for path in inner:
            count += 1
            if count > _FOLDERS:
                return
            yield path
        level = inner


def _source_of(path: Path) -> Source:
    head = next(lines(path), b"")
    with opened(path) as file:
        file.seek(len(head))
        head += file.read(_HEAD)
    for source in SOURCES:
        if source.accepts(path, head):
            return source
    raise ValueError(_unknown(path, head))


def _unknown(path: Path, head: bytes) -> str:
    row = first_row(head)
    if not row:
        return f"{path} is {'' if head else 'empty, and '}no log that can be read: {looked_for()}."
    if "stage" in row:
        return f"{path} belongs to a run directory; give its folder, {path.parent}."
    near = next((name for name in row if nearest(name, REQUIRED)), None)
    hint = f" ({near!r} is like {nearest(near, REQUIRED)!r})" if near else ""
    keys = ", ".join(list(row)[:8])
    return f"{path} begins with {keys}{hint}: no log that can be read: {looked_for()}."
