"""What is packed is what the source holds: a wheel built from a copy of this tree, file by file."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Each distribution: its folder, its package, and what beside `src` its build reads.
WHEELS = {
    "trustclip": (ROOT, "trustclip", ["setup.py", "recipes"]),
    "trustclip-lab": (ROOT / "lab", "trustclip_lab", []),
}
#: Where the installed package finds recipes, and which.
RECIPES = """
import json
from trustclip.train.shipped import FOLDER
print(json.dumps([str(FOLDER), [str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*.*")]]))
"""


def files(folder: Path) -> set[str]:
    """Files of a package, without what Python keeps of them."""
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(path.relative_to(folder)) for path in found}


@pytest.fixture(params=WHEELS)
def built(request, tmp_path):
    """A distribution's package as it is in the tree, and as its build packs it."""
    folder, package, more = WHEELS[request.param]
    copy = tmp_path / "source"
    copy.mkdir()
    left = shutil.ignore_patterns("*.egg-info", "__pycache__")  # of an earlier build
    for name in ["pyproject.toml", "src", *more]:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, copy / name, ignore=left)
        else:
            shutil.copy(folder / name, copy)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    setup = "setup.py" if "setup.py" in more else "-cimport setuptools; setuptools.setup()"
    command = [sys.executable, setup, "-q", "build", "--build-base", str(tmp_path / "build")]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "src" / package, tmp_path / "build" / "lib" / package


@pytest.mark.skipif(not find_spec("setuptools"), reason="setuptools is not installed")
def test_a_wheel_holds_what_the_source_does(built):
    source, packed = built
    held = files(packed)
    if source.name == "trustclip":
        folder, recipes = found_by(packed.parent)
        assert folder.is_relative_to(packed), "the installed package looks for recipes elsewhere"
        kept = ROOT / "recipes"
        assert set(recipes) == {
            str(path.relative_to(kept))
            for path in [*kept.glob("*.yaml"), *kept.glob("suites/*.yaml"), *kept.glob("*/*.json")]
        }
        held -= {str((folder / name).relative_to(packed)) for name in recipes}
    assert held == files(source)


def found_by(library: Path) -> tuple[Path, list[str]]:
    """The folder of recipes that the packed package chooses, and the files in it."""
    start = f"import sys; sys.path.insert(0, {str(library)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + RECIPES], capture_output=True, text=True, check=True
    )
    folder, names = json.loads(done.stdout)
    return Path(folder), names
