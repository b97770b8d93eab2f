"""The notebooks run from an empty folder, and the outputs they were committed with are theirs."""

import json
import re
from pathlib import Path

import pytest
from programs import program

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def runner():
    return program(FOLDER / "run.py")


def printed(notebook) -> list[str]:
    """The first line that each cell printed."""
    said = [
        "".join(output["text"]).splitlines()[0]
        for cell in runner().code_cells(notebook)
        for output in cell["outputs"]
        if output["output_type"] == "stream"
    ]
    return [line for line in said if not line.startswith("warning at update")]


def absolute_paths(notebook) -> list[str]:
    """Paths from the root of a file system, in all but the pictures and the addresses of pages."""
    held = json.loads(json.dumps(notebook))
    for cell in held["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
    text = re.sub(r"https?://\S+", "", json.dumps(held))
    return re.findall(r"(?<![\w.<])/\w+/", text)


def test_there_are_three_and_they_are_small():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < runner().MOST
        notebook = json.loads(text)
        assert not absolute_paths(notebook)
        cells = runner().code_cells(notebook)
        assert "pip install '.[train,report]'" in "".join(cells[0]["source"])
        assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_every_cell_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    again = runner().executed(json.loads(json.dumps(stored)))
    assert len(printed(again)) == len(printed(stored)) > 1
    if path.stem == "is-the-difference-real":  # which trains nothing: the same on every machine
        assert printed(again) == printed(stored)
