"""The house is what README and packaging say: its rooms, its versions, its oldest dependencies."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import trustclip

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "trustclip"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_tree_in_the_readme_is_the_real_one() -> None:
    layout = (ROOT / "README.md").read_text().partition("## Layout")[2]
    listed = re.findall(r"^  (\w+)/ ", layout, re.MULTILINE)
    rooms = [p.parent.name for p in SOURCE.glob("*/__init__.py")]
    assert sorted(listed) == sorted(rooms)
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]
    layers = [re.findall(r"trustclip\.(\w+)", layer) for layer in reversed(contract["layers"])]
    for below, above in pairwise(layers):
        assert max(map(listed.index, below)) < min(map(listed.index, above)), (below, above)


def test_every_room_says_in_its_first_line_what_it_is() -> None:
    for init in SOURCE.rglob("__init__.py"):
        assert init.read_text().startswith(('"""', 'r"""')), init


def test_no_loose_file_at_the_top() -> None:
    assert {p.name for p in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_one_version_everywhere() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert PROJECT["project"]["version"] == trustclip.__version__ == cited[1]


def test_the_oldest_requirements_are_the_lower_bounds() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    tested = ("train", "cli", "report", "control", "slurm")
    bounds = PROJECT["project"]["dependencies"] + [r for e in tested for r in extras.get(e, [])]
    lowest = {}
    for bound in bounds:
        if found := re.match(r"([\w-]+)(?:\[.*?\])?>=([\d.]+)", bound):
            lowest[found[1].lower()] = found[2]
    lines = (ROOT / "requirements" / "oldest.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    missing = lowest.keys() - pins.keys() - {"gymnasium"}
    assert not missing
    for name, bound in lowest.items():
        if name in pins:
            assert _parts(pins[name]) == _parts(bound), f"{name}: {pins[name]} is not {bound}"


def _parts(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


@pytest.mark.parametrize("name", ["controllers", "divergences", "gates", "methods", "method"])
def test_public_names_are_found_by_completion_and_survive_imports(name: str) -> None:
    import trustclip.methods.atr

    assert name in dir(trustclip)
    value = getattr(trustclip, name)
    assert callable(value) if name in ("methods", "method") else value.__name__.endswith(name)
