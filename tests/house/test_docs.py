"""The documentation's code runs, its commands exist, and the site builds without a warning."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from doc_pages import DOCS, PAGES, ROOT, commands, help_of, name, python

import trustclip as tc
from trustclip.cli.registry import COMMANDS, added_commands

#: Those of the core and of the laboratory.
EVERY = (*COMMANDS, *added_commands())
#: Flags whose names a method, TRL or a recipe's sections give.
OPEN = re.compile(r"--(methods?|trl|rl|sft|eval|sampler|sweep|[a-z]+\.)\b")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.name == "control.md"))
        for page in PAGES
        if page.name != "README.md" and "```python" in page.read_text()
    ],
    ids=name,
)
def test_the_pages_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.name == "control.md" and find_spec("stable_baselines3"):
        from stable_baselines3 import PPO

        learn = PPO.learn  # from one rollout in place of five
        monkeypatch.setattr(PPO, "learn", lambda self, steps: learn(self, min(steps, 2048)))
    scope: dict = {"__name__": "page"}
    for block in python(page):
        exec(compile(block, name(page), "exec"), scope)


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=name)
def test_the_pages_commands_exist(page):
    for command, *rest in map(str.split, commands(page)):
        assert command in EVERY or command in ("COMMAND", "..."), f"trustclip {command}"
        for word in rest:
            flag = word.split("=")[0]
            if flag.startswith("--") and not OPEN.match(flag):
                assert flag in help_of(command), f"trustclip {command} {flag}"


def test_notes_are_about_methods():
    import tomllib

    notes = tomllib.loads((DOCS / "methods.toml").read_text("utf-8"))
    assert set(notes) <= set(tc.methods()), "notes of a method that is gone"
    assert all(set(of) <= {"defaults", "traps", "reports"} for of in notes.values())
    assert all(of["traps"] and of["defaults"].endswith(".") for of in notes.values())


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sphinx"), reason="Sphinx is not installed")
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    built = os.environ.get("TRUSTCLIP_SITE")  # by `make docs`, just before
    site = Path(built).absolute() if built else tmp_path
    if not built:
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, site],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'lab/src'}"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
    table = json.loads((ROOT / "lab/benchmarks/methods.json").read_text("utf-8"))["tables"][0]
    timed = {row[0] for row in table["rows"]}
    for method in tc.methods():
        page = (site / "methods" / f"{method}.html").read_text("utf-8")
        assert "<h2>Measured" in page and f"{method}.svg" in page
        assert ("× <code" if method in timed else "Not measured.") in page, method
        assert f"atlas.html?alone#{method}" in page
        assert ("<math" in page) == ("$" in (tc.methods()[method].__doc__ or ""))
    for path in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"https?:[^\"]+",
            path.read_text("utf-8"),
        )
        assert not loaded, path.name
