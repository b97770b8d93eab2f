"""What is said of runs: one list of findings, in the same words wherever it is shown."""

import re
from pathlib import Path

import pytest
from golden_runs import FOREIGN, GOLDEN, GROUPS, OWN, Case, compared, golden, made, on_page, plain

from trustclip.findings import facts
from trustclip.findings.differences import cautions
from trustclip.findings.run import of_run
from trustclip.logs.reader import Run, read_run
from trustclip.report.console import explain
from trustclip.support.text import harmless, one_line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="module")
def cases(folder: Path) -> dict[str, Case]:
    return made(folder)


def test_the_sentences_of_the_golden_runs_are_those_that_were_read(cases, folder) -> None:
    """`python tests/support/golden_runs.py` writes the file anew; read its difference."""
    assert golden(cases, folder).splitlines() == GOLDEN.read_text().splitlines()


def words(text: str) -> str:
    """A text as a page shows it: control characters by their numbers, and one space each."""
    return " ".join(harmless(text).split())


def test_all_that_explain_prints_stands_on_the_page_in_the_same_words(cases) -> None:
    for name in [*OWN, *FOREIGN]:
        (path,), page = cases[name].paths, plain(cases[name].page)
        found = of_run(read_run(path))
        for finding in found:
            assert words(finding.line) in page and words(finding.advice) in page, (name, finding)
        printed = [one_line(finding.line) for finding in found]
        advice = [one_line(f"Next: {finding.advice}") for finding in found if finding.advice]
        assert explain(path) == [*printed, *advice], name
        usual = any(finding.kind == "run/usual" for finding in found)
        assert not (usual and any(finding.troubles for finding in found)), name
        assert all(finding.sentence for finding in found), name


def test_what_compare_adds_stands_on_the_page_and_so_does_every_run(cases) -> None:
    for name in GROUPS:
        report, page = cases[name].report, plain(cases[name].page)
        for entry in report.by_run:
            for finding in entry.findings:
                assert words(finding.line) in page, (name, entry.name, finding)
        if len({group.setting for group in report.groups}) > 1 or "copy" in name:
            continue  # compare sets models beside each other, and copies, which a page keeps apart
        printed = compared(cases[name].paths)
        for caution in cautions(report.groups, report.compared):
            assert words(caution.sentence) in page, name
            assert caution.text in printed or printed[0].startswith("refused"), name


def test_a_warning_of_a_run_is_at_the_top_of_its_page(cases) -> None:
    lines = on_page(cases["gate never closed"].page)
    assert any("closed on no token" in line for line in lines if line.startswith("fault"))


def test_no_file_outside_a_run_is_looked_at(tmp_path) -> None:
    with pytest.raises(ValueError, match="leads out of"):
        of_run(Run(tmp_path, {}, {"hashes": {"../a.jsonl": {"bytes": 9}}}, []))


def test_every_threshold_is_read_somewhere() -> None:
    files = {*Path(facts.__file__).parents[1].rglob("*.py")} - {Path(facts.__file__)}
    code = "".join(path.read_text() for path in files)
    names = {name for name in vars(facts) if name.isupper()}
    assert len(names) > 40 and names <= {*re.findall(r"\b[A-Z_0-9]+\b", code)}
