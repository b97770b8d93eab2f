"""The report of runs that are still training, served to this machine's browser alone."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

from trustclip.logs.reader import find
from trustclip.report.collect import collect
from trustclip.report.page import render

#: The page is built again after this many times the seconds that building took, at the earliest:
#: training needs the processor more.
_PATIENCE = 5.0


class LiveReport:
    """The page of runs, built again when their files have changed. Nothing is written.

    Raises:
      ValueError: a path holds no run, or a file in it is damaged.
    """

    def __init__(self, paths: Sequence[Path], title: str) -> None:
        self._paths, self._title = paths, title
        self._lock = threading.Lock()
        self._stamps: object = None
        self._next = 0.0
        self.version = 0
        self.page = b""
        self.refresh()

    def refresh(self) -> int:
        """Build the page again if its runs have changed and it is time; returns its version."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next and (stamps := self._files()) != self._stamps:
                number = str(self.version + 1)
                page = render(collect(self._paths), self._title, live=number)
                self.page, self.version, self._stamps = page.encode(), self.version + 1, stamps
                self._next = time.monotonic() + _PATIENCE * (time.monotonic() - now)
            return self.version

    def _files(self) -> object:
        """Sizes and times of the files that a report is made of."""
        stamps = {}
        for folder in find(self._paths):
            for pattern in ("*.json*", "*.yaml", "tokens/*"):
                for path in folder.glob(pattern):
                    try:
                        state = path.stat()
                    except FileNotFoundError:  # replaced or removed at this moment
                        continue
                    stamps[str(path)] = (state.st_size, state.st_mtime_ns)
        return stamps


def serve(paths: Sequence[Path], ready: Callable[[str], None]) -> None:
    """Serve the report of runs until Ctrl-C."""
    with LiveServer(LiveReport(paths, "Report")) as server:
        ready(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


class LiveServer(ThreadingHTTPServer):
    """Serves a live report on a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, report: LiveReport) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.report = report

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"


#: What the page's own policy cannot say: nobody frames it, embeds it or learns where it was.
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds of silence after which a connection, and its thread, is closed
    server_version, sys_version = "trustclip", ""

    def do_GET(self) -> None:
        # A page of another site may not read this one by a name that it has pointed here.
        server = cast(LiveServer, self.server)
        port, report = server.server_port, server.report
        hosts = self.headers.get_all("Host", [])
        if hosts not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"not this host")
        if self.path == "/":
            return self._answer(HTTPStatus.OK, "text/html; charset=utf-8", report.page)
        if self.path != "/version":
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"nothing here")
        try:
            state: dict[str, object] = {"version": report.refresh()}
        except (ValueError, OSError) as error:  # damaged, or moved away: the page says so
            state = {"version": report.version, "error": str(error)}
        self._answer(HTTPStatus.OK, "application/json", json.dumps(state).encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page was closed

    def end_headers(self) -> None:
        """End them with those of every answer, also of errors that the library answers."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal shows the address alone."""
