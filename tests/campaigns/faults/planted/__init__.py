"""Planted bugs: do the campaigns of faults, and the fast tests, notice a line that is wrong?

Each bug of `bugs.toml` is one that was made, or could be, in what keeps a run: it is planted in a
copy of the library, and the campaigns are played on that copy until one of their seeds fails that
does not fail without the bug.
"""

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from .. import IMPORTED, ROOT

#: Seeds of each campaign that are played on a bug.
SEEDS = {"stores": 300, "runs": 150, "evaluations": 40}

#: What notices a bug: a campaign and its seed, None for the undisturbed run; or the name of a test.
Notice = tuple[str, int | None] | str


class PlantError(Exception):
    """A bug has no place in the library as it is now."""


class Bug(NamedTuple):
    """A line that is wrong.

    Args:
      number: of it.
      name: what it does.
      file: in the library.
      old: text that stands there once, or forms of it.
      new: what is put in its place.
      by: campaigns that are played first.
      tests: fast ones, run where no campaign has noticed.
    """

    number: int
    name: str
    file: str
    old: str | list[str]
    new: str | list[str]
    by: Sequence[str] = ()
    tests: Sequence[str] = ()

    def planted(self, text: str) -> str:
        """The content of the file with the bug in it.

        Raises:
          PlantError: its place is not there, or not the only one.
        """
        old = [self.old] if isinstance(self.old, str) else self.old
        new = [self.new] if isinstance(self.new, str) else self.new
        there = [pair for pair in zip(old, new, strict=True) if pair[0] in text]
        times = sum(text.count(form) for form, _ in there)
        if times != 1:
            raise PlantError(
                f"bug {self.number} ({self.name}) does not apply: its lines stand {times} times in "
                f"{self.file}; write it anew for the code as it is."
            )
        return text.replace(*there[0])


def bugs() -> list[Bug]:
    """All of them."""
    table = tomllib.loads(Path(__file__).with_name("bugs.toml").read_text())
    return [Bug(**row) for row in table["bug"]]


@contextlib.contextmanager
def library(bug: Bug | None) -> Iterator[None]:
    """This process imports a copy of the library, with a bug in it: once, and before any other."""
    assert "trustclip" not in sys.modules
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if bug is not None:
            file = source / "trustclip" / bug.file
            file.write_text(bug.planted(file.read_text()))
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(source), *IMPORTED]
        os.environ["PYTHONPATH"] = str(source)
        yield


def failing(campaign: str, seeds: Sequence[int | None]) -> Iterator[int | None]:
    """The seeds of a campaign that fail; None stands for the undisturbed run, which comes first."""
    import torch

    from tests.campaigns.faults.__main__ import CAMPAIGNS
    from tests.campaigns.faults.runs import memory_folder

    torch.set_num_threads(1)
    module = importlib.import_module(f"tests.campaigns.faults.{campaign}")
    with memory_folder() as base:
        try:
            player: Any = getattr(module, CAMPAIGNS[campaign])(base)
        except Exception:
            yield None
            return
        for seed in seeds:
            try:
                if seed is not None:
                    player.play(seed)
            except Exception:
                yield seed


def noticed(asked: tuple[Bug, dict[str, int]]) -> Notice:
    """What notices a bug, by numbers of seeds of the campaigns; an empty text where nothing does.

    Raises:
      PlantError: the bug has no place.
    """
    bug, numbers = asked
    with library(bug):
        for campaign in sorted(
            numbers, key=lambda name: (name not in bug.by, [*numbers].index(name))
        ):
            if bug.tests and campaign not in bug.by:
                continue
            for seed in failing(campaign, range(numbers[campaign])):
                return campaign, seed
        for test in bug.tests:
            if told := failing_test(test):
                return told
    return ""


def failing_test(name: str) -> str:
    """The first test of a file, or of a name, that fails; nothing where all pass.

    Raises:
      PlantError: there is no such test.
    """
    import pytest

    class Plugin:
        failed = ""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed and not self.failed:
                self.failed = report.nodeid.removeprefix("tests/")

    plugin, options = Plugin(), ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    os.chdir(ROOT)
    with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
        status = pytest.main([*options, f"tests/{name}"], plugins=[plugin])
    if status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise PlantError(f"there is no test {name}")
    return plugin.failed or (f"{name}: status {int(status)}" if status else "")


def without(notices: frozenset[Notice]) -> frozenset[Notice]:
    """Those of some that notice something without any bug."""
    found: set[Notice] = set()
    with library(None):
        for campaign in {notice[0] for notice in notices if isinstance(notice, tuple)}:
            seeds = [notice[1] for notice in notices if isinstance(notice, tuple)]
            own = [seed for seed in seeds if (campaign, seed) in notices]
            found |= {(campaign, seed) for seed in failing(campaign, own)}
        tests = [notice for notice in notices if isinstance(notice, str) and notice]
        found |= {test for test in tests if failing_test(test)}
    return frozenset(found)
