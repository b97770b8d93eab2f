"""The live report: it follows a growing run, for this machine alone, and writes nothing there."""

import http.client
import threading
from contextlib import contextmanager

import pytest
from patience import NEVER, until
from synthetic_runs import Spec, make_run

from trustclip.report import live
from trustclip.report.live import LiveServer
from trustclip.support.jsonl import append_jsonl


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", Spec({"name": "clip"}, steps=8, every=4), until=6)


@contextmanager
def served(run, folder):
    folder.mkdir()
    with LiveServer([run], folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(server, path="/", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=NEVER)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_follows_its_run_and_outlives_damage(run, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "_EVERY", 0.0)
    monkeypatch.setattr(live, "_PATIENCE", 0.0)
    files = sorted(run.rglob("*"))
    with served(run, tmp_path / "page") as server:
        _, first = asked(server)
        threading.Thread(target=server.follow, daemon=True).start()
        notice = {"stage": "notice", "step": 6, "notice": "gate_closed", "text": "half is cut"}
        append_jsonl(run / "metrics.jsonl", [notice])
        until(lambda: b"half is cut" in asked(server)[1])
        assert b"half is cut" not in first and b'http-equiv="refresh"' in first
        (run / "summary.json").write_text("{")
        assert b"half is cut" in asked(server)[1]
        (run / "summary.json").unlink()
    assert sorted(run.rglob("*")) == files


def test_it_is_for_this_machine_and_its_own_name_alone(run, tmp_path):
    with served(run, tmp_path / "page") as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        answer, _ = asked(server, host=f"localhost:{server.server_port}")
        assert answer.status == 200
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert asked(server, host="evil.example")[0].status == 403
        assert asked(server, "/../run/config.yaml")[0].status == 404
