"""TensorBoard's event files, by TensorBoard's own reader: of TRL, of verl, of anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trustclip.logs.log import Log, Source, numbers
from trustclip.logs.metrics import log_of
from trustclip.support.inside import Inside
from trustclip.support.jsonl import parse_line

#: Bytes around a record: its length, and a checksum of the length and of the record.
_FRAME = 16


def files(path: Path) -> list[Path]:
    """An event file, or those in a folder."""
    return [path] if path.is_file() else Inside(path).files("*tfevents*")


def _read(path: Path) -> Log:
    """Read an event file, or the event files of one run in a folder.

    Raises:
      ValueError: it holds no metric of reinforcement learning, or two runs.
    """
    settings: dict[str, Any] = {}
    measured = []
    torn = []
    for file in files(path):
        # One event a value: those of one step are joined before the next step is looked at.
        step, values = None, {}
        for at, tag, value in events(file):
            if isinstance(value, str):
                settings |= (parse_line(value.encode()) or {}) if tag.startswith("args") else {}
            elif at != step or tag in values:
                measured += [(step, numbers(values))] if step is not None else []
                step, values = at, {tag: value}
            else:
                values[tag] = value
        measured += [(step, numbers(values))] if step is not None else []
        torn += [f"{file.name} ends within a record, as left by a kill"] if _is_torn(file) else []
    return log_of(path, "TensorBoard events", measured, settings, torn)


def events(file: Path) -> Iterator[tuple[int, str, float | str]]:
    """(step, tag, value) of an event file; a text is that of a summary."""
    from tensorboard.backend.event_processing.event_file_loader import (  # pyright: ignore[reportMissingImports]
        EventFileLoader,
    )
    from tensorboard.util.tensor_util import make_ndarray  # pyright: ignore[reportMissingImports]

    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            if not value.HasField("tensor"):
                continue
            array = make_ndarray(value.tensor)
            if array.dtype == object and array.size:
                first = array.reshape(-1)[0]
                yield event.step, value.tag, first.decode("utf-8", "replace")
            elif array.size == 1:
                yield event.step, value.tag, float(array.reshape(-1)[0])


def _is_torn(file: Path) -> bool:
    """Whether a file is longer than its whole records: TensorBoard passes over the rest."""
    from tensorboard.backend.event_processing.event_file_loader import (  # pyright: ignore[reportMissingImports]
        RawEventFileLoader,
    )

    return sum(_FRAME + len(record) for record in RawEventFileLoader(str(file)).Load()) < (
        file.stat().st_size
    )


SOURCE = Source(
    "events.out.tfevents.* (TensorBoard)",
    lambda path, head: "tfevents" in path.name,
    # A run that was resumed has several files.
    lambda folder: [folder] if files(folder) else [],
    _read,
)
