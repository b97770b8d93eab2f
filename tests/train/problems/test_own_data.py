"""Data of one's own: columns by other names, splits and parts of splits, folders, mistakes."""

import json
from typing import Any

import pytest
from commands import trustclip

from trustclip.train.checks import complaints
from trustclip.train.data import check_data, data_table
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import STYLES
from trustclip.train.problems.sources import RowSelection, load_problems
from trustclip.train.settings.stages import RLStage, SFTStage

datasets = pytest.importorskip("datasets")

ROWS = [{"ask": f"What is {i}+1?", "gold": {"value": i + 1}, "level": i % 3} for i in range(30)]
MAPPED = RowSelection({"prompt": "ask", "answer": "gold.value"})


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder that ``datasets`` loads as it loads a repository of the hub: ``owner/name``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    whole = datasets.Dataset.from_list(ROWS)
    folder = tmp_path / "owner" / "name" / "data"
    folder.mkdir(parents=True)
    whole.to_parquet(folder / "train-00000-of-00001.parquet")
    whole.select(range(4)).to_parquet(folder / "test-00000-of-00001.parquet")
    return tmp_path


def test_a_hub_set_with_splits_and_parts_of_splits(hub):
    read = lambda source: load_problems(source, selection=MAPPED)  # noqa: E731
    assert len(read("hub:owner/name")) == 30
    assert read("hub:owner/name@train[:2]") == [
        Problem("name-1", "What is 0+1?", "1"),
        Problem("name-2", "What is 1+1?", "2"),
    ]
    assert [p.answer for p in read("hub:owner/name@test[1:]+train[29:]")] == ["2", "3", "4", "30"]
    assert len(load_problems("hub:owner/name", use="test", selection=MAPPED)) == 4
    with pytest.raises(ValueError, match=r"(?s)split .*Should be one of .*'train'"):
        read("hub:owner/name@tran[:10]")
    with pytest.raises(ValueError, match=r"(?s)config hard, .*default"):
        read("hub:owner/name:hard")
    with pytest.raises(ValueError, match="owner/name is a folder"):
        read("owner/name")  # without hub: the folder is meant
    with pytest.raises(ValueError, match="unknown problem source 'hub:own name'"):
        read("hub:own name")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_columns_of_a_file_and_a_wrong_one(tmp_path, suffix):
    flat = datasets.Dataset.from_list([{"ask": r["ask"], "to.gold": r["level"]} for r in ROWS])
    path = str(tmp_path / f"mine.{suffix}")
    getattr(flat, {"jsonl": "to_json"}.get(suffix, f"to_{suffix}"))(path)
    columns = {"prompt": "ask", "answer": "to.gold"}
    first = load_problems(path, selection=RowSelection(columns))[0]
    assert first == Problem("mine-1" if suffix != "csv" else "mine-2", "What is 0+1?", "0")
    with pytest.raises(ValueError, match=rf"mine.{suffix}@\[99:\] has no usable problem"):
        load_problems(f"{path}@[99:]", selection=RowSelection(columns))
    kept = load_problems(
        path, selection=RowSelection({"prompt": "ask", "hard": "to.gold"}, False, True)
    )[1]
    assert {k: int(v) for k, v in kept.columns.items()} == {"hard": 1} and kept.answer == ""
    wrong = (
        rf"mine.{suffix}: `columns` takes prompt from 'aks'.*mean 'ask'\? Columns: ask, to.gold\."
    )
    with pytest.raises(ValueError, match=wrong):
        load_problems(path, selection=RowSelection({"prompt": "aks"}))
    with pytest.raises(ValueError, match="`columns` takes hard from 'levl'"):
        load_problems(path, selection=RowSelection({**columns, "hard": "levl"}))
    with pytest.raises(
        ValueError, match=r"the row has ask, to.gold: name the one to take in `columns`"
    ):
        load_problems(path)


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"columns": {"prompt": "a", "question": "b"}}, "columns", "names the problem twice"),
        ({"columns": {"completions": "a"}}, "columns", "rewards get 'completions' from the tr"),
    ],
)
def test_settings_that_contradict_each_other(changes, place, words):
    for stage in (RLStage, SFTStage):
        found = [*complaints(stage(**({"dataset": "owner/name"} | changes)))]
        assert any(where[0] == place and words in text for where, text in found), found


def test_the_command_trains_on_a_part_of_a_split_and_names_mistakes(hub):
    args = ("sft", "--model", "tiny", "--max-steps", "1",
            "--columns.prompt", "ask", "--columns.answer", "gold.value")  # fmt: skip
    done = trustclip(*args, "--dataset", "hub:owner/name@train[:6]", "--columns.solution", "ask",
                     "--output-dir", "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((hub / "run" / "summary.json").read_text())["problems"] == 6
    done = trustclip(*args, "--dataset", "hub:owner/name@tran", "--output-dir", "other")
    assert done.returncode == 2 and "Should be one of ['train', 'test']" in done.stderr
    done = trustclip("eval", "--model", "tiny", "--tasks", "hub:owner/name@test", "--k", "1",
                     "--max-tokens", "2", "--columns.prompt", "aks",
                     "--output-dir", "eval")  # fmt: skip
    assert done.returncode == 2 and "Did you mean 'ask'? Columns: ask, gold, level." in done.stderr


def test_a_column_of_two_types_is_named(tmp_path, monkeypatch):
    def table(*rows: dict[str, Any]) -> Any:
        problems = [Problem(str(n), "1+1", "2", columns=row) for n, row in enumerate(rows)]
        return data_table(problems, STYLES["plain"])

    with pytest.raises(ValueError, match=r"the column 'a' .* several types \(int, str\)"):
        table({"a": 1, "b": 2}, {"a": "one", "b": 3})
    assert table({"a": 1}, {"a": None}).column_names == ["a", "answer", "id", "prompt"]
    later = table({}, {"a": 1})  # a column that the first row lacks
    assert later["a"][:] == [None, 1]
    check_data([Problem("0", "1+0", ""), Problem("1", "1+1", "2")], RLStage(dataset="a.csv"))
