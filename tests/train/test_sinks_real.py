"""Trackers that are installed get every number of a run, and keep it, without a network."""

import json
import socket
import sqlite3
import struct
from contextlib import closing

import pytest
import yaml
from patience import until
from test_sinks import ROWS

from trustclip.cli.main import main
from trustclip.support.jsonl import append_jsonl
from trustclip.train.watch.sinks import missing, numbers, open_sink, send

#: (name, step, value) of everything that arrives.
WANTED = sorted((key, row["step"], value) for row in ROWS for key, value in numbers(row).items())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run; nothing outside this machine can be reached."""
    connect = socket.socket.connect

    def local(self, address):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise AssertionError(f"a connection to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    for name in ("TRACKIO_DIR", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that what the sink sets is undone
        monkeypatch.delenv(name)
    folder = tmp_path / "a run"
    folder.mkdir()
    config = {"command": "rl", "model": "tiny", "seed": 3, "method": {"name": "atr"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"trl": {"hub_token": "hf_x"}}))
    append_jsonl(folder / "metrics.jsonl", ROWS)
    return folder


def installed(name):
    """Skip without the package; it is not imported, because it reads its settings once."""
    if reason := missing(name):
        pytest.skip(reason)


def sent_again(run, name):
    """A second sending is refused."""
    with pytest.raises(ValueError, match=rf"has been sent to {name}"):
        send(run, name)


def test_tensorboard(run):
    installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    assert send(run, "tensorboard") == len(ROWS)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    found = [(name, e.step, e.value) for name in names for e in events.Scalars(name)]
    assert sorted(found) == [(n, s, pytest.approx(v)) for n, s, v in WANTED]
    assert events.Tags()["tensors"] == ["a run/text_summary"]
    sent_again(run, "tensorboard")


def test_wandb(run):
    installed("wandb")
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    assert send(run, "wandb") == len(ROWS)
    (file,) = run.glob("wandb/wandb/offline-run-*/*.wandb")
    found, config = [], ""
    for record in map(Record.FromString, whole(file)):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config = str(record.run.config)
        if kind == "history":
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): item.value_json for item in items}
            values = {name: float(value) for name, value in row.items() if not name.startswith("_")}
            (step,) = [value for name, value in values.items() if name.endswith("/step")]
            found += [(n, step, v) for n, v in values.items() if not n.endswith("/step")]
    assert sorted(found) == WANTED
    assert "atr" in config and "hf_x" not in config
    sent_again(run, "wandb")


def wandb_records(data):
    """Records of a .wandb file: LevelDB's log in blocks of 32 KiB, after a header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def whole(file):
    """Records of a .wandb file, once its writer, a process of its own, has written the last."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    def records():
        return list(wandb_records(file.read_bytes()))

    def ended():
        last = records()[-1:]
        return last and Record.FromString(last[0]).WhichOneof("record_type") == "exit"

    until(ended)
    return records()


def test_trackio(run):
    installed("trackio")
    assert send(run, "trackio") == len(ROWS)
    (file,) = run.glob("trackio/*.db")
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    found = [(name, step, value) for step, text in rows for name, value in json.loads(text).items()]
    assert sorted(found) == WANTED
    sent_again(run, "trackio")


def test_mlflow(run):
    installed("mlflow")
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    assert send(run, "mlflow") == len(ROWS)
    client = MlflowClient(f"sqlite:///{run.resolve()}/mlflow/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "trustclip"]
    (seen,) = client.search_runs([experiment.experiment_id])
    found = [
        (name, point.step, point.value)
        for name in seen.data.metrics
        for point in client.get_metric_history(seen.info.run_id, name)
    ]
    assert sorted(found) == sorted((n.replace("@", "-at-"), s, v) for n, s, v in WANTED)
    assert seen.data.params["method.name"] == "atr" and seen.info.status == "FINISHED"
    assert seen.info.run_name == "a run" and "hf_x" not in str(seen.data.params)
    sent_again(run, "mlflow")
    # A resumed training goes on in the same run.
    sink = open_sink("mlflow", "a run", {}, run)
    sink.log({"stage": "rl", "step": 2, "reward": 0.75})
    sink.close()
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_a_run_that_logged_nothing_is_not_sent(run, capsys):
    (run / "metrics.jsonl").unlink()
    assert main(["send", str(run), "--sink", "tensorboard"]) == 2
    assert "has logged nothing yet" in capsys.readouterr().err
    assert main(["send", str(run / "none"), "--sink", "tensorboard"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert not (run / "tensorboard").exists()
