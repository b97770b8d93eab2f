"""The gate (`trustclip.support.inside`) between names that a file states and files of a machine."""

import os

import pytest

from trustclip.support.inside import Inside, OutsideError, itself, part_of, refuse_links


@pytest.fixture
def folder(tmp_path):
    """A folder beside a file of somebody else's."""
    (tmp_path / "victim.txt").write_text("mine")
    inside = tmp_path / "run"
    (inside / "tokens").mkdir(parents=True)
    (inside / "own.txt").write_text("own")
    return inside


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/", "../victim.txt", "tokens/../../victim.txt", "./own.txt", "tokens//a",
        "tokens/", "/etc/passwd", "a\0b", None, 3, ["own.txt"], b"own.txt", "tokens",
        "own.txt/inner", "pipe", "file-link", "folder-link/new.txt",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(folder, name):
    os.mkfifo(folder / "pipe")
    (folder / "file-link").symlink_to("../victim.txt")
    (folder / "folder-link").symlink_to("..")
    with pytest.raises(OutsideError):
        Inside(folder).path(name)


@pytest.mark.parametrize("name", ["own.txt", "new.txt", "tokens/new.txt", "not/yet/there.txt"])
def test_a_name_of_a_file_is_its_path(folder, name):
    assert Inside(folder).path(name) == folder / name
    link = folder.with_name("link-to-the-run")
    link.symlink_to(folder)
    assert Inside(link).path(name) == link / name


@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "a+b"])
def test_what_is_a_link_is_not_opened(folder, mode):
    (folder / "link").symlink_to("../victim.txt")
    with pytest.raises(OutsideError, match="link is a link"):
        open(folder / "link", mode, opener=itself).close()
    with open(folder / "own.txt", mode, opener=itself) as file:
        assert file.fileno()
    assert (folder.parent / "victim.txt").read_text() == "mine"


@pytest.mark.parametrize("mode", ["rb", "r+b", "ab"])
def test_nor_is_a_pipe_which_could_wait_for_ever(folder, mode):
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError if mode == "ab" else OutsideError):  # ENXIO: nobody reads it
        open(folder / "pipe", mode, opener=itself).close()


def test_what_replaces_a_file_is_written_beside_it_and_through_no_link(folder):
    (folder / "own.txt.part").symlink_to("../victim.txt")
    with part_of(folder / "own.txt").open("x") as file:
        file.write("new")
    assert (folder.parent / "victim.txt").read_text() == "mine"
    assert not (folder / "own.txt.part").is_symlink()


@pytest.mark.parametrize(
    ("name", "target", "refused"),
    [
        ("link", "../victim.txt", True), ("link", "..", True), ("link", "../new", True),
        ("tokens/link", "../../victim.txt", True), ("link", "/etc/passwd", True),
        ("link", "own.txt", False), ("tokens/link", "../own.txt", False),
        ("link", "tokens", False), ("link", "not-yet", False), ("link", "../run/own.txt", False),
    ],
)  # fmt: skip
def test_a_link_out_of_a_folder_is_refused_at_any_depth(folder, name, target, refused):
    (folder / name).symlink_to(target)
    if not refused:
        return refuse_links(folder)
    with pytest.raises(OutsideError, match=r"is a link to .*outside of"):
        refuse_links(folder)
    refuse_links(folder / "absent")
