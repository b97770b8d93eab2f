"""Files that make a reader fail (`malicious.records`) end in a sentence, in a gigabyte and 30 s."""

import json
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from malicious import records
from synthetic_runs import undrawn

from trustclip.cli.main import main

pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    return records.base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def figures(monkeypatch) -> list[str]:
    """What the figures of pages hold, in place of their drawings."""
    found: list[str] = []
    place = "trustclip.report.draw.figures.draw"
    monkeypatch.setattr(place, lambda figure: found.append(repr(figure)) or undrawn(figure))
    return found


def said(argv: list[str], capsys) -> str:
    """What a command says that must refuse its input."""
    assert main(argv) == 2
    return " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize("name", [name for name, _ in records.links(Path())])
def test_a_link_out_of_a_run_is_refused_and_nothing_of_it_shown(
    name, suite, tmp_path, capsys, figures
):
    commands = dict(records.links(suite))[name](tmp_path)
    statuses = [main(argv) for argv in commands]
    printed = "".join(capsys.readouterr())
    assert 2 in statuses and "leads out of" in printed
    pages = [path.read_text() for path in tmp_path.glob("out/*") if path.suffix != ".parquet"]
    assert records.PRIVATE not in "".join([printed, *pages, *figures])


def test_small_files_of_much_are_refused_before_they_are_read(suite, tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros = pa.ListArray.from_arrays([0, 17_000_000], pa.array(np.zeros(17_000_000, np.float32)))
    path = tmp_path / "tokens.parquet"
    pq.write_table(pa.table({"logp": zeros, "advantage": zeros}), path, compression="zstd")
    assert path.stat().st_size < 2000
    text = "a row group holds 34,000,000 values in lists, and may hold 32,000,000"
    assert text in said(["tokens", str(path)], capsys)
    for name, change, text in (
        ("summary.json", lambda p: os.truncate(p, 3 << 30), "may have 67,108,864"),
        ("metrics.jsonl", lambda p: os.truncate(p, 3 << 30), "a line of more than 64 MiB"),
        ("config.yaml", lambda p: p.write_text("a: " + "[" * 80 + "]" * 80), "more than 64 levels"),
    ):
        run = records.base(tmp_path / name) / "atr-0"
        change(run / name)
        assert text in said(["explain", str(run)], capsys)


def test_a_number_that_cannot_be_computed_with_does_not_hide_a_run(suite, tmp_path, capsys):
    run = records.base(tmp_path) / "atr-0"
    with (run / "metrics.jsonl").open("a") as file:
        for step, reward in enumerate(["1" + "0" * 400, "1.7e308", "NaN"], start=9):
            row = {"stage": "rl", "step": step, "reward": 0}
            file.write(json.dumps(row).replace('"reward": 0', f'"reward": {reward}') + "\n")
    assert main(["explain", str(run)]) == 0
    assert "The evaluation score" in "".join(capsys.readouterr())


def test_a_table_or_a_row_of_another_form_is_one_sentence(suite, tmp_path, capsys, figures):
    run = records.base(tmp_path) / "atr-0"
    with (run / "gates.jsonl").open("a") as file:
        file.write('{"step": 9, "generated": 5}\n')
    text = "gates.jsonl, row 9: generated: input should be a valid list."
    assert text in said(["report", str(run), "-o", str(tmp_path / "out")], capsys)
    os.mkfifo(tmp_path / "tokens.jsonl")
    for command in ("explain", "report", "tokens", "shadow"):
        text = "tokens.jsonl is neither a file nor a folder."
        assert text in said([command, str(tmp_path / "tokens.jsonl")], capsys)
    made = dict(records.made(suite))
    (tmp_path / "a").mkdir()
    for argv in made["scores without score"](tmp_path / "a"):
        assert "scores.parquet" in said(argv, capsys)


def test_completions_and_problems_without_a_name_hide_no_run(suite, tmp_path, capsys, figures):
    run = records.base(tmp_path) / "atr-0"
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    rows = [{**row, "step": {}, "index": [[]]} if row["stage"] == "rl" else row for row in rows]
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (run / "problems.jsonl").open("a") as file:
        file.write('{"task": [], "id": {}}\n{"task": "amc23"}\n')
    assert main(["report", str(run), "-o", str(tmp_path / "out")]) == 0
    assert main(["compare", str(run), str(suite / "atr-0")]) == 0


def _limited(argv: list[str]) -> int:
    """Status of a command that may take a gigabyte and 30 s of CPU more than the process has."""
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limits = {resource.RLIMIT_AS: own + (1 << 30), resource.RLIMIT_CPU: int(used) + 31}
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, resource.RLIM_INFINITY))
    try:
        return main(argv)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        for kind in limits:
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _play(artefacts: Sequence[records.Made], folder: Path) -> None:
    """Write to ``played`` of each command a line when it begins, and what is wrong with its end."""
    descriptor = os.open(folder / "said", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    with (folder / "played").open("a", buffering=1) as played:
        for name, make in artefacts:
            place = folder / "made"
            place.mkdir()
            for argv in make(place):
                played.write(f"\n{name}: {argv[0]}")
                status = _limited(argv)
                sys.stdout.flush()
                text = (folder / "said").read_text(errors="replace")
                os.truncate(descriptor, 0)
                if status not in ((0, 1, 2) if argv[0] == "verify" else (0, 2)):
                    played.write(f": WRONG: status {status}: {text[-300:]!r}")
                elif "Traceback" in text:
                    played.write(f": WRONG: {text[-300:]!r}")
            shutil.rmtree(place)


@pytest.mark.slow
def test_no_artefact_ends_in_a_traceback_or_runs_on(suite, tmp_path, figures, capsys):
    """All of them, with other values for each ``HOSTILE_SEED``."""
    tokens = suite / "atr-0" / "tokens" / "update-000001.parquet"
    reads = [["tokens", str(tokens)], ["microscope", str(tokens), "--out", str(tmp_path / "page")]]
    for argv in [*records.commands(suite / "atr-0", verify=True), *reads]:
        assert main(argv) == 0, capsys.readouterr()  # all is imported before the processes part
    made = records.made(suite, seed=int(os.environ.get("HOSTILE_SEED", "0")))
    lines: list[str] = []
    while artefacts := list(islice(made, 40)):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                _play(artefacts, tmp_path)
                status = 0
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        lines = (tmp_path / "played").read_text().splitlines()
        assert code == 0, f"a process ended with {code} at {lines[-1]}"
    wrong = [line for line in lines if "WRONG" in line]
    assert not wrong, "\n".join(wrong)
    assert len(lines) > 1000
