"""What is flushed to the disk, and the store of checkpoints to the byte and at its edges."""

import errno
import hashlib
import os
import shutil
import warnings
from pathlib import Path

import pytest

from trustclip.logs.writing.extents import Extents
from trustclip.support.flush import Listed, flush, flush_tree, flush_way, sha256_of
from trustclip.support.inside import OutsideError
from trustclip.train.durable.store import CheckpointError, CheckpointStore
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import DemoSettings


@pytest.fixture
def flushed(monkeypatch):
    """Paths in the order in which they are flushed."""
    paths: list[Path] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return paths


def test_flush_leaves_no_descriptor(tmp_path, flushed):
    (tmp_path / "a").write_text("a")
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "a", tmp_path):
        flush(path)
    assert flushed == [tmp_path / "a", tmp_path] and os.listdir("/proc/self/fd") == before


def test_what_became_a_link_since_it_was_looked_at_is_neither_read_nor_cut(tmp_path):
    (tmp_path / "thesis").write_text("precious")
    link = tmp_path / "rows.jsonl"
    link.symlink_to(tmp_path / "thesis")
    extent: Listed = {"bytes": 8, "sha256": hashlib.sha256(b"precious").hexdigest()}
    extents = Extents()
    cuts = (lambda path, at=at: extents.restore(path, at) for at in (1, extent))
    for act in (sha256_of, extents.of, *cuts):
        with pytest.raises(OutsideError):
            act(link)
    assert (tmp_path / "thesis").read_text() == "precious"


def test_the_way_to_a_path_is_every_folder_above_it(tmp_path, flushed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "new", Path("run")):
        flushed.clear()
        flush_way(path)
        assert flushed == [tmp_path, *tmp_path.parents]


def test_a_tree_with_its_own_name(tmp_path, flushed):
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    for name in ("tree/a", "tree/deep/b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "tree" / "link").symlink_to("nowhere")
    flush_tree(tmp_path / "tree")
    names = {"tree", "tree/a", "tree/deep", "tree/deep/b"}
    assert {p.relative_to(tmp_path).as_posix() for p in flushed[:4]} == names
    assert flushed[4:][0] == tmp_path


def test_a_file_that_is_taken_back_does_not_return_after_a_power_cut(tmp_path, flushed):
    run = RunDirectory(tmp_path / "run", "demo", DemoSettings())
    before = run.cursor()
    run.tokens(1, [{"logp": [-1.0], "advantage": [1.0]}])
    flushed.clear()
    run.rewind(before)
    assert list((run.path / "tokens").iterdir()) == [] and run.path / "tokens" in flushed


def refusing(monkeypatch, code: int) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_folders_that_are_not_ours(tmp_path, monkeypatch, code):
    """Where we may not write, nothing of ours is new; where we may, a refusal is a failure."""
    refusing(monkeypatch, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        flush_way(tmp_path / "run")
    for missing in (os.R_OK, os.W_OK):
        monkeypatch.setattr(os, "access", lambda _, mode, missing=missing: not mode & missing)
        flush_way(tmp_path / "run")
    with pytest.raises(OSError, match=os.strerror(code)):
        flush(tmp_path)


@pytest.mark.parametrize(
    ("code", "passes"),
    [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False), (errno.ENOSPC, False)],
)
def test_file_systems_that_flush_no_folders(tmp_path, monkeypatch, code, passes):
    refusing(monkeypatch, code)
    for ours in (True, False):
        monkeypatch.setattr(os, "access", lambda *_, ours=ours: ours)
        if passes:
            flush_way(tmp_path / "run")
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                flush_way(tmp_path / "run")
    with pytest.raises(OSError, match=os.strerror(code)):
        flush(tmp_path)


# Bytes and edges of the store ---------------------------------------------------------------------


def test_begin_makes_its_folders_and_clears_an_earlier_attempt(tmp_path):
    store = CheckpointStore(tmp_path / "deep" / "run")
    (store.begin(3) / "old").write_text("old")
    assert list(store.begin(3).iterdir()) == []


@pytest.mark.parametrize("kind", ["link to a folder", "link to nothing", "file"])
def test_what_only_has_the_name_of_a_checkpoint_is_removed(tmp_path, kind):
    store = CheckpointStore(tmp_path / "run", keep=1)
    store.origin(dict)
    (tmp_path / "precious").mkdir()
    odd = store.path(9)
    if kind == "file":
        odd.write_text("")
    else:
        odd.symlink_to(tmp_path / ("precious" if "folder" in kind else "nowhere"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (store.begin(8) / "a").write_text("a")
        store.commit(8)
    assert sorted(p.name for p in store.folder.iterdir()) == ["start.json", "step-000008"]
    assert (tmp_path / "precious").is_dir()


def test_remains_that_cannot_be_removed_stop_nobody(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.begin(3)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("busy")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    store.clean()


def test_errors_name_the_file_and_what_is_left(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(CheckpointError) as error:
        CheckpointStore(tmp_path / "run").origin(dict)
    start = f"error while writing {tmp_path / 'run' / 'start.json'}: "
    assert str(error.value).startswith(start)
    assert str(error.value).endswith("; there is no checkpoint.")


def test_an_extent_of_a_missing_file_and_of_many_blocks(tmp_path, monkeypatch):
    path, extents = tmp_path / "rows", Extents()
    with pytest.raises(ValueError, match="5 bytes then, 0 now"):
        extents.restore(path, 5)
    monkeypatch.setattr("trustclip.logs.writing.extents._BLOCK", 4)
    path.write_bytes(b"abcdef")
    extent = extents.of(path)
    assert extent == {"bytes": 6, "sha256": hashlib.sha256(b"abcdef").hexdigest()}
    path.write_bytes(b"ABCDEF")
    assert extents.of(path) == extent  # no byte is read twice
    os.truncate(path, 2)  # what was read is gone, and reading starts again
    assert extents.of(path) == {"bytes": 2, "sha256": hashlib.sha256(b"AB").hexdigest()}
    path.write_bytes(b"abcdefgh")
    Extents().restore(path, extent)
    assert path.read_bytes() == b"abcdef"
