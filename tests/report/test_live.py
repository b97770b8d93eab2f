"""The live report: it follows a growing run, for this machine alone, and changes nothing."""

import http.client
import json
import shutil
import socket
import threading
from contextlib import contextmanager

import pytest
import token_files
from browser import opened, wait
from patience import NEVER
from synthetic_runs import Spec, make_run

from trustclip.report import live
from trustclip.report.live import LiveReport, LiveServer
from trustclip.support.jsonl import append_jsonl

SPEC = Spec({"name": "clip", "epsilon": 0.1}, steps=60, every=20)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run that is under way, and the same run later."""
    monkeypatch.setattr(live, "_PATIENCE", 0.0)
    early = make_run(tmp_path / "early" / "run", SPEC, until=24)
    later = make_run(tmp_path / "later" / "run", SPEC, until=52)
    return early, later


def grow(early, later):
    for path in later.iterdir():
        with (early / path.name).open("ab") as file:
            done = file.tell() if path.suffix == ".jsonl" else file.truncate(0) or 0
            file.write(path.read_bytes()[done:])
    notice = {"stage": "notice", "step": 50, "notice": "gate_closed", "text": "half is cut"}
    append_jsonl(early / "metrics.jsonl", [notice])


@contextmanager
def served(*paths):
    server = LiveServer(LiveReport(paths, "Report"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(server, path="/version", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=NEVER)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_the_page_is_built_again_when_files_change_and_only_then(runs):
    early, later = runs
    before = {p: p.read_bytes() for p in early.iterdir()}
    with served(early) as server:
        assert server.server_address[0] == "127.0.0.1"
        first = asked(server, "/")[1]
        assert asked(server)[1] == asked(server)[1] == b'{"version": 1}'
        assert {p: p.read_bytes() for p in early.iterdir()} == before
        grow(early, later)
        assert json.loads(asked(server)[1]) == {"version": 2}
        second = asked(server, "/")[1]
        assert b"half is cut" in second and b"half is cut" not in first
        assert b'data-live="2"' in second and b"connect-src 'self'" in second


def test_a_building_that_takes_long_is_not_repeated_at_once(runs, monkeypatch):
    early, later = runs
    report = LiveReport([early], "Report")
    monkeypatch.setattr(live, "_PATIENCE", 1e6)
    append_jsonl(early / "metrics.jsonl", [{"stage": "rl", "step": 25, "reward": 0.5}])
    assert report.refresh() == 2
    grow(early, later)
    assert report.refresh() == 2


def test_the_server_listens_on_this_machine_alone(runs):
    with served(runs[0]) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_the_page_can_be_framed_by_nobody(runs):
    with served(runs[0]) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=NEVER)
        for path in ("/", "/version", "/no-such-page"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        connection.close()


def test_other_names_other_paths_and_damage(runs):
    early, _ = runs
    with served(early) as server:
        assert asked(server, host=f"localhost:{server.server_port}")[0] == 200
        assert asked(server, "/", host="evil.example")[0] == 403
        assert asked(server, "/config.yaml")[0] == 404
        (early / "summary.json").write_text("{")
        state = json.loads(asked(server)[1])
        assert state["version"] == 1 and "summary.json is damaged" in state["error"]
        shutil.rmtree(early)
        assert "error" in json.loads(asked(server)[1])
        assert asked(server, "/")[0] == 200  # what was last built


def answer_to(server, request):
    """All that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=NEVER) as line:
        line.sendall(request)
        parts = []
        while part := line.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_two_hosts_are_none(runs):
    with served(runs[0]) as server:
        host = f"Host: 127.0.0.1:{server.server_port}\r\n"
        for hosts in (f"{host}Host: evil.example\r\n", f"Host: evil.example\r\n{host}", ""):
            request = f"GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"
            assert answer_to(server, request.encode()).startswith(b"HTTP/1.1 403")


def test_errors_have_the_same_headers_as_the_page(runs):
    with served(runs[0]) as server:
        for request in (b"POST / HTTP/1.1\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n"):
            said = answer_to(server, request)
            assert b"frame-ancestors 'none'" in said and b"nosniff" in said


def test_a_connection_that_says_nothing_is_closed(runs, monkeypatch):
    monkeypatch.setattr(live._Handler, "timeout", 0.1)
    with served(runs[0]) as server:
        assert answer_to(server, b"GET / HT") == b""


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("command: rl\nmodel: tiny\nseed: 0\nmethod: {name: atr}\n")
    assert b'id="live"' in LiveReport([run], "Report").page


@pytest.mark.slow
def test_a_page_follows_its_run_and_keeps_the_readers_place(runs):
    early, later = runs
    token_files.write(early / "tokens" / "update-000003.parquet")
    length = "Math.max(...document.querySelector('#training .chart').data.flatMap(t => t.x))"
    with served(early) as server, opened(server.url) as tab:
        tab.locator("#training .chart").nth(0).scroll_into_view_if_needed()
        wait(tab, "document.querySelector('#training .chart').data !== undefined")
        tab.evaluate("window.mine = document.querySelector('#training .chart')")
        tab.locator("#token-text").focus()
        tab.select_option("#token-filters [name=update]", "11")
        tab.locator("#token-text").focus()
        tab.keyboard.press("n")
        seen = "document.getElementById('token-text').getBoundingClientRect().top"
        wait(tab, f"{seen} >= 0 && {seen} < innerHeight")  # the page scrolls smoothly
        top = tab.evaluate(seen)
        assert tab.evaluate(length) <= 24 and tab.locator("#notices tbody").count() == 0
        grow(early, later)
        wait(tab, f"{length} > 40")
        assert tab.evaluate("window.mine === document.querySelector('#training .chart')")
        assert "half is cut" in tab.locator("#notices tbody").inner_text()
        assert tab.locator("#token-filters [name=update]").input_value() == "11"
        assert tab.evaluate("document.activeElement.id") == "token-text"
        assert abs(tab.evaluate(seen) - top) < 900  # whatever has grown above it
        assert "live, updated" in tab.locator("#live").inner_text()
        assert tab.locator("nav li a[href='#notices']").count() == 1
