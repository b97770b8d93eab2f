"""Copies of checkpoints elsewhere: complete or not there, and enough to continue from alone."""

import shutil
import warnings
from pathlib import Path

import pytest
from durable_runs import save_state

from trustclip.logs.writing.extents import Extents
from trustclip.support.inside import check_url
from trustclip.train.durable.mirror import Mirror
from trustclip.train.durable.store import CheckpointError, CheckpointStore

BUCKET = "runs"


@pytest.fixture(scope="module")
def server():
    """A server of S3's protocol on this machine."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("flask", reason="moto's server is not installed")
    moto = pytest.importorskip("moto.server", reason="moto's server is not installed")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def s3(server, monkeypatch) -> str:
    """URL of an empty bucket."""
    import boto3
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=server)
    client.create_bucket(Bucket=BUCKET)
    for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
    return f"s3://{BUCKET}/a-run"


class Run:
    """A run directory with one journal and checkpoints of it."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.path, self.rows = path, path / "rows.jsonl"
        self.store = CheckpointStore(path / "checkpoints", keep)
        path.mkdir(exist_ok=True)

    def save(self, step: int) -> Path:
        with self.rows.open("a") as file:
            file.write(f'{{"step": {step}}}\n')
        cursor = {"rows.jsonl": Extents().of(self.rows)}
        self.store.origin(lambda: {})
        with self.store.writing(step) as folder:
            identity = {"processes": 1, "per_device_train_batch_size": 1}
            save_state(folder, "shared", {"identity": identity, "cursor": cursor})
            (folder / "shards").mkdir()
            (folder / "shards" / "part").write_bytes(bytes([step % 256]) * 70_000)
        return self.store.path(step)

    def contents(self, step: int) -> dict[str, bytes]:
        folder = self.store.path(step)
        return {
            str(file.relative_to(folder)): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }


def test_a_machine_with_nothing_gets_the_newest_checkpoint_and_the_rows_up_to_it(tmp_path, s3):
    run, fresh = Run(tmp_path / "run"), Run(tmp_path / "fresh")
    for step in (1, 2):
        Mirror(s3, run.path).send(run.save(step))
    with run.rows.open("a") as file:
        file.write('{"step": 3}\n')  # after the checkpoint
    found = Mirror(s3, fresh.path).fetch(fresh.store)
    assert found == fresh.store.path(2) == fresh.store.newest()
    assert fresh.contents(2) == run.contents(2)
    assert fresh.rows.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert fresh.store.origin(dict) == {}  # the same run: a checkpoint of another one is refused
    assert sorted(p.name for p in fresh.store.folder.iterdir()) == ["start.json", "step-000002"]


def test_a_copy_that_was_cut_off_is_not_there(tmp_path, s3, monkeypatch):
    """At every file that can be the last one sent."""
    run = Run(tmp_path / "run")
    Mirror(s3, run.path).send(run.save(1))
    folder = run.save(2)
    files = len(run.contents(2)) + 1  # and the journal
    put, sent = Mirror._put, 0

    def cut_off(self, *args):
        nonlocal sent
        sent += 1
        if sent > room:
            raise OSError("the connection was lost")
        put(self, *args)

    monkeypatch.setattr(Mirror, "_put", cut_off)
    for room in range(files):
        sent = 0
        with pytest.raises(CheckpointError, match=r"cannot write to s3://.*: the connection was"):
            Mirror(s3, run.path).send(folder)
        fresh = Run(tmp_path / f"fresh-{room}")
        assert Mirror(s3, fresh.path).fetch(fresh.store) == fresh.store.path(1)
    room, sent = files, 0
    Mirror(s3, run.path).send(folder)
    fresh = Run(tmp_path / "fresh")
    assert Mirror(s3, fresh.path).fetch(fresh.store) == fresh.store.path(2)


def test_a_damaged_copy_costs_one_interval(tmp_path, s3):
    import s3fs

    run, fresh = Run(tmp_path / "run"), Run(tmp_path / "fresh")
    for step in (1, 2):
        Mirror(s3, run.path).send(run.save(step))
    s3fs.S3FileSystem().pipe(f"{BUCKET}/a-run/step-000002/shards/part", b"x" * 70_000)
    with pytest.warns(UserWarning, match=r"shards/part is damaged"):
        assert Mirror(s3, fresh.path).fetch(fresh.store) == fresh.store.path(1)
    assert fresh.rows.read_text() == '{"step": 1}\n'


def test_as_many_copies_are_kept_as_checkpoints(tmp_path, s3):
    import s3fs

    run = Run(tmp_path / "run", keep=2)
    for step in (1, 2, 3, 4):
        Mirror(s3, run.path).send(run.save(step), run.store.keep)
    names = sorted(Path(p).name for p in s3fs.S3FileSystem().ls(f"{BUCKET}/a-run", refresh=True))
    assert names == ["step-000003", "step-000004"]


def test_without_a_copy_there_is_nothing_to_continue(tmp_path, s3):
    run = Run(tmp_path / "run")
    assert Mirror(s3, run.path).fetch(run.store) is None


def test_what_is_wrong_is_one_sentence(tmp_path, s3):
    run = Run(tmp_path / "run")
    folder = run.save(1)
    with pytest.raises(CheckpointError) as error:
        Mirror("s3://no-such-bucket/run", run.path).send(folder)
    assert "s3://no-such-bucket/run: " in str(error.value) and "\n" not in str(error.value)
    for url, word in (("runs", "URL such as"), ("s3://", "URL such as"), ("sss://a", "sss")):
        with pytest.raises(ValueError, match=word):
            check_url(url)


@pytest.mark.slow
def test_training_continues_on_a_machine_that_has_nothing(tmp_path, s3):
    from durable_runs import differences, grpo

    class Sent(Exception):
        pass

    settings = {
        "method": {"name": "atr", "delta": 0.01},
        "num_iterations": 2,
        "max_steps": 6,
        "save_to": s3,
    }

    def trainer(name: str, **changes):
        made = grpo(tmp_path / name, **{**settings, **changes})
        made.journal.path = made.journal.folder
        return made

    assert trainer("whole", save_to=None).train_durably()
    lost = trainer("lost", save_async=True)
    plain = lost.recorder.gates

    def gates(row):
        if row["step"] == 5:
            raise Sent  # the machine is gone, in the fifth update
        plain(row)

    lost.recorder.gates = gates
    with pytest.raises(Sent):
        lost.train_durably()
    shutil.rmtree(tmp_path / "lost")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fresh = trainer("fresh")
    assert fresh.train_durably()
    assert differences(tmp_path / "whole", tmp_path / "fresh", after=4) == []
    steps = sorted(p.name for p in (tmp_path / "fresh" / "checkpoints").glob("step-*"))
    assert steps == ["step-000004", "step-000005", "step-000006"]
