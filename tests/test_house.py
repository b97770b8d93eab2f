"""The house is what its page and packaging say: rooms, versions, oldest dependencies."""

import re
import shutil
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import trustclip

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "trustclip"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_tree_on_the_page_is_the_real_one() -> None:
    layout = (ROOT / "docs/architecture.md").read_text().partition("## The tree")[2]
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


def test_commands_print_nothing_that_controls_a_terminal():
    """They print by `say` and `Terminal`; `main` cleans the messages of errors itself."""
    for path in (SOURCE / "cli" / "commands").glob("*.py"):
        found = re.findall(r"(?<![\w.])(?:print|Console)\(", path.read_text())
        assert not found, f"{path.name}: {found[0]} instead of trustclip.runs.terminal"


@pytest.mark.parametrize("name", ["run", "dev", "docs", "verl"])
def test_what_is_pinned_has_its_hashes(name):
    """`make hashes` writes them; torch is left to the build that a machine needs."""

    def pins(path: Path) -> set[str]:
        found = re.findall(r"(?m)^([\w.-]+)(?:\[[\w,-]+\])?==([\w.!+]+)", path.read_text())
        pairs = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in found}
        return {f"{name}=={version}" for name, version in pairs if name != "torch"}

    hashed = ROOT / "requirements" / "hashes" / f"{name}.txt"
    assert pins(hashed) == pins(ROOT / "requirements" / f"{name}.txt"), "make hashes"
    assert "--hash=sha256:" in hashed.read_text()


def test_actions_are_named_by_commit():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for used in re.findall(r"uses: (\S+)", path.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used), f"{path.name}: {used}"


def test_the_audit_covers_every_pin() -> None:
    """`make audit` reads every file of pins, those of the oldest releases and of a GPU apart."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    said = subprocess.run(
        [make, "-n", "audit"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"for name in (.*);", said)[0].split()
    assert "requirements/$name.txt" in said and "--strict" in said
    read = {f"{name}.txt" for name in names}
    for _ in range(3):  # a file may name another one
        for name in [*read]:
            read |= set(re.findall(r"^-r (\S+)", (ROOT / "requirements" / name).read_text(), re.M))
    there = {path.name for path in (ROOT / "requirements").glob("*.txt")}
    assert there - read == {"gpu.txt", "oldest.txt"}
