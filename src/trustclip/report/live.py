"""The report of runs that still train: a page that is written again, and loads itself again."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trustclip.report.collect import collect
from trustclip.report.page import render
from trustclip.support.jsonl import write_text

#: Seconds between two looks at the runs, and after how many times the seconds that building took
#: the page is built again at the earliest: training needs the processor more.
_EVERY, _PATIENCE = 10.0, 5.0


def follow(paths: Sequence[Path], out: Path, ready: Callable[[Path], None]) -> None:
    """Write the page of runs into a folder again and again, until Ctrl-C.

    ``ready`` is told its path once it is there. Where runs cannot be read at a moment, the page
    stays as it is.

    Raises:
      ValueError: at the beginning, a path holds no run, or a file in it is damaged.
    """
    page = out / "index.html"

    def build() -> None:
        write_text(page, render(collect(paths), "Report", live=True))

    with contextlib.suppress(KeyboardInterrupt):
        out.mkdir(parents=True, exist_ok=True)
        build()
        ready(page)
        while True:
            start = time.monotonic()
            with contextlib.suppress(ValueError, OSError):
                build()
            time.sleep(max(_EVERY, _PATIENCE * (time.monotonic() - start)))
