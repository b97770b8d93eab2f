"""Versions of the site beside each other, and the list from which a reader chooses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from programs import program

ROOT = Path(__file__).parents[2]
publish = program(ROOT / "docs/publish.py")

PAGE = """<!doctype html><html data-content_root="{up}"><meta charset="utf-8">
<link rel="icon" href="{up}_static/icon.svg">
<label class="versions" hidden>Version <select></select></label>
<h1>{title}</h1><script src="{up}_static/site.js"></script></html>"""


def built(folder: Path, version: str, pages: tuple[str, ...]) -> Path:
    """A build with the site's own script."""
    for page in ("index.html", *pages):
        path = folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * page.count("/") or "./"
        path.write_text(PAGE.format(up=up, title=f"{version} {page}"), "utf-8")
    (folder / "_static").mkdir(exist_ok=True)
    for file in ("site.js", "icon.svg"):
        shutil.copy(ROOT / "docs/_static" / file, folder / "_static")
    (folder / "llms.txt").write_text("- [Start](start.html), [code](https://x.org/a)\n", "utf-8")
    return folder


@pytest.fixture
def site(tmp_path):
    site = tmp_path / "site"
    publish.publish(built(tmp_path / "a", "main", ("guide.html", "new/page.html")), site, "main")
    publish.publish(built(tmp_path / "b", "v0.9.0", ("guide.html",)), site, "v0.9.0")
    publish.publish(built(tmp_path / "c", "v0.10.0", ("guide.html",)), site, "v0.10.0")
    return site


def test_the_newest_release_is_first(site):
    listed = json.loads((site / "versions.json").read_text("utf-8"))
    assert [one["name"] for one in listed] == ["v0.10.0", "v0.9.0", "main"]
    first = (site / "index.html").read_text("utf-8")
    assert "url=v0.10.0/" in first
    assert 'rel="icon" href="v0.10.0/_static/icon.svg"' in first  # or a browser asks for another
    assert (site / "v0.10.0/_static/icon.svg").is_file()
    text = (site / "llms.txt").read_text("utf-8")
    assert text == "- [Start](v0.10.0/start.html), [code](https://x.org/a)\n"


def test_a_version_is_replaced_and_the_others_stay(site, tmp_path):
    publish.publish(built(tmp_path / "d", "main", ()), site, "main")
    assert not (site / "main/guide.html").exists() and (site / "v0.9.0/guide.html").exists()


def test_what_cannot_be_published_is_refused(site, tmp_path):
    with pytest.raises(ValueError, match="make docs"):
        publish.publish(tmp_path / "nothing", site, "main")
    with pytest.raises(ValueError, match="no name of a version"):
        publish.publish(tmp_path / "a", site, "../elsewhere")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on this machine")
def test_the_workflow_keeps_the_versions_on_their_branch(tmp_path):
    work = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text("utf-8"))
    steps = [step.get("run", "") for step in work["jobs"]["publish"]["steps"]]
    assert "make docs" in steps
    origin, clone = tmp_path / "origin.git", tmp_path / "clone"
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    git = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def run(*command: str | Path, **more: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=git | more, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("git", "init", "-q", "--bare", origin)
    for version in ("main", "v0.1.0", "main"):
        shutil.rmtree(clone, ignore_errors=True)  # every run has a machine of its own
        run("git", "clone", "-q", origin, clone)
        if version == "main" and not list(clone.glob("docs")):
            (clone / "docs").mkdir()
            shutil.copy(ROOT / "docs/publish.py", clone / "docs")
            run("git", "-C", clone, "add", "docs/publish.py")
            run("git", "-C", clone, *who, "commit", "-qm", "first")
            run("git", "-C", clone, "push", "-q", "origin", "HEAD")
        built(clone / "docs/_build", version, ())
        script = f"cd {clone}\n" + steps[-1].replace(".venv/bin/python", sys.executable)
        run("bash", "-ec", script, GITHUB_REF_NAME=version, GITHUB_SHA="0")
    shown = run("git", "-C", origin, "ls-tree", "--name-only", "gh-pages").split()
    assert shown == [".nojekyll", "index.html", "llms.txt", "main", "v0.1.0", "versions.json"]
