"""The report of runs that still train: a page that is built again, for this machine's browser."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trustclip.report.collect import collect
from trustclip.report.page import render
from trustclip.support.jsonl import write_text

#: Seconds between two looks at the runs, and after how many times the seconds that building took
#: the page is built again at the earliest: training needs the processor more.
_EVERY, _PATIENCE = 10.0, 5.0


class LiveServer(ThreadingHTTPServer):
    """Serves the page of runs on a free port of 127.0.0.1.

    Raises:
      ValueError: a path holds no run, or a file in it is damaged.
    """

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], folder: Path) -> None:
        self._paths, self._page = paths, folder / "index.html"
        self.build()
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def build(self) -> None:
        """Build the page again."""
        write_text(self._page, render(collect(self._paths), "Report", live=True))

    def follow(self) -> None:
        """Build it again and again; where runs cannot be read at a moment, the page stays."""
        while True:
            start = time.monotonic()
            with contextlib.suppress(ValueError, OSError):
                self.build()
            time.sleep(max(_EVERY, _PATIENCE * (time.monotonic() - start)))


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        # A page of another site may not read this one by a name that it has pointed here.
        assert isinstance(self.server, ThreadingHTTPServer)
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
            return self.send_error(403)
        super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal shows the address alone."""


def serve(paths: Sequence[Path], ready: Callable[[str], None]) -> None:
    """Serve the report of runs until Ctrl-C."""
    with tempfile.TemporaryDirectory() as folder, LiveServer(paths, Path(folder)) as server:
        threading.Thread(target=server.follow, daemon=True).start()
        ready(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
