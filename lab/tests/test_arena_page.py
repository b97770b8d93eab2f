"""From a small arena to its page: what is shown, and what is left out."""

import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("pyarrow")
pytest.importorskip("plotly")

from arena_entry import Entry, combine, read_entry
from arena_page import contents, headline, tables_text, write_page

from trustclip.support.terminal import Terminal
from trustclip_lab.arena.run import load, run_arena

PLAN = {
    "lab": {
        "policy": "window", "width": 8, "group": 4, "eval_prompts": 16, "eval_samples": 2,
        "pass_k": 4, "distances": False, "sft_steps": 10, "generations": 2, "prompts": 8,
    },
    "tasks": {"teacher": {"reaches": 0.2}, "many": {"reaches": 0.4}},
    "depths": {4: {}, 8: {}},
    "learning_rates": [6.0e-3, 2.4e-2],
    "tuning": {"first": 1000, "count": 2},
    "test": {"first": 0, "count": 5},
    "constraints": {
        "atr": {"name": "atr", "delta": [0.02, 0.07]},
        "twin": {"bounds_of": "atr"},
        "none": {"name": "importance_sampling"},
    },
    "axes": {"noise": {"task": "many", "depth": 4, "changes": {"noise": 0.2}}},
    "contrasts": {"a constraint against none": ["atr", "none"]},
    "controls": {"k3 against its twin": ["atr", "twin"]},
}  # fmt: skip
MINE = {
    "constraints": {"mine": {"name": "clip", "epsilon": [0.1, 0.2]}},
    "contrasts": {},
    "controls": {},
}


def made(folder: Path, plan: dict) -> Path:
    file = folder / "plan.yaml"
    folder.mkdir()
    file.write_text(yaml.safe_dump(plan | {"output_dir": str(folder / "out")}))
    run_arena(load(file, {}), Terminal(quiet=True))
    return folder / "out"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("arena")
    return made(root / "arena", PLAN), made(root / "mine", PLAN | MINE)


@pytest.fixture(scope="module")
def entries(folders: tuple[Path, Path]) -> tuple[Entry, Entry]:
    arena, mine = folders
    return read_entry(arena), read_entry(mine)


def test_the_page_shows_every_constraint_and_its_method(
    entries: tuple[Entry, Entry], tmp_path: Path
) -> None:
    arena, _ = entries
    found = contents(arena, arena.links("methods/{}.html"))
    assert [section.key for section in found.sections] == [
        "scores", "contrasts", "tuning", "profiles", "tasks", "collapse", "scores-noise",
    ]  # fmt: skip
    text = tables_text(found)
    assert "[twin](methods/clip_higher.html)" in text
    assert "| k3 against its twin (atr, twin) | 20 | 20 | yes |" in text
    page = write_page(found, tmp_path / "arena.html").read_text()
    assert headline([])[:5] == "Of 0 "
    assert "Of 1 contrasts" in page
    assert '<a href="methods/importance_sampling.html">none</a>' in page
    own = page[: page.index("<script")] + page[page.rindex("</script>") :]
    assert not re.search(r"(?:src|href)=\"https?://", own)  # one file, no network


def test_an_incomplete_setting_is_left_out(entries: tuple[Entry, Entry]) -> None:
    arena, _ = entries
    lacking = arena.runs
    gone = (lacking["stage"] == "test") & (lacking["depth"] == 8) & (lacking["seed"] == 3)
    gone &= lacking["task"] == "many"
    found = tables_text(contents(Entry(arena.settings, lacking.at(~gone)), {}))
    assert "| constraint | many depth 4 | teacher depth 4 | teacher depth 8 |" in found
    none = (lacking["stage"] == "test") & (lacking["seed"] == 3)
    with pytest.raises(ValueError, match="no setting of the table is complete"):
        contents(Entry(arena.settings, lacking.at(~none)), {})


def test_a_constraint_beside_the_arena_changes_none_of_its_numbers(
    entries: tuple[Entry, Entry],
) -> None:
    arena, mine = entries
    alone, both = (contents(entry, {}) for entry in (arena, combine(arena, [mine])))
    assert alone.headline == both.headline
    assert [f.text for f in alone.findings] == [f.text for f in both.findings]
