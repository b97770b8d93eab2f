"""Mutation testing: small changes to the code, each of which the tests have to notice.

``python -m tests.campaigns.faults.mutants [GROUP ...]`` runs mutmut on the modules of a group with
the tests that belong to them, in ``build/mutants/GROUP``, and compares the mutants that survive
with those that are known to be without effect (`survivors.toml`). The exit status is 1 where less
than 95 % are killed, counting those as killed, or not all have been played.

``--minutes M`` stops a group after that time; the next call goes on where it stopped. ``--again``
plays the survivors once more, with the tests as they are now, and keeps those that were killed.
``--anew`` begins from nothing. ``--since COMMIT`` mutates the functions that a diff touches
instead, with the tests that name their modules.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from . import FOLDERS, ROOT

#: The simulated runs, in which trainer, checkpoints and copies are played together.
_RUNS = "campaigns/test_faults.py::test_runs"
_ONE_PROCESS = (
    "test_pipeline.py::test_a_second_process_in_a_run_directory_is_refused[run]",
    "test_pipeline.py::test_ranks_of_one_job_are_one_process",
    "test_pipeline.py::test_a_killed_process_holds_nothing_even_if_its_children_live_on",
    "test_pipeline.py::test_a_file_system_without_locks_is_a_warning",
    "runs/test_run_records.py::test_half_a_rank_is_refused_before_anything_is_written",
)
#: Group -> modules of the library, and tests that are run on their mutants.
GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gates": (("constraints/gates.py",), ("constraints/test_gate_algebra.py",)),
    "aggregation": (
        ("constraints/aggregation.py", "constraints/masked.py"),
        ("constraints/test_gate_algebra.py", "constraints/test_aggregation.py"),
    ),
    "intervals": (
        ("constraints/intervals.py",),
        ("constraints/test_intervals.py", "constraints/test_fdivergences.py"),
    ),
    "store": (
        ("train/durable/store.py", "logs/writing/extents.py", "support/flush.py"),
        (
            "train/durable/test_checkpoints.py",
            "train/durable/test_journals.py",
            "train/durable/test_flush.py",
            "train/durable/test_silently_lost.py",
        ),
    ),
    "trainer": (("train/durable/trainer.py",), (_RUNS, "train/durable/test_checkpoints.py")),
    "saving": (("train/durable/saving.py",), (_RUNS, "train/durable/test_checkpoints.py")),
    "lock": (
        ("support/lock.py",),
        (*(f"train/{test}" for test in _ONE_PROCESS), "campaigns/test_faults.py::test_stores"),
    ),
    "directory": (
        ("train/runs/directory.py",),
        (
            "train/runs/test_run_records.py",
            "train/durable/test_journals.py",
            "train/durable/test_more_steps.py",
            _RUNS,
        ),
    ),
    "shards": (("train/durable/shards.py",), ("train/durable/test_shards.py",)),
    "stats": (
        ("stats/scores.py", "stats/confidence.py", "stats/differences.py"),
        ("stats/test_stats.py", "stats/test_stats_paired.py"),
    ),
}
#: What a folder of mutants has: the tests read all of it.
_USED = ["src", "tests", "docs", "requirements", "recipes", "examples", "benchmarks", "conftest.py"]
#: Share of the mutants that has to be killed.
WANTED = 0.95

#: Exit codes of mutmut's runs of a mutant that nothing noticed: passed, no test ran, no test known.
_LIVED = (0, 5, 33)

_SETTINGS = """\
[tool.mutmut]
source_paths = ["src"]
only_mutate = {only}
also_copy = {copied}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-m", "not slow", "-p", "no:cacheprovider"]
timeout_constant = 6.0
timeout_multiplier = 3.0
use_git_change_detection = false
track_dependencies = false

[tool.pytest.ini_options]
addopts = ["--strict-markers", "--import-mode=importlib"]
pythonpath = {paths}
markers = ["slow: takes more than a few seconds"]
"""

#: Added to the tests' conftest. The first failure ends a run, so the quick tests come first. Caches
#: hold what the unchanged functions have answered, since a mutant's process is forked behind them.
_QUICK_FIRST = """

def pytest_collection_modifyitems(items):
    import json
    import pathlib
    import sys

    for module in [module for name, module in sys.modules.items() if name.startswith("trustclip")]:
        for value in [*vars(module).values()]:
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    known = pathlib.Path("mutmut-stats.json")
    times = json.loads(known.read_text())["duration_by_test"] if known.exists() else {}
    items.sort(key=lambda item: times.get(item.nodeid, 0.0))
"""


def changed(commit: str) -> dict[str, list[str]]:
    """Module -> names in mutmut of the functions whose lines differ from those of a commit."""
    arguments = ["git", "diff", "-U0", "--no-prefix", commit, "--", "src/trustclip"]
    diff = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines: dict[str, set[int]] = {}
    module = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            module = line[4:].removeprefix("src/trustclip/")
        elif hunk := re.match(r"@@ .*\+(\d+),?(\d*) @@", line):
            first, many = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(module, set()).update(range(first, first + many))
    return {
        module: names
        for module, of_diff in lines.items()
        if module.endswith(".py") and (names := _functions(module, of_diff))
    }


def _functions(module: str, lines: set[int]) -> list[str]:
    """Names in mutmut of the functions of a module that hold one of the lines."""
    dotted = f"trustclip.{module.removesuffix('.py').replace('/', '.')}"
    found = []
    for node in ast.parse((ROOT / "src/trustclip" / module).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"ǁ{node.name}ǁ" if isinstance(node, ast.ClassDef) else "_"
        for function in inside:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and lines & {
                *range(function.lineno, (function.end_lineno or function.lineno) + 1)
            }:
                found.append(f"{dotted}.x{owner}{function.name}__mutmut_*")
    return found


def tests_of(modules: Sequence[str]) -> tuple[str, ...]:
    """Test files that name one of the modules; where none does, those of its folder."""
    files = {
        path: path.read_text()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path.relative_to(ROOT / "tests").parts[0] not in ("campaigns", "house", "real")
    }
    chosen: set[Path] = set()
    for module in modules:
        package, _, name = f"trustclip.{module.removesuffix('.py').replace('/', '.')}".rpartition(
            "."
        )
        named = re.compile(
            rf"{re.escape(package)}\.{name}\b|from {re.escape(package)} import .*\b{name}\b"
        )
        mirrored = ROOT / "tests" / Path(module).parent
        chosen |= {path for path, text in files.items() if named.search(text)} or {
            path for path in files if mirrored in path.parents
        }
    return tuple(str(path.relative_to(ROOT / "tests")) for path in sorted(chosen))


def prepare(group: str, *, anew: bool = False) -> Path:
    """The folder in which mutmut mutates the modules of a group, with the files as they are now."""
    folder = ROOT / "build" / "mutants" / group
    if anew:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    modules, tests = GROUPS[group]
    arguments = ["git", "ls-files", "-co", "--exclude-standard", *_USED]
    listed = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in [path for name in listed.splitlines() if (path := ROOT / name).is_file()]:
        _copy(path.read_bytes(), folder / path.relative_to(ROOT))
    conftest = (ROOT / "conftest.py").read_text() + _QUICK_FIRST
    _copy(conftest.encode(), folder / "conftest.py")
    only = [f"src/trustclip/{module}" for module in modules]
    chosen = [f"tests/{test}" for test in tests]
    settings = _SETTINGS.format(only=only, tests=chosen, paths=FOLDERS, copied=_USED)
    _copy(settings.encode(), folder / "pyproject.toml")
    return folder


def _copy(content: bytes, target: Path) -> None:
    """Write a file if its content has changed: mutmut starts anew on what is newer."""
    if not target.exists() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def results(folder: Path) -> dict[str, int | None]:
    """Exit code of the tests of each mutant; None where they have not been run."""
    found: dict[str, int | None] = {}
    for file in (folder / "mutants").rglob("*.meta"):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


def run(
    group: str,
    jobs: int = 1,
    minutes: float | None = None,
    *,
    names: Sequence[str] = (),
    again: bool = False,
    anew: bool = False,
) -> dict[str, Any]:
    """Mutate a group: numbers of mutants, of those killed and left, and the survivors' changes.

    ``names`` are patterns of the mutants that are played, in mutmut's names; without any, all are.
    """
    folder = prepare(group, anew=anew)
    lived = [name for name, code in results(folder).items() if code in _LIVED]
    names = lived if again else names
    mutmut = [sys.executable, "-m", "mutmut"]
    # mutmut puts the mutated sources on the path itself; a path of ours would come before them.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    with (folder / "log.txt").open("w") as log:
        child = subprocess.Popen(
            [*mutmut, "run", "--max-children", str(jobs), *names],
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            status = child.wait(minutes and 60 * minutes)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
    found = {
        name: code
        for name, code in results(folder).items()
        if not names or again or any(fnmatch(name, pattern) for pattern in names)
    }
    if status > 0:
        raise RuntimeError(f"mutmut failed with status {status}: {folder / 'log.txt'}")
    lived = sorted(name for name, code in found.items() if code in _LIVED)
    reasons = known()
    shown = dict.fromkeys(lived, "")
    for name in [name for name in lived if name not in reasons]:
        done = subprocess.run(
            [*mutmut, "show", name], cwd=folder, env=environment, capture_output=True, text=True
        )
        lines = [line for line in done.stdout.splitlines() if re.match(r"[-+](?![-+])", line)]
        shown[name] = "\n".join(lines)
    left = sum(code is None for code in found.values())
    killed = len(found) - len(lived) - left
    return {"mutants": len(found), "killed": killed, "left": left, "survivors": shown}


def known() -> dict[str, str]:
    """Survivors that change nothing, by name, with the reason."""
    file = Path(__file__).with_name("survivors.toml")
    return {
        name: reason
        for reasons in tomllib.loads(file.read_text()).values()
        for name, reason in reasons.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.campaigns.faults.mutants", description=__doc__
    )
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help=", ".join(GROUPS))
    parser.add_argument("--minutes", type=float, help="a group's time in this call")
    parser.add_argument("--since", metavar="COMMIT", help="the functions that a diff touches")
    parser.add_argument("--again", action="store_true", help="play the survivors again")
    parser.add_argument("--anew", action="store_true", help="forget what has been played")
    asked = parser.parse_args()
    weak, reasons = [], known()
    jobs = int(os.environ.get("JOBS", "1"))
    names: list[str] = []
    if asked.since:
        touched = changed(asked.since)
        if not touched:
            print(f"no function of the library differs from {asked.since}.")
            return 0
        names = [name for of_module in touched.values() for name in of_module]
        GROUPS["since"] = (*touched,), tests_of([*touched])
        asked.groups, asked.anew = ["since"], True
    for group in asked.groups or list(GROUPS):
        told = run(group, jobs, asked.minutes, names=names, again=asked.again, anew=asked.anew)
        fine = [name for name in told["survivors"] if name in reasons]
        share = (told["killed"] + len(fine)) / max(told["mutants"], 1)
        weak += [group] if share < WANTED else []
        print(
            f"{group}: {told['mutants']} mutants, {told['killed']} killed "
            f"({told['killed'] / max(told['mutants'], 1):.1%}), {len(fine)} without effect, "
            f"{len(told['survivors']) - len(fine)} survived, {told['left']} not played"
        )
        for name, change in told["survivors"].items():
            if name not in reasons:
                print(f"\n{name}\n{change}")
    return int(bool(weak))


if __name__ == "__main__":
    sys.exit(main())
