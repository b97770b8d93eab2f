"""What a session on a GPU says to ``head="auto"``, from results that are made up."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trustclip.head import measured
from trustclip_lab.bench.gpu import page, record
from trustclip_lab.bench.gpu.cases import Row
from trustclip_lab.bench.gpu.session import GpuOptions, Session
from trustclip_lab.bench.gpu.session import run as session

BOX: dict[str, Any] = {
    "capability": "sm_90",
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


draw = page._figure


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's figures take longer than all the rest of it; one test has them drawn."""
    monkeypatch.setattr(page, "_figure", lambda name, done: "<svg/>" if done else None)


def serves() -> list[bool]:
    return [measured.serves(torch.device("cuda"), trained) for trained in (False, True)]


def written(folder: Path, rows: list[Row], box: dict[str, Any] = BOX) -> str:
    page.write_results(folder, box, ["correctness", "head"], rows, lambda name: [])
    return (folder / "README.md").read_text()


def test_a_session_s_entry_is_adopted_and_the_head_is_taken(tmp_path, table, monkeypatch):
    monkeypatch.setattr(page, "_figure", draw)
    text = written(tmp_path, GOOD)
    assert (tmp_path / "head.svg").read_text().startswith("<svg") and "head.svg" in text
    assert (
        "the worst of 3 shapes: frozen 0.5, trained 0.8" in text and "GPU_OPTIONS=--adopt" in text
    )
    assert json.loads((tmp_path / "results.json").read_text())["head"]["trained"] == 0.8
    assert serves() == [False, False]  # not before it is adopted
    found = record.adopt(tmp_path)
    assert serves() == [True, True]
    assert [tuple(row[:3]) for row in found.rows] == [
        ("8.0", "frozen", 0.9), ("8.0", "trained", 0.8),
        ("9.0", "frozen", 0.5), ("9.0", "trained", 0.8),
    ]  # fmt: skip
    assert json.loads(table.read_text())["8.0"] == {"frozen": 0.9, "trained": 0.8}


def test_where_it_is_slower_it_is_not_taken(tmp_path, table):
    text = written(tmp_path, [*GOOD, race(True, 12.0)])  # one shape of two
    record.adopt(tmp_path)
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
    written(tmp_path, GOOD)
    record.adopt(tmp_path)
    text = written(tmp_path, [*GOOD, wrong])
    record.adopt(tmp_path)
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
    written(tmp_path, GOOD)  # of an earlier call, on this machine
    text = written(tmp_path, rows, {**box, "date": "2026-11-23"})
    assert why in text and not (tmp_path / "measured.json").exists()
    before = table.read_text()
    assert "Nothing to adopt" in record.adopt(tmp_path).notes[0]
    assert table.read_text() == before and serves() == [False, False]


def test_the_command_adopts(tmp_path, table, monkeypatch):
    monkeypatch.setattr(Session, "run_stage", lambda self, name, seconds: None)
    made = session(GpuOptions(out=tmp_path / "out", stages="correctness", adopt=True))
    # On a machine without a GPU there is nothing to.
    assert made[-1].title == "The head's table" and "Nothing to adopt" in made[-1].notes[0]


def test_another_architecture_stays_in_the_table():
    first = json.loads(record.with_measurement({}, (8, 0), frozen=0.9, trained=0.8))
    both = json.loads(record.with_measurement(first, (9, 0), frozen=0.5, trained=0.6))
    assert both == first | {"9.0": {"frozen": 0.5, "trained": 0.6}}


@pytest.mark.parametrize("wrong", [{}, {"frozen": 1.0}, {"frozen": 1, "trained": -1}])
def test_no_measurement_without_its_ratios(wrong):
    with pytest.raises(ValueError, match="must be a ratio above 0"):
        record.with_measurement({}, (9, 0), **wrong)


def test_the_committed_table_is_well_formed():
    for capability, entry in json.loads(measured.FILE.read_text()).items():
        major, minor = map(int, capability.split("."))
        record.with_measurement({}, (major, minor), **entry)
