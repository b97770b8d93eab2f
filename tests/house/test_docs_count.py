"""No block of code and no picture of the documentation stands there unaccounted for."""

import ast
import json
import re
import shlex
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec

import pytest
import yaml
from doc_pages import DOCS, PAGES, ROOT, blocks, help_of, name, pictures, python

import trustclip as tc
from trustclip.cli.registry import COMMANDS, KNOWN
from trustclip.constraints.registry import as_method

#: Directives of the site, whose contents are pages, tables or files of tests.
DIRECTIVES = {"{toctree}", "{container}", "{image}", "{include}", "{eval-rst}"}
#: A class of a block of Python that says in words why it is not run: it needs what only you have.
NEEDS = ":class: needs-your-model"
#: Commands of the core and of the laboratory.
EVERY = {*COMMANDS, *(name for names in KNOWN.values() for name in names)}
TESTS = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "lab/tests").glob("*.py")]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
EXTRAS = {
    extra
    for file in ("pyproject.toml", "lab/pyproject.toml")
    for extra in tomllib.loads((ROOT / file).read_text("utf-8"))["project"]["optional-dependencies"]
}


def shell_line(line: str) -> str | None:
    """What is wrong with a line that a reader is told to type; None for nothing."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words.pop(0)
    if not words:
        return None
    program, *rest = words
    if program == "trustclip":  # its options: test_docs.py
        return None if rest[0] in EVERY or rest[0] == "COMMAND" else f"no command {rest[0]}"
    if program == "make":
        wrong = [w for w in rest if "=" not in w and w not in TARGETS]
        return f"no target {wrong}" if wrong else None
    if program == "pip":
        wanted = re.findall(r"\[([\w,]+)\]", line)
        wrong = [e for part in wanted for e in part.split(",") if e not in EXTRAS]
        return f"no extra {wrong}" if wrong else None
    if program in ("python", "torchrun", "accelerate"):
        files = [w for w in rest if w.endswith((".py", ".yaml")) and "/" in w and "runs/" not in w]
        wrong = [f for f in files if not (ROOT / f).exists()]
        if rest[0] == "-m" and rest[1].split(".")[0] not in ("verl", "trustclip", "trustclip_lab"):
            wrong += [] if (ROOT / rest[1].replace(".", "/")).exists() else [rest[1]]
        return f"no file {wrong}" if wrong else None
    return (
        None if program in ("mkdir", "source", "hf", "rsync") else f"an unknown program {program}"
    )


def typed(block: dict[str, str]) -> list[str]:
    """Lines of a block that a reader types."""
    lines = block["body"].replace("\\\n", " ").splitlines()
    if block["kind"] == "bash":
        return [line for line in lines if line.strip() and not line.startswith("#")]
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_checked_or_says_why_not(page):
    ran = len(list(python(page)))
    for block in blocks(page):
        kind, body = block["kind"], block["body"]
        if kind == "python":
            assert block["reason"] or ">>>" in body or ran, body  # a session is a doctest
            assert ">>>" in body or ast.parse(body)
        elif kind == "{code-block}":
            assert block["rest"] == "python" and body.startswith(NEEDS), body
            ast.parse(body.removeprefix(NEEDS))
        elif kind == "{literalinclude}":
            file = (page.parent / block["rest"]).resolve()
            tests = "".join(path.read_text("utf-8") for path in TESTS)
            assert file.exists() and re.search(rf"\b{file.stem}\b", tests), (
                f"{file.name} is run by no test"
            )
        elif kind in ("bash", "console", "text", ""):
            wrong = [said for line in typed(block) if (said := shell_line(line))]
            assert not wrong, wrong
        elif kind == "yaml":
            found = yaml.safe_load(body)
            inner = found.get("rl", found) if isinstance(found, dict) else {}
            if isinstance(inner, dict) and "method" in inner:
                assert isinstance(as_method(inner["method"]), tc.Method)
        elif kind == "json":
            json.loads(body)
        elif kind == "toml":
            given = tomllib.loads(body)["trainer"]["loss"]["kwargs"]
            assert tc.method(given["method"], **given["method_args"])
        else:
            assert kind in DIRECTIVES or kind.startswith("{grid"), kind


def test_the_readmes_python_is_run_by_its_own_test():
    """test_readme.py runs the first and builds the second."""
    assert len(list(python(ROOT / "README.md"))) == 2


def test_every_picture_has_the_commands_that_make_it():
    shown = {
        (page.parent / picture).resolve()
        for page in PAGES
        for picture in pictures(page)
        # The former are made by each build, the latter by the machine that runs the tests.
        if "/gates/" not in picture and "/actions/" not in picture
    }
    made = tomllib.loads((DOCS / "figures.toml").read_text("utf-8"))
    assert {path.relative_to(ROOT).as_posix() for path in shown} == set(made)
    for picture, lines in made.items():
        assert (ROOT / picture).exists() and lines
        assert not [said for line in lines if (said := shell_line(line))]


def test_what_programs_read_names_pages_commands_and_files_that_exist():
    """llms.txt, AGENTS.md and the skill."""
    summary = (DOCS / "_extra/llms.txt").read_text("utf-8")
    skill = (ROOT / "skills/diagnose-a-run/SKILL.md").read_text("utf-8")
    agents = (ROOT / "AGENTS.md").read_text("utf-8")
    tree = (DOCS / "index.md").read_text("utf-8").split()
    for page in re.findall(r"\]\(([\w/-]+)\.html", summary):
        assert page in tree, page
    for command in re.findall(r"`trustclip (\w+)", summary + skill + agents):
        assert command in EVERY, command
    for command, flag in re.findall(r"`trustclip (\w+)[^`]*?(--[\w-]+)", summary + skill):
        assert flag in help_of(command), f"{command} {flag}"
    for file in re.findall(r"\]\(([^)#:]+)\)", agents):
        assert (ROOT / file).exists(), file
    assert set(re.findall(r"`make ([\w-]+)`", agents)) <= TARGETS


@pytest.mark.skipif(not find_spec("sphinx"), reason="Sphinx is not installed")
def test_the_build_refuses_a_word_of_the_house_before_its_meaning(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    glossary = import_module("extensions.glossary")
    meanings = re.findall(r"^## (.+)\n\w", (DOCS / "glossary.md").read_text("utf-8"), re.M)
    assert set(glossary.WORDS) <= set(meanings) and len(set(meanings)) == len(meanings)
    for page in PAGES:
        if not name(page).removeprefix("docs/").startswith(glossary.OTHERS):
            assert glossary.undefined(page.read_text("utf-8")) == [], name(page)
    assert glossary.undefined("Its lag, see [lag](glossary.md#lag).") == ["lag"]
