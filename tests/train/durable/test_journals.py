"""Append-only files of a run on resume: cut back to the checkpoint, refused where damaged."""

import pytest

from trustclip.logs.samples import shards
from trustclip.support.jsonl import append_jsonl, read_jsonl, scan
from trustclip.train.problems.problem import Problem
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import DemoSettings

JOURNALS = ["metrics.jsonl", "samples.jsonl", "gates.jsonl", "problems.jsonl"]


def recorded(path):
    run = RunDirectory(path, "demo", DemoSettings())
    run.problems([Problem(id="a", problem="1+1?", answer="2")])
    for step in (1, 2):
        run.log({"step": step, "reward": 0.5})
        run.sample([{"step": step, "response": "2"}])
        run.gates({"step": step, "shares": [0.0]})
    return run


def resumed(run):
    return RunDirectory.resumed(run.path, "demo", DemoSettings())


@pytest.mark.parametrize("name", JOURNALS)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_bit_before_the_checkpoint_is_refused(tmp_path, name, where):
    run = recorded(tmp_path / "run")
    cursor = run.cursor()
    run.log({"step": 3})
    path = run.path / name
    content = bytearray(path.read_bytes())
    size = cursor[name]["bytes"]
    content[{"first": 0, "middle": size // 2, "last": size - 2}[where]] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} has changed since the checkpoint"):
        resumed(run).rewind(cursor)


def test_what_came_after_the_checkpoint_may_be_damaged(tmp_path):
    run = recorded(tmp_path / "run")
    cursor = run.cursor()
    before = (run.path / "metrics.jsonl").read_bytes()
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3}\n\xff\x00')
    run.problems([Problem(id="b", problem="1+2?", answer="3")])
    again = resumed(run)
    again.rewind(cursor)
    assert (run.path / "metrics.jsonl").read_bytes() == before
    assert [row["id"] for row in read_jsonl(run.path / "problems.jsonl")] == ["a", "b"]
    assert again.cursor().keys() == cursor.keys()


def test_a_line_stands_where_its_offset_says_behind_empty_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n  \n{"a": 2}\n\n{"a": ')
    content = path.read_bytes()
    for line in scan(path):
        assert content[line.offset :].startswith(line.content)
    append_jsonl(path, [{"a": 3}])  # cuts the torn line off, and nothing else
    assert [row["a"] for row in read_jsonl(path)] == [1, 2, 3]


def test_samples_are_read_rank_by_rank(tmp_path):
    stems = ["samples", "samples-rank1", "samples-rank2"]
    for stem in reversed(stems):
        (tmp_path / f"{stem}.jsonl").write_text("")
    assert [path.stem for path in shards(tmp_path)] == stems


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("lost", ["metrics.jsonl", "samples.jsonl"])
def test_nothing_is_cut_where_one_file_is_refused(tmp_path, lost, linked):
    run = recorded(tmp_path / "run")
    cursor = run.cursor()
    run.gates({"step": 3, "shares": [0.0]})
    (run.path / lost).rename(tmp_path / "rows")
    if linked:  # a file that is cut would be one outside of the run
        (run.path / lost).symlink_to(tmp_path / "rows")
    before = (run.path / "gates.jsonl").read_bytes()
    with pytest.raises(ValueError, match=f"{lost} {'is a link' if linked else 'has lost lines'}"):
        resumed(run).rewind(cursor)
    assert (run.path / "gates.jsonl").read_bytes() == before
