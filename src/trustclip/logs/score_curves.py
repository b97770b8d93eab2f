"""Curves of logs as rows of the table of `scores`: TensorBoard's, wandb's, or of a table."""

from collections.abc import Iterator
from pathlib import Path

from trustclip.logs import tensorboard, wandb
from trustclip.logs.choice import Choice
from trustclip.logs.scores import Score
from trustclip.support.inside import Inside
from trustclip.support.names import unknown


def points(path: Path, arm: str, seed: str, choice: Choice) -> Iterator[Score]:
    """Points of the curve ``choice.curve`` in a log of one run, or in a folder with one.

    Raises:
      ValueError: there is no such log, or no such curve in it.
    """
    names: set[str] = set()
    found = False
    for step, values in _logged(path):
        names |= values.keys()
        if (value := values.get(choice.curve)) is not None and abs(value) < 1e12:
            found = True
            yield Score(str(path), arm, seed or "0", step, choice.curve, None, None, value)
    if not found:
        raise ValueError(f"{path}: {unknown('curve', choice.curve, names)}")


def _logged(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    folders = [path, *(p for p in sorted(path.glob("**/")) if Inside(path).holds(p))]
    events = [path] if "tfevents" in path.name else [
        file for folder in folders if folder.is_dir() for file in tensorboard.files(folder)
    ]  # fmt: skip
    runs = [path] if path.suffix == ".wandb" else [
        file for folder in folders if folder.is_dir() for file in Inside(folder).files("*.wandb")
    ]  # fmt: skip
    if len(runs) + len({file.parent for file in events}) != 1:
        raise ValueError(
            f"{path} holds {len(runs)} offline runs of wandb and {len(set(events))} event files of "
            "TensorBoard; give the log of one run. Curves in CSV or JSON lines are given with "
            "--columns step=...,score=..."
        )
    for file in dict.fromkeys(events):
        for step, tag, value in tensorboard.events(file):
            if isinstance(value, float):
                yield step, {tag: value}
    for file in runs:
        yield from wandb.history(file, [])
