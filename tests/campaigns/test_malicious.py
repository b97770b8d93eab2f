"""What strangers send (`malicious`): nothing runs, nothing leaks, and one message says so."""

import contextlib
import os
import re
import sys
from pathlib import Path

import pytest
from malicious import addresses, code, data, text  # noqa: F401  (they enter their artefacts)
from malicious.artefacts import ARTEFACTS, PAYLOAD, PAYLOAD_CODE, SECRET, hostile
from synthetic_runs import undrawn

from trustclip.cli.main import main
from trustclip.support.consent import ALL, consent
from trustclip.train.files import load_recipe
from trustclip.train.suite.plan import plan
from trustclip.train.suite.run import _arguments

_watching: list[tuple[str, object]] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watching is not None and event in ("socket.connect", "socket.getaddrinfo", "os.system"):
        _watching.append((event, arguments))


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched():
    """Network and shell, as Python's audit hooks see them."""
    global _watching
    _watching = seen = []
    try:
        yield seen
    finally:
        _watching = None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder beside which nothing may appear; modules in it can be imported."""
    inside = tmp_path / "received"
    inside.mkdir()
    (inside / f"{PAYLOAD}.py").write_text(PAYLOAD_CODE)
    monkeypatch.syspath_prepend(str(inside))
    monkeypatch.chdir(inside)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield inside
    assert PAYLOAD not in sys.modules
    assert not list(tmp_path.rglob("IMPORTED"))
    assert [path.name for path in tmp_path.iterdir()] == ["received"]


@pytest.mark.parametrize("name", ARTEFACTS)
def test_artefact(name, folder, capsys, monkeypatch):
    monkeypatch.setattr("trustclip.report.draw.figures.draw", undrawn)  # what is said matters
    given = ARTEFACTS[name]
    argv = given.make(folder)
    path = os.environ.get("PYTHONPATH")
    with watched() as seen:
        status = main(argv)
    printed = "".join(capsys.readouterr())
    assert os.environ.get("PYTHONPATH") == path
    assert not hostile(printed), hostile(printed)
    assert SECRET not in printed
    for words in given.says:
        assert words in printed
    assert status == given.status
    assert not seen


@pytest.mark.slow
def test_files_of_a_report_obey_nobody(folder, capsys):
    """The page, the tables in Markdown and LaTeX, and the CSV file, of a run full of markup."""
    assert main(ARTEFACTS["run_that_wants_to_write_the_report"].make(folder)) == 0
    paths = [path for path in (folder / "report").iterdir() if path.is_file()]
    files = {path.name: path.read_text() for path in paths}
    page = files.pop("index.html")
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'; script-src' in page
    assert "'unsafe-inline'" not in re.findall("script-src ([^;]*)", page)[0]
    for content in (page, *files.values()):
        assert SECRET not in content
        assert not hostile(re.sub(r"(?s)<script>.*?</script>|\r", "", content))
    loaded = re.findall(r"<(?:script|link|img|iframe|object|embed|base|meta)\b[^>]*", page)
    assert not [tag for tag in loaded if "http:" in tag or "https:" in tag]
    assert "alert(1)</script>" not in page and "<img src=http" not in page
    assert "<script>" not in files["tables.md"] and "\\input{" not in files["tables.tex"]


def test_every_promise_names_tests_that_there_are():
    """The table of SECURITY.md: artefacts by their names, other tests by file and name."""
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text().partition("## Tested by")[2]
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 12
    for promise, tests in rows:
        names = re.findall("`([^`]+)`", tests)
        assert names, promise
        for name in names:
            file, mark, test = name.partition("::")
            known = (Path(__file__).parents[2] / file).read_text() if mark else ""
            assert f"def {test}(" in known if mark else name in ARTEFACTS, name


@contextlib.contextmanager
def imported(folder):
    """What is done inside imports the payload, which is then forgotten."""
    try:
        yield
        assert PAYLOAD in sys.modules
    finally:
        sys.modules.pop(PAYLOAD, None)
        (folder / "IMPORTED").unlink()


def test_a_program_that_loads_a_recipe_has_to_allow_its_code(folder):
    path = Path(code.recipe(folder, method=code.EVIL))
    with pytest.raises(ValueError, match="--allow-code"):
        load_recipe(path)
    with imported(folder):
        load_recipe(path, allow_code=True)


def test_with_consent_it_is_imported(folder, capsys):
    """The artefacts are not harmless for another reason."""
    path = code.recipe(folder, method=code.EVIL)
    sys.path.insert(0, str(folder))
    with imported(folder):
        assert main(["doctor", "--distributed", path, "--allow-code"]) in (0, 1)


def test_workers_of_a_suite_get_the_consent_that_it_has(folder):
    own, other = {"m": {"name": code.EVIL}}, {"m": {"name": "atr"}}
    with imported(folder), consent(ALL):
        jobs = [plan(Path(code.suite(folder, methods=m))).jobs[0] for m in (own, other)]
    assert [_arguments(job)[2:] for job in jobs] == [["--allow-code"], []]


def test_what_the_user_types_is_the_users_own_word(folder, capsys):
    with imported(folder):
        assert main(["bounds", f"{PAYLOAD}:Evil"]) == 0
