"""Recipes and suites come with the package, and can be run by name from any folder."""

from pathlib import Path

import pytest

from trustclip.cli.main import main
from trustclip.train.shipped import command_of, copy_shipped, locate, shipped, title

REPOSITORY = Path(__file__).parents[2] / "recipes"
LAB = REPOSITORY.parent / "lab" / "src" / "trustclip_lab" / "recipes"


def test_every_file_of_the_repository_comes_with_the_package():
    there = [p for p in REPOSITORY.rglob("*.yaml") if p.parent.name != "launch"]
    there += LAB.rglob("*.yaml")
    names = [path.stem for path in there]
    assert len(set(names)) == len(names) and shipped().keys() == set(names)
    for path in there:
        assert shipped()[path.stem].read_bytes() == path.read_bytes()
        assert len(title(path)) > 20


def test_a_name_is_a_file_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert locate(Path("recipes/suites/table3-tiny.yaml")).parent.name == "suites"
    assert locate(Path("other/tiny.yaml")) == Path("other/tiny.yaml")
    Path("tiny").write_text("name: mine\n")
    assert locate(Path("tiny")) == Path("tiny"), "the user's own comes first"
    assert main(["run", "tinny"]) == 2
    assert "did you mean 'tiny'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny", "table3-tiny"])
def test_a_copy_is_valid_anywhere(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", name]) == 0
    assert f"trustclip {command_of(shipped()[name])} {name}.yaml" in capsys.readouterr().out
    if name == "tiny":
        from trustclip.train.files import load_recipe

        assert load_recipe(Path("tiny.yaml")) == load_recipe(shipped()[name])
    else:
        assert main(["suite", "table3-tiny.yaml", "--dry-run"]) == 0
    assert main(["recipes", name]) == 2
    assert "exists; name another file" in capsys.readouterr().err


def test_they_are_listed(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "trustclip run tiny\n" in out and "trustclip suite table3-tiny\n" in out
    with pytest.raises(ValueError, match="unknown recipe 'tinny'; did you mean 'tiny'"):
        copy_shipped("tinny", Path())
