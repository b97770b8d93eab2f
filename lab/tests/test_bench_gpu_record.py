"""What a session on a GPU says to ``head="auto"``, from results that are made up."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trustclip.head import measured
from trustclip_lab.bench.gpu import record
from trustclip_lab.bench.gpu.cases import Row

BOX: dict[str, Any] = {
    "capability": "9.0",
    "device": "A GPU",
    "date": "2026-11-22",
    "packages": {},
    "processor": "p",
}
PASSES = Row("correctness", "float32", "done", values={"passes": True, "errors": {}})


def race(trained: bool, ours: float, theirs: float | None = 10.0, **more: Any) -> Row:
    lines = [{"label": record.OURS, "products": 2, "ms": ours, "error": more.pop("error", 1e-3)}]
    if theirs is not None:
        lines.append({"label": record.THEIRS, "products": 3, "ms": theirs})
    values = {"shape": f"N = {ours:g}", "trained": trained, "tiny": False, "lines": lines, **more}
    return Row("head", f"{trained}, {ours}", "done", values=values)


GOOD = [PASSES, race(False, 4.0), race(False, 5.0), race(True, 8.0)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's table, in a place of its own."""
    path = tmp_path / "package" / "measured.json"
    path.parent.mkdir()
    path.write_text('{"8.0": {"frozen": 0.9, "trained": 0.8}}')
    monkeypatch.setattr(measured, "FILE", path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return path


def serves() -> list[bool]:
    return [measured.serves(torch.device("cuda"), trained) for trained in (False, True)]


def adopted(folder: Path, rows: list[Row], box: dict[str, Any] = BOX) -> str:
    """Copy what a session wrote, if it did, to the package; what its page says."""
    record.write_entry(folder, box, rows)
    if (folder / "measured.json").exists():
        measured.FILE.write_text((folder / "measured.json").read_text())
    return record.words(box, rows)


def test_a_faster_head_is_taken_once_its_entry_is_copied(tmp_path, table):
    record.write_entry(tmp_path, BOX, GOOD)
    assert serves() == [False, False]
    text = adopted(tmp_path, GOOD)
    assert "the worst of 3 shapes: frozen 0.5, trained 0.8" in text
    assert serves() == [True, True]
    found = json.loads(table.read_text())
    assert found["8.0"] == {"frozen": 0.9, "trained": 0.8}  # another architecture stays
    assert (found["9.0"]["frozen"], found["9.0"]["trained"]) == (0.5, 0.8)


def test_where_it_is_slower_it_is_not_taken(tmp_path, table):
    text = adopted(tmp_path, [*GOOD, race(True, 12.0)])  # one shape of two
    assert serves() == [True, False] and "takes this head where it is frozen on" in text


@pytest.mark.parametrize(
    "wrong",
    [
        Row("correctness", "float32", "done", values={"passes": False, "errors": {}}),
        Row("correctness", "two streams", "failed", "RuntimeError: CUDA error"),
        race(False, 3.0, error=0.5),
        race(False, 3.0, error=None),
        race(True, 3.0, error=float("nan")),
    ],
)
def test_where_it_is_wrong_it_is_not_taken_however_fast(tmp_path, table, wrong):
    text = adopted(tmp_path, [*GOOD, wrong])
    assert serves() == [False, False] and "keeps TRL's head (wrong on 2026-11-22: " in text


def test_a_method_that_fails_elsewhere_says_nothing_about_the_head():
    other = Row("correctness", "every method", "done", values={"passes": False, "errors": {}})
    assert "refused" not in record.entry(BOX, [*GOOD, other])


@pytest.mark.parametrize(
    ("rows", "box", "why"),
    [
        (GOOD, {k: v for k, v in BOX.items() if k != "capability"}, "no GPU was at hand"),
        (GOOD[1:], BOX, "`correctness` has not run"),
        (GOOD[:3], BOX, "no race of a trained head"),
        ([*GOOD[:3], race(True, 8.0, theirs=None)], BOX, "has both `trustclip` and `TRL, chunked`"),
        ([*GOOD[:3], race(True, 8.0, tiny=True)], BOX, "no race of a trained head"),
    ],
)
def test_what_is_not_measured_is_not_written(tmp_path, table, rows, box, why):
    record.write_entry(tmp_path, BOX, GOOD)  # of an earlier call, on this machine
    assert why in adopted(tmp_path, rows, box) and not (tmp_path / "measured.json").exists()
    assert serves() == [False, False]


def test_the_committed_table_is_well_formed():
    for capability, entry in json.loads(measured.FILE.read_text()).items():
        assert [int(number) for number in capability.split(".")] and entry["device"]
        assert entry["frozen"] > 0 and entry["trained"] > 0
