"""Commands, recipes and published results that other distributions add, and a core without any."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trustclip.cli import registry
from trustclip.cli.main import main
from trustclip.cli.registry import COMMANDS, KNOWN, Command, added_commands
from trustclip.train import shipped

#: Python whose installed distributions have none of our entry points.
ALONE = """
import importlib.metadata as metadata, sys
every = metadata.entry_points
metadata.entry_points = lambda **by: metadata.EntryPoints(
    point for point in every(**by) if not point.group.startswith("trustclip.")
)
sys.modules["trustclip_lab"] = None
"""


def alone(code: str) -> str:
    """What code prints where the core is installed alone."""
    done = subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_lists_what_a_distribution_adds_under_its_name(capsys, monkeypatch):
    more = {"mine": Command("my_package.commands", "what it does", continues=True)}
    monkeypatch.setitem(registry.distributions(), "my-package", more)
    assert main(["--help"]) == 0
    core, _, mine = capsys.readouterr().out.partition("commands of my-package:\n")
    assert all(f"\n  {name} " in core for name in COMMANDS)
    assert mine.startswith("  mine ") and mine.splitlines()[0].endswith(" what it does")


def test_an_added_command_runs_and_fails_like_any_other(capsys, monkeypatch, tmp_path):
    file = tmp_path / "added_command.py"
    file.write_text(
        "def mine(argv):\n    if argv:\n        raise ValueError('no.')\n    return 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.distributions(), "my-package", {"mine": Command(file.stem, "it")})
    assert main(["mine"]) == 0
    assert main(["mine", "--now"]) == 2
    assert capsys.readouterr().err == "trustclip mine: no.\n"
    assert main(["mime"]) == 2
    assert "did you mean 'mine'" in capsys.readouterr().err


@pytest.mark.parametrize("package, names", KNOWN.items())
def test_the_known_commands_are_those_that_are_added(package, names):
    if package not in registry.distributions():
        pytest.skip(f"{package} is not installed")
    assert set(names) == set(registry.distributions()[package])
    assert not set(names) & set(COMMANDS)


def test_a_command_of_a_package_that_is_not_installed_names_it():
    said = alone(
        "import contextlib, io, json\n"
        "from trustclip.cli.main import main\n"
        "from trustclip.cli.registry import KNOWN, added_commands\n"
        "assert not added_commands()\n"
        "for package, names in KNOWN.items():\n"
        "    for name in names:\n"
        "        err = io.StringIO()\n"
        "        with contextlib.redirect_stderr(err):\n"
        "            status = main([name, '--help'])\n"
        "        print(json.dumps([package, name, status, err.getvalue()]))\n"
    )
    for package, name, status, err in map(json.loads, said.splitlines()):
        assert status == 2
        assert err == (
            f"trustclip: {name} is a command of the package {package}: pip install {package}.\n"
        )


def test_the_core_alone_helps_and_lists_its_own_recipes():
    out = alone(
        "from trustclip.cli.main import main\n"
        "assert main(['--help']) == 0 and main(['recipes']) == 0\n"
    )
    assert "commands of" not in out and "trustclip run tiny" in out
    assert not any(f"trustclip {name} " in out for names in KNOWN.values() for name in names)


def test_recipes_of_other_distributions_are_run_by_their_commands():
    for name, path in shipped.shipped().items():
        command = shipped.command_of(path)
        assert command in {*COMMANDS, *added_commands()}, name
        assert shipped.locate(Path(name)) == path
