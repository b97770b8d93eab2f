"""A few seeds of every campaign of faults; ``make faults`` plays as many as one likes."""

import random
import warnings
from pathlib import Path
from unittest import mock

import pytest
from faults import evaluations, fuzz, numerics, pages, real, runs, stores, suites, verifier
from faults.__main__ import timely
from faults.disk import Disk, File, Folder

from trustclip.runs.directory import RunDirectory
from trustclip.runs.jsonl import append_jsonl, extend_jsonl, read_jsonl
from trustclip.tasks.problem import Problem

#: Seeds that have found something, by campaign: as played when it was found, and since.
FOUND = {
    "runs": (3, 7, 18, 212, 1025, 1076),
    "stores": (7552,),
    "evaluations": (19, 33, 44, 59, 93, 238),
    "pages": (5, 11, 41, 44, 84, 151, 162, 202),
}


def played(campaign: str, found: dict) -> None:
    """No seed has failed; the message says what happened and how to play the seed alone."""
    told = [
        f"{story}\nreplay: python -m tests.faults {campaign} --seed {seed}"
        for seed, story in found["failures"].items()
    ]
    assert not told, "\n\n".join(told)


def seeds(campaign: str, number: int):
    return sorted({*range(number), *FOUND.get(campaign, ())})


def test_runs():
    found = runs.campaign(seeds("runs", 25))
    played("runs", found)
    assert found["power cuts"] > 10 and found["operations of one process"] > 300


def test_stores():
    found = runs.campaign(seeds("stores", 100), stores.runs)
    played("stores", found)
    assert found["power cuts"] > 40 and found["operations of one process"] > 150


def test_evaluations():
    played("evaluations", runs.campaign(seeds("evaluations", 15), evaluations.runs))


def test_suites():
    found = suites.campaign(range(6))
    played("suites", found)
    assert found["second hosts"] > 5


def test_pages():
    found = pages.campaign(seeds("pages", 5))
    played("pages", found)
    assert found["pages"] and found["sentences"]


def test_numerics():
    played("numerics", numerics.campaign(range(1), rows=500))


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_parsers(target: str, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fuzz.smoke(target, 10 if target == "recipe" else 200, seed=1)


@pytest.mark.slow
def test_real_runs():
    played("real", runs.campaign(range(5), real.runs))


@pytest.mark.slow
def test_verifier():
    played("verifier", verifier.campaign(range(2)))


# What was found, each in the smallest form --------------------------------------------------------


@pytest.mark.parametrize(("kind", "number"), [(runs.stand_in, 30), (stores.runs, 60)])
def test_without_flushed_names_a_power_cut_loses_checkpoints(kind, number):
    """The campaigns see what they are there to see."""
    with mock.patch("trustclip.durable.store.flush_way", lambda _: None):
        failures = runs.campaign(range(number), kind)["failures"]
    assert any("was saved" in story for story in failures.values())


def test_seeds_end_with_their_time():
    assert list(timely(range(3, 9), 0.0)) == []
    assert list(timely(range(3, 9), 1e6)) == [3, 4, 5, 6, 7, 8]


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


def test_rows_behind_a_line_without_its_end(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}')
    extend_jsonl(path, [{"a": 3}])
    append_jsonl(path, [{"a": 4}])
    assert [row["a"] for row in read_jsonl(path)] == [1, 2, 3, 4]


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


def test_nothing_is_safe_that_was_not_flushed():
    found = survivors(lambda disk: file_at(disk, "a", b"abcd"))
    contents = {dict(state).get("a") for state in found}
    assert {None, b"", b"abcd", b"ab", bytes(4)} <= contents
    assert any(content and b"\0" in content and content.strip(b"\0") for content in contents)


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


def test_what_a_failed_flush_lost_stays_lost():
    def change(disk: Disk) -> None:
        file = file_at(disk, "a", b"abcd")
        disk.sync(disk.top)
        disk.lose(file)
        disk.sync(file)

    assert survivors(change) == {(("a", b""),)}


def test_a_folder_is_found_by_its_name():
    def change(disk: Disk) -> None:
        place = disk.place(f"{disk.root}/folder")
        assert place is not None
        disk.move((place, Folder()))
        disk.sync(file_at(disk, "folder/a", b"abcd"))
        assert place.node is not None
        disk.sync(place.node)  # its own name is still not safe

    assert survivors(change) == {(), (("a", b"abcd"),)}
