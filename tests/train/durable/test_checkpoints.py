"""The store of checkpoints against kills, full disks, flipped bits and files that mean harm."""

import errno
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from durable_runs import save_state
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip.support import flush as flushing
from trustclip.train.durable import states
from trustclip.train.durable import store as checkpoints
from trustclip.train.durable.ranks import Ranks
from trustclip.train.durable.saving import Content, Saver
from trustclip.train.durable.store import CheckpointError, CheckpointStore, verify

FILES = ("state.json", "state.safetensors", "tokenizer/words.txt")


def write(store: CheckpointStore, step: int) -> None:
    """A checkpoint whose content depends on its step."""

    def fill(folder: Path) -> Content:
        save_state(folder, "state", {"step": step, "weights": torch.arange(20.0) + step})
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "words.txt").write_text(f"words of {step:02d}")
        return Content()

    Saver(store, Ranks()).save(step, fill)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    store = CheckpointStore(folder)
    store.origin(lambda: {"metrics.jsonl": 7})
    for step in (8, 16, 24):
        write(store, step)
    return folder


@pytest.fixture
def store(pristine, tmp_path) -> CheckpointStore:
    """Checkpoints of steps 8, 16 and 24."""
    shutil.copytree(pristine, tmp_path / "run")
    return CheckpointStore(tmp_path / "run")


def load(path: Path) -> int:
    return states.load(path, "state")["step"]


def test_what_was_written_is_read(store):
    newest = store.newest()
    assert newest == store.path(24)
    state = states.load(newest, "state")
    assert state["step"] == 24 and torch.equal(state["weights"], torch.arange(20.0) + 24)
    manifest = json.loads((newest / "manifest.json").read_text())
    assert sorted(manifest["files"]) == sorted(FILES)
    modes = {path.stat().st_mode for path in newest.iterdir() if path.is_file()}
    assert len(modes) == 1  # safetensors alone would write for its owner only
    assert manifest["files"]["tokenizer/words.txt"]["bytes"] == 11


def test_an_empty_or_absent_folder_has_no_checkpoint(tmp_path):
    assert CheckpointStore(tmp_path).newest() is None
    assert CheckpointStore(tmp_path / "absent").newest() is None


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def edit(path: Path, change) -> None:
    """Change a manifest, keeping it a manifest."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def replace(path: Path, content: bytes | str) -> None:
    path.unlink()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def link(path: Path, target: Path | str) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(target)


FILE_DAMAGE = {
    "missing": (lambda p: p.unlink(), "is missing"),
    "truncated": (lambda p: os.truncate(p, p.stat().st_size - 1), "bytes instead of"),
    "first bit": (lambda p: flip(p, 0.0), "SHA-256"),
    "last bit": (lambda p: flip(p, 1.0), "SHA-256"),
    "of another step": (
        lambda p: replace(p, Path(str(p).replace("000024", "000016")).read_bytes()),
        "SHA-256|bytes instead of",
    ),
    "a link": (
        lambda p: link(p, str(p).replace("000024", "000016")),
        "neither a regular file nor a folder",
    ),
    "a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), "neither a regular file nor a folder"),
}

MANIFEST_DAMAGE = {
    "missing": (lambda p: (p / "manifest.json").unlink(), "no manifest.json: it is unfinished"),
    "truncated": (lambda p: os.truncate(p / "manifest.json", 99), "manifest.json is not JSON"),
    "no text": (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe{}"), "is not JSON"),
    "a number": (lambda p: (p / "manifest.json").write_text("7"), "malformed"),
    "empty object": (lambda p: (p / "manifest.json").write_text("{}"), "malformed.*schema"),
    "too deep": (
        lambda p: (p / "manifest.json").write_text('{"a":' * 90_000 + "1" + "}" * 90_000),
        "malformed.*Recursion",
    ),
    "too large": (
        lambda p: (p / "manifest.json").write_text('"' + "x" * (5 << 20) + '"'),
        "larger than a manifest can be",
    ),
    "a link": (
        lambda p: link(p / "manifest.json", "../step-000016/manifest.json"),
        "manifest.json is not a regular file",
    ),
    "newer format": (lambda p: edit(p, lambda m: m.update(schema=2)), "format version is 2; this"),
    "of another step": (
        lambda p: edit(p, lambda m: m.update(step=16)),
        "manifest belongs to step 16",
    ),
    "step as text": (lambda p: edit(p, lambda m: m.update(step="24")), "format code"),
    "without files": (lambda p: edit(p, lambda m: m.pop("files")), "malformed.*files"),
    "file as a number": (
        lambda p: edit(p, lambda m: m["files"].update({"state.json": 3})),
        "malformed",
    ),
    "a name left out": (
        lambda p: edit(p, lambda m: m["files"].pop("state.json")),
        "state.json is not in its manifest",
    ),
    "a name outside": (
        lambda p: edit(p, lambda m: m["files"].update({"../step-000016/state.json": {}})),
        "../step-000016/state.json is missing",
    ),
    "one file too many": (
        lambda p: (p / "optimizer.pt").write_bytes(b"x"),
        "optimizer.pt is not in its manifest",
    ),
    "the folder a file": (lambda p: (shutil.rmtree(p), p.write_text("")), "it is not a folder"),
    "the folder a link": (lambda p: link(p, "step-000016"), "it is not a folder"),
}

DAMAGE = {
    **{f"manifest: {name}": case for name, case in MANIFEST_DAMAGE.items()},
    **{
        f"{file}: {name}": (lambda p, file=file, harm=harm: harm(p / file), reason)
        for file in FILES
        for name, (harm, reason) in FILE_DAMAGE.items()
    },
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_passed_over(store, name):
    damage, reason = DAMAGE[name]
    damage(store.path(24))
    with pytest.warns(UserWarning, match=f"step-000024: .*{reason}"):
        newest = store.newest()
    assert newest == store.path(16) and load(newest) == 16


def test_where_all_are_damaged_nothing_is_overwritten(store):
    for step in store.steps():
        flip(store.path(step) / "state.safetensors")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError) as error:
        store.newest()
    first, *rest = re.findall(r"step-0000\d\d", str(error.value))
    assert [first, *rest] == ["step-000024", "step-000016", "step-000008"]
    began = f"no checkpoint in {store.folder} can be used: {store.folder}"
    assert str(error.value).startswith(began)
    assert str(error.value).endswith(". Move this folder away to train from the start.")
    assert store.steps() == [8, 16, 24]


def test_every_bit_of_a_manifest_matters_or_changes_nothing(store):
    """A flip is found, or what is loaded is what was written."""
    path = store.path(24) / "manifest.json"
    whole = path.read_bytes()
    found = 0
    for bit in range(0, 8 * len(whole), 23):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            verify(store.path(24), run=json.loads(whole)["origin"]["run"])
        except CheckpointError:
            found += 1
        else:
            assert json.loads(content)["files"] == json.loads(whole)["files"]
    assert found > 0.9 * (8 * len(whole) / 23)


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(store):
    flip(store.path(24) / "state.json")
    write(store, 24)
    assert store.newest() == store.path(24) and store.steps() == [8, 16, 24]


def test_pickles_are_never_opened(store, tmp_path):
    """Neither beside the state nor in its place, with sums that are right."""

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    bomb = pickle.dumps(Bomb())
    folder = store.begin(32)
    for name in ("optimizer.pt", "training_args.bin", "state.json", "state.safetensors"):
        (folder / name).write_bytes(bomb)
    store.commit(32)
    assert store.newest() == store.path(32)
    with pytest.raises(ValueError):
        load(store.path(32))
    (store.path(32) / "state.json").write_text('{"step": {"$tensor": "state.weights"}}')
    with pytest.raises(Exception, match="header"):
        load(store.path(32))
    assert not (tmp_path / "exploded").exists()
    source = "".join(
        Path(checkpoints.__file__).with_name(name).read_text()
        for name in ("store.py", "states.py", "weights.py", "trainer.py", "exactness.py")
    )
    assert not re.search(r"import pickle|torch\.load|torch\.save|allow_pickle", source)


# -- leftovers, and how many to keep ---------------------------------------------------------------


def test_leftovers_are_removed_and_nothing_else(store, tmp_path):
    (store.folder / ".writing-step-000032" / "tokenizer").mkdir(parents=True)
    (store.folder / ".writing-step-000032" / "state.json").write_text("{")
    (store.folder / ".removing-step-000001-ab12").mkdir()
    (store.folder / ".writing-start.json").write_text("{")
    (tmp_path / "precious").mkdir()
    (store.folder / ".removing-link").symlink_to(tmp_path / "precious")
    (store.folder / "completions").mkdir()
    (store.folder / "README.md").write_text("mine")
    store.clean()
    names = {path.name for path in store.folder.iterdir()}
    steps = {"step-000008", "step-000016", "step-000024"}
    assert names == steps | {"start.json", "completions", "README.md"}
    assert (tmp_path / "precious").is_dir()
    assert store.newest() == store.path(24)


def test_what_is_being_written_is_no_checkpoint(store):
    store.begin(32)
    assert store.newest() == store.path(24) and store.steps() == [8, 16, 24]


@pytest.mark.parametrize(("keep", "left"), [(1, [32]), (2, [24, 32]), (3, [16, 24, 32])])
def test_older_ones_beyond_the_limit_go(store, keep, left):
    limited = CheckpointStore(store.folder, keep)
    write(limited, 32)
    assert limited.steps() == left
    write(CheckpointStore(store.folder), 40)
    assert limited.steps() == [*left, 40]


def test_damaged_ones_do_not_count(store):
    (store.path(24) / "state.json").unlink()
    limited = CheckpointStore(store.folder, keep=2)
    write(limited, 32)
    assert limited.steps() == [16, 32]


def test_one_that_cannot_be_read_for_the_moment_stays(store, monkeypatch):
    read = checkpoints._read_json

    def stale(path):
        if path.parent == store.path(24):
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_read_json", stale)
        write(CheckpointStore(store.folder, keep=2), 32)
    assert store.steps() == [16, 24, 32]


def test_later_ones_were_passed_over_and_go(store):
    flip(store.path(24) / "state.json")
    write(store, 20)
    assert store.steps() == [8, 16, 20]


def test_a_failing_removal_is_only_a_warning(store, monkeypatch):
    def busy(path, **options):
        if ".removing-" in str(path):
            raise OSError("busy")

    monkeypatch.setattr(shutil, "rmtree", busy)
    with pytest.warns(UserWarning, match="cannot remove the old checkpoint .*busy"):
        write(CheckpointStore(store.folder, keep=1), 32)
    assert CheckpointStore(store.folder).newest() == store.path(32)


def test_keep_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        CheckpointStore(tmp_path, keep=0)


# -- the start of a run ----------------------------------------------------------------------------


def test_the_first_start_is_remembered(tmp_path):
    store = CheckpointStore(tmp_path / "run")
    assert store.origin(lambda: {"metrics.jsonl": 5}) == {"metrics.jsonl": 5}
    assert store.origin(lambda: {"metrics.jsonl": 99}) == {"metrics.jsonl": 5}


@pytest.mark.parametrize("damage", [Path.unlink, lambda p: p.write_text("{")])
def test_a_damaged_start_is_restored_from_the_checkpoints(store, damage):
    before = store.newest()
    damage(store.folder / "start.json")
    assert store.origin(dict) == {"metrics.jsonl": 7}
    assert store.newest() == before
    write(store, 32)
    assert store.newest() == store.path(32)


def test_a_damaged_start_without_checkpoints_is_refused(tmp_path):
    (tmp_path / "start.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"start\.json is damaged"):
        CheckpointStore(tmp_path).origin(dict)


def test_a_checkpoint_of_another_run_is_passed_over(store, tmp_path):
    other = CheckpointStore(tmp_path / "other")
    other.origin(dict)
    write(other, 32)
    other.path(32).rename(store.path(32))
    with pytest.warns(UserWarning, match="step-000032: it belongs to another run"):
        assert store.newest() == store.path(24)


# -- writing ---------------------------------------------------------------------------------------


def test_all_is_on_the_disk_before_the_rename_and_the_rename_after(store, monkeypatch):
    events = []
    sync, rename = flushing.flush, Path.rename
    for module in (checkpoints, flushing):
        monkeypatch.setattr(
            module, "flush", lambda path: (events.append(f"sync {path.name}"), sync(path))
        )
    monkeypatch.setattr(
        Path, "rename", lambda self, to: (events.append(f"rename {to.name}"), rename(self, to))[1]
    )
    write(store, 32)
    place = events.index("rename step-000032")
    before, after = set(events[:place]), events[place + 1 :]
    names = ["state.json", "state.safetensors", "words.txt", "manifest.json", "tokenizer"]
    assert before >= {f"sync {name}" for name in [*names, ".writing-step-000032"]}
    assert after[0] == f"sync {store.folder.name}"


def fails(code: int):
    def failing(*_, **__):
        raise OSError(code, os.strerror(code))

    return failing


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "disk quota used up"),
        (errno.EFBIG, "file size limit reached"),
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "error"),
    ],
)
@pytest.mark.parametrize("where", ["mkdir", "write_text", "fsync", "rename"])
def test_a_failed_write_leaves_everything_as_it_was(store, monkeypatch, code, words, where):
    target = os if where == "fsync" else Path
    with monkeypatch.context() as patched:
        patched.setattr(target, where, fails(code))
        with pytest.raises(CheckpointError) as error:
            write(store, 32)
    assert str(error.value).startswith(f"{words} while writing {store.path(32)}:")
    assert str(error.value).endswith(f"the newest checkpoint is {store.path(24)}.")
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "start.json", "step-000008", "step-000016", "step-000024",
    ]  # fmt: skip
    assert store.newest() == store.path(24)
    write(store, 32)
    assert store.newest() == store.path(32)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_errors_pass_and_leave_nothing(store, error):
    def fill(folder: Path) -> Content:
        (folder / "state.json").write_text("{")
        raise error

    with pytest.raises(error):
        Saver(store, Ranks()).save(32, fill)
    assert not list(store.folder.glob(".*"))


# -- nested state ----------------------------------------------------------------------------------

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, a tuple from a list, nan as itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return torch.equal(*(t.contiguous().flatten().view(torch.uint8) for t in (a, b)))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5)
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$tensor", "$tuple", "$dict", "a"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(NESTED)
def test_nested_state_comes_back_exactly(tmp_path_factory, state):
    tensors, packed = states.pack(state)
    assert same(states.unpack(tensors, json.loads(json.dumps(packed, allow_nan=False))), state)


def test_tensors_and_arrays_come_back_exactly(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        str(dtype): torch.randint(0, 2, (3, 4), generator=generator).to(dtype) for dtype in DTYPES
    }
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    big = torch.arange(24.0).view(4, 6)
    state = {
        **tensors,
        "odd": odd,
        "scalar": torch.tensor(7),
        "none at all": torch.zeros(0, 5),
        "view": big[1:3],
        "transposed": big.T,
        "expanded": torch.ones(1).expand(4),
        "parameter's": torch.nn.Linear(2, 2).weight.detach(),
        "numpy": [np.arange(5).astype(d) for d in ("u4", "i2", "f8", "?", ">f8")],
        "numbers": (np.float64(0.1), np.int32(3), np.bool_(True)),
        0: {"0": torch.ones(1), 0: torch.zeros(1)},
    }
    save_state(tmp_path, "state", state)
    back = states.load(tmp_path, "state")
    state["numpy"][-1] = state["numpy"][-1].astype("f8")  # the same numbers in this machine's order
    assert same(state, back)


def test_tensors_come_back_in_aligned_memory_of_their_own(tmp_path):
    """Some kernels round differently on memory that begins anywhere, as a mapped file's does."""
    save_state(tmp_path, "state", [torch.ones(size) for size in range(1, 40)])
    back = states.load(tmp_path, "state")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in back)
    with (tmp_path / "state.safetensors").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - 4 * sum(range(1, 40)))
        file.write(bytes(4 * sum(range(1, 40))))
    assert all(bool((tensor == 1).all()) for tensor in back)


def test_a_tensor_that_occurs_twice_is_stored_once_and_is_one_again(tmp_path):
    x = torch.ones(1000)
    save_state(tmp_path, "state", [x, {"again": x}, x[:10]])
    assert (tmp_path / "state.safetensors").stat().st_size < 5000
    first, second, part = states.load(tmp_path, "state")
    assert first is second["again"] and torch.equal(part, x[:10])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": [1, {2}]}, "optimizer.a.1: builtins.set"),
        ({"a": b"x"}, "optimizer.a: builtins.bytes"),
        ({"a": (torch.nn.Linear(1, 1),)}, "optimizer.a.0: torch.nn"),
        ({"a": torch.eye(2).to_sparse()}, "optimizer.a: torch.Tensor"),
        ({"a": np.array(["x"])}, "optimizer.a: numpy.ndarray"),
        ({"a": 1j}, "optimizer.a: builtins.complex"),
        ({"a": lambda: 0}, "optimizer.a: builtins.function"),
        ({"a": Path("x")}, "optimizer.a: pathlib"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_known_is_refused_by_name(state, words):
    with pytest.raises(ValueError, match=f"cannot store {words}"):
        states.pack(state, "optimizer")


@pytest.mark.parametrize("packed", [{"$tensor": "gone"}, {"$call": "os.system"}, {"$array": 3}])
def test_unknown_tags_and_tensors_are_refused(packed):
    with pytest.raises(ValueError, match="cannot restore"):
        states.unpack({}, {"a": [packed]})
