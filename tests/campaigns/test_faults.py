"""A few seeds of every campaign of faults; ``make faults`` plays as many as one likes."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from faults import evaluations, planted, real, runs, setups, standin, stores
from faults.disk import Disk, File

from trustclip.support.jsonl import read_jsonl
from trustclip.train.problems.problem import Problem
from trustclip.train.runs.directory import RunDirectory

#: Seeds that have found something, by campaign: as played when it was found, and since.
FOUND = {
    "runs": (0, 2, 5, 12, 38),
    "stores": (28, 209),
    "evaluations": (0, 3, 21, 37),
}


def played(campaign: str, found: dict) -> None:
    """No seed has failed; the message says what happened and how to play the seed alone."""
    told = [
        f"{story}\nreplay: python -m tests.campaigns.faults {campaign} --seed {seed}"
        for seed, story in found["failures"].items()
    ]
    assert not told, "\n\n".join(told)


def seeds(campaign: str, number: int):
    return sorted({*range(number), *FOUND.get(campaign, ())})


def test_runs():
    found = runs.campaign(seeds("runs", 9))
    played("runs", found)
    assert found["power cuts"] == found["processes"] > 30
    assert found["operations of one process"] > 300


def test_stores():
    found = runs.campaign(seeds("stores", 60), stores.runs)
    played("stores", found)
    assert found["power cuts"] == found["processes"] > 120
    assert found["operations of one process"] > 150


def test_evaluations():
    played("evaluations", runs.campaign(seeds("evaluations", 15), evaluations.runs))


@pytest.mark.slow
def test_real_runs():
    played("real", runs.campaign(range(5), real.runs))


# Planted bugs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", planted.bugs(), ids=lambda bug: f"{bug.number} {bug.name}")
def test_a_planted_bug_has_its_place(bug: planted.Bug):
    text = (planted.ROOT / "src" / "trustclip" / bug.file).read_text()
    assert compile(bug.planted(text), bug.file, "exec")
    for file, _, name in (test.partition("::") for test in bug.tests):
        assert f"def {name}" in (planted.ROOT / "tests" / file).read_text(), "its test is gone"


def test_a_planted_bug_whose_place_is_gone_is_named():
    bug = planted.Bug(99, "nothing is flushed", "support/flush.py", "old", "new")
    for text in ("", "old old"):
        with pytest.raises(planted.PlantError, match=r"99 \(nothing is flushed\) does not apply"):
            bug.planted(text)
    assert bug.planted("an old line") == "an new line"


def play_planted(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.campaigns.faults.planted", *arguments]
    done = subprocess.run(command, cwd=planted.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_sample_of_the_planted_bugs_is_caught():
    few = ["--seeds", "stores=40", "runs=0", "evaluations=0"]
    assert "caught 3 / 3 planted" in play_planted("--only", "2", "5", "11", *few)


# What was found, each in the smallest form --------------------------------------------------------


def test_problems_are_recorded_all_or_none(tmp_path: Path):
    run = RunDirectory.__new__(RunDirectory)
    run._open(tmp_path)
    problems = [Problem(str(i), "1 + 1", "2") for i in range(3)]
    run.problems(problems[:1])
    with (tmp_path / "problems.jsonl").open("ab") as file:
        file.write(b'{"id": "torn')
    run.problems(problems)
    assert [row["id"] for row in read_jsonl(tmp_path / "problems.jsonl")] == ["0", "1", "2"]
    before = (tmp_path / "problems.jsonl").stat()
    run.problems(problems)
    assert (tmp_path / "problems.jsonl").stat().st_ino == before.st_ino  # nothing to write


# The disk itself ----------------------------------------------------------------------------------


def survivors(change, tries: int = 200) -> set:
    """What a disk may hold after a change: its names with their contents, over many power cuts."""
    found = set()
    for seed in range(tries):
        with runs.memory_folder() as root:
            disk = Disk(root)
            change(disk)
            disk.cut_power(random.Random(seed))
            files = sorted(p for p in root.rglob("*") if p.is_file())
            found.add(tuple((p.name, p.read_bytes()) for p in files))
    return found


def file_at(disk: Disk, name: str, content: bytes) -> File:
    place, file = disk.place(f"{disk.root}/{name}"), File()
    assert place is not None
    disk.move((place, file))
    file.change(0, content)
    return file


def test_content_and_name_are_flushed_apart():
    def content(disk: Disk) -> None:
        disk.sync(file_at(disk, "a", b"abcd"))

    def both(disk: Disk) -> None:
        content(disk)
        disk.sync(disk.top)

    assert survivors(content) == {(), (("a", b"abcd"),)}
    assert survivors(both) == {(("a", b"abcd"),)}


def test_names_change_in_any_order_but_a_rename_is_whole():
    def change(disk: Disk) -> None:
        for name in ("a", "b"):
            disk.sync(file_at(disk, name, name.encode()))
        disk.sync(disk.top)
        for old, new in (("a", "c"), ("b", "d")):
            before, after = disk.place(f"{disk.root}/{old}"), disk.place(f"{disk.root}/{new}")
            assert before is not None and after is not None
            disk.move((before, None), (after, before.node))

    names = {tuple(name for name, _ in state) for state in survivors(change)}
    assert names == {("a", "b"), ("c", "d"), ("b", "c"), ("a", "d")}


# Threads that take turns --------------------------------------------------------------------------


def test_a_seed_of_several_ranks_and_a_writer_behind_them_plays_the_same_each_time():
    setup = setups.Setup(keep=2, every=1, background=True, ranks=3)
    with runs.memory_folder() as base:
        player = runs.Runs(standin.work, base, lambda _: setup)
        told = [player.play(1) for _ in range(2)]
    assert told[0] == told[1]
