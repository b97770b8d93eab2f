"""`make gpu` without a GPU: every stage at tiny shapes, what resumes it, and what breaks it."""

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu import wheels
from patience import NEVER, slowness

from trustclip import head
from trustclip.cli.main import main
from trustclip_lab.bench.gpu import STAGES, correctness, curves, page, race, rehearsal, worker
from trustclip_lab.bench.gpu import session as sessions
from trustclip_lab.bench.gpu import training_step as steps
from trustclip_lab.bench.gpu.cases import CannotRun, Case, Place, Row, Stage
from trustclip_lab.bench.gpu.session import GpuOptions, Session
from trustclip_lab.bench.table import Table

ROOT = Path(__file__).parents[2]
BOX: dict[str, Any] = {
    "processor": "p",
    "date": "2026-11-22",
    "device": "none: no GPU was at hand",
    "packages": {"torch": "2.11.0", "quack-kernels": None},
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("cpu", True, tmp_path)


def outcomes(name: str, cases: Any, place: Place) -> dict[str, Row]:
    return {case.key: worker.outcome(name, case, place)[0] for case in cases}


# -- correctness -----


def test_every_check_passes_on_a_cpu_or_says_what_it_needs(place: Place) -> None:
    rows = outcomes("correctness", correctness.cases(place), place)
    absent = {key: row.why for key, row in rows.items() if row.state == "cannot"}
    assert {*absent} == {
        "two streams", "more than 2^31 logits", "a tile of more than 2^31 logits",
        "compute-sanitizer",
    }  # fmt: skip
    assert all(why.endswith("needs a GPU") for why in absent.values())
    done = {key: row.values for key, row in rows.items() if key not in absent}
    assert all(values and values["passes"] and values["errors"] for values in done.values()), rows
    (table,) = correctness.tables([row for row in rows.values() if row.state == "done"])
    assert {row[2] for row in table.rows} == {"passes"}


def test_a_wrong_head_fails_and_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    right = head.score

    def wrong(*args: Any, **kwargs: Any) -> Any:
        scores = right(*args, **kwargs)
        return scores._replace(logp=scores.logp * (1 + 1e-4))

    monkeypatch.setattr(head, "score", wrong)
    row = outcomes("correctness", correctness.cases(place)[:1], place)["float32"]
    assert row.values is not None and not row.values["passes"]
    (table,) = correctness.tables([row])
    verdict = str(table.rows[0][2])
    assert verdict.startswith("FAILS: ") and "log-probability, frozen" in verdict
    assert "exact KL" not in verdict


def test_the_path_of_a_gpu_with_its_kernels_interpreted() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    path = os.pathsep.join(str(ROOT / at) for at in ("src", "lab/src", "tests/support"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "lab/tests/gpu_path.py")],
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kernels"] == ["fold", "fold_gradient"]
    for key, values in found["cases"].items():
        assert values["passes"], (key, values)
    # In bfloat16 the factors of the gradient have three digits; in float32 they have seven.
    errors = {
        key: found["cases"][key]["errors"]["gradient of W"]["error"]
        for key in ("float32", "bfloat16")
    }
    assert errors["float32"] < 1e-5 < errors["bfloat16"]


# -- the head -----


def test_the_race_has_a_line_for_everything_that_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [e for e in race.ENTRANTS if e.package is None]
    broken = race.Entrant("broken", "naive", 2, 3, package="no_such_package")
    monkeypatch.setattr(race, "ENTRANTS", (*own, broken))
    for case in race.cases(place):
        values = case.run(place)
        lines = {line["label"]: line for line in values["lines"]}
        assert "not installed" in lines["broken"]["why"] and "ms" not in lines["broken"]
        measured = [line for line in lines.values() if "ms" in line]
        assert all(line["floor_share"] > 0 for line in measured)
        assert all(line["error"] < 1e-5 for line in measured if "error" in line)
        assert {"trustclip", "naive logits"} <= {line["label"] for line in measured}
        assert not any(key in lines["bare products, whole"] for key in ("error", "why"))
        (table,) = race.tables([Row("head", case.key, "done", values=values)])
        assert any("broken: not measured" in note for note in table.notes)


def test_own_products_are_counted_right(place: Place) -> None:
    """The count that TFLOP/s rests on is what a call multiplies."""
    from test_bench import Products

    from trustclip_lab.bench.variants import Problem, Shape

    for trained in (False, True):
        problem = Problem.of(Shape(20, 8, 600), trained)
        for entrant in race.ENTRANTS:
            own = entrant.function in ("whole_products", "products", "ours") or "+" in entrant.label
            count = entrant.products(trained)
            if not own or count is None or entrant.function.startswith("naive"):
                continue
            call = race._prepare(entrant, problem, place)
            with Products() as found:
                call()
            assert found.count == count * 2 * 20 * 8 * 600, entrant.label


# -- stages that train -----


@pytest.mark.slow
def test_an_update_s_parts_add_up(place: Place) -> None:
    pytest.importorskip("trl")
    chosen = [case for case in steps.cases(place) if "LoRA" in case.key][:2]
    for row in outcomes("step", chosen, place).values():
        assert row.state == "done", row.why
        values: Any = row.values
        seconds = dict(values["seconds"])
        total = seconds.pop("update")
        assert sum(seconds.values()) == pytest.approx(total) and min(seconds.values()) > -1e-3
        assert seconds["backward"] > 0 and values["estimated_mib"] > 0 and values["mib"] is None


@pytest.mark.slow
def test_the_rehearsal_is_resumed_bit_for_bit(place: Place) -> None:
    pytest.importorskip("trl")
    (case,) = rehearsal.cases(place)
    values = case.run(place)
    assert set(values["same"].values()) == {True} and values["killed_after"] >= 2
    assert max(values["gradients"]) > 0


@pytest.mark.slow
def test_curves_of_the_cpu(place: Place) -> None:
    pytest.importorskip("trl")
    rows = outcomes("curves", curves.cases(place)[:1], place)
    assert [row.state for row in rows.values()] == ["done"], rows
    assert curves.figure([*rows.values()]).startswith("<svg")  # type: ignore[union-attr]


def test_curves_of_two_devices_are_compared_over_seeds() -> None:
    runs = {
        "cuda": [[0.1, 0.3], [0.2, 0.4], [0.2, 0.2]],
        "cpu": [[0.1, 0.3], [0.2, 0.2], [0.3, 0.3]],
    }
    found = curves._compare(runs)
    assert found["means"]["cuda"] == pytest.approx([0.2, 0.3, 0.2])
    low, high = found["difference"][1:]
    assert low < 0 < high and found["p"] > 0.5
    (table,) = curves.tables([Row("curves", "tiny", "done", values={"rewards": runs, **found})])
    assert table.rows[0][1:4] == (3, pytest.approx(0.7 / 3), pytest.approx(0.7 / 3))


# -- the session -----


def fake(monkeypatch: pytest.MonkeyPatch, *cases: Case, **options: Any) -> None:
    """Put one stage of these cases in the place of all."""

    def tables(rows: Any) -> list[Table]:
        return [Table("t", ("case", "value"), [(r.key, (r.values or {}).get("x")) for r in rows])]

    one = Stage("One", 1.0, lambda place: cases, tables, **options)
    for module in (worker, sessions, page):
        monkeypatch.setattr(module, "stage", lambda name: one)


def no_gpu(place: Place) -> dict[str, Any]:
    raise CannotRun("this needs a GPU")


def fails(place: Place) -> dict[str, Any]:
    raise ValueError("no good")


def lost(place: Place) -> dict[str, Any]:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def fine(place: Place) -> dict[str, Any]:
    return {"x": 1.0}


def test_a_case_that_fails_fails_no_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, Case("a", no_gpu), Case("b", fails), Case("c", fine), Case("d", lost))
    assert worker.run_cases("one", place, (), 100.0, "box") == worker.BROKEN
    rows = [json.loads(line) for line in (place.folder / "cases.jsonl").read_text().splitlines()]
    assert [(r["key"], r["state"]) for r in rows] == [
        ("a", "cannot"), ("b", "failed"), ("c", "done"), ("d", "failed"),
    ]  # fmt: skip
    assert rows[0]["why"] == "this needs a GPU" and rows[1]["why"] == "ValueError: no good"
    assert not (place.folder / "begun").exists()


def test_a_case_is_not_begun_without_the_time_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, Case("long", fine, 9e3), Case("short", fine, 1e-3), Case("done", fine))
    assert worker.run_cases("one", place, ["done"], 9.9) == 0
    rows = [json.loads(line) for line in (place.folder / "cases.jsonl").read_text().splitlines()]
    assert [row["key"] for row in rows] == ["short"]


def test_what_is_missing_is_what_has_no_outcome_on_this_machine(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [Case(key, fine) for key in "abcde"]
    fake(monkeypatch, *cases)
    session = Session(place, BOX)
    own = session._box
    for row in (
        Row("one", "a", "done", box=own),
        Row("one", "b", "failed", box=own),
        Row("one", "c", "done", box="other"),
        Row("one", "d", "cannot", box=own),
        Row("one", "e", "failed", box=own),
        Row("one", "e", "failed", box=own),
    ):
        worker.append(place.folder, row)
    with open(place.folder / "cases.jsonl", "a") as file:
        file.write('{"stage": "one", "key": "a", "sta')  # a session that was killed
    assert session.missing("one") == ["b", "c"]
    assert [row.key for row in session.done("one")] == ["a"]


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """A program in the place of Python, for the processes that a session starts."""
    path = tmp_path / "stand-in"
    path.write_text(f"#!/bin/sh\nout={tmp_path}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sessions.sys, "executable", str(path))


def test_a_process_that_dies_loses_its_case_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, Case("a", fine), Case("b", fine))
    counted = 'echo x >>"$out/calls"; if [ $(wc -l <"$out/calls") = 1 ]; then'
    stand_in(monkeypatch, place.folder, f'{counted} printf a >"$out/begun"; kill -9 $$; fi')
    session = Session(place, BOX)
    session.run_stage("one", NEVER)
    assert len((place.folder / "calls").read_text().split()) == 2
    (row,) = session.rows()
    assert (row.key, row.state) == ("a", "failed") and "status -9; see one.log" in row.why


def test_a_process_that_hangs_is_killed_in_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 0.5 * slowness()
    fake(monkeypatch, Case("a", fine))
    stand_in(monkeypatch, place.folder, 'printf a >"$out/begun"; sleep 100000')
    session = Session(place, BOX)
    session._process("one", limit)
    (row,) = session.rows()
    assert "no time was left" in row.why


def test_a_process_that_cannot_start_is_no_endless_loop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, Case("a", fine))
    stand_in(monkeypatch, place.folder, "exit 3")
    session = Session(place, BOX)
    session.run_stage("one", NEVER)
    (row,) = session.rows()
    assert (row.key, row.state) == ("all", "failed") and "status 3" in row.why


def test_a_stage_without_its_packages_says_so_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, Case("a", fine), needs=("no_such_package",))
    session = Session(place, BOX)
    for _ in range(2):
        session.run_stage("one", NEVER)
    (row,) = session.rows()
    assert (row.state, row.why) == ("cannot", "not installed here: no_such_package")
    assert session.missing("one") == []


def test_every_stage_can_be_asked_for_its_cases_without_running_one(tmp_path: Path) -> None:
    for device, tiny in (("cpu", True), ("cuda", False)):
        for name in STAGES:
            found = importlib.import_module(f"trustclip_lab.bench.gpu.{STAGES[name]}").STAGE
            keys = [case.key for case in found.cases(Place(device, tiny, tmp_path))]
            assert keys and len({*keys}) == len(keys)
    shortest = sum(
        min(case.seconds for case in found.cases(Place("cuda", False, tmp_path)))
        for found in (
            importlib.import_module(f"trustclip_lab.bench.gpu.{m}").STAGE for m in STAGES.values()
        )
    )
    assert shortest < 9 * 60, "nine minutes are enough for something of every stage"


def test_what_the_program_took_to_start_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine under load imports take a minute of the nine."""
    assert 0 < sessions._age() < NEVER
    monkeypatch.setattr(sessions, "_age", lambda: 60.0)
    monkeypatch.setattr(Session, "_process", lambda *given: pytest.fail("a stage has begun"))
    sessions.run(GpuOptions(out=tmp_path, minutes=1, stages="correctness", device="cpu"))
    assert "No GPU was at hand" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_the_command_runs_resumes_and_writes_its_page(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_age", lambda: 0.0)  # of the tests' process: no start of it
    arguments = ["bench", "gpu", "--stages", "correctness", "--device", "cpu", "--minutes", "5"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Against float64" in printed and "passes" in printed
    text = (tmp_path / "out" / "README.md").read_text()
    assert "**No GPU was at hand" in text and "- two streams: a second stream needs a GPU" in text
    before = (tmp_path / "out" / "cases.jsonl").read_text()
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "cases.jsonl").read_text() == before
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["stages"]["correctness"]["missing"] == []
    assert results["machine"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "head,stepp"}, "unknown stage 'stepp'; did you mean 'step'?"),
        ({"minutes": 0}, "--minutes must be at least 1, got 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        GpuOptions(**options)


# -- the page -----


def test_the_page_has_every_outcome(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, Case("a", fine), Case("z", fine))
    rows = [
        Row("one", "a", "done", values={"x": 2.5, "y": float("nan")}, clocks="clocks.sm 1980 MHz"),
        Row("one", "b", "failed", "out of memory"),
        Row("one", "c", "cannot", "needs a GPU"),
    ]
    page.write_results(place.folder, BOX, ["one"], rows, lambda name: ["z"])
    text = (place.folder / "README.md").read_text()
    for part in ("No GPU was at hand", "| a | 2.5 |", "- b: out of memory", "- c: needs a GPU"):
        assert part in text
    assert "Not there: quack-kernels." in text and "| One | 1 | 1 | 1 | 1 | 0 |" in text
    assert "clocks.sm 1980 MHz" in text
    results = json.loads((place.folder / "results.json").read_text())
    assert results["stages"]["one"]["missing"] == ["z"]
    card = BOX | {"device": "NVIDIA H200", "capability": "sm_90", "card": {"driver_version": "580"}}
    measured = page.page(card, ["one"], rows, lambda name: [])
    assert "Measured on one NVIDIA H200 on 2026-11-22" in measured and "| 580 |" in measured


def test_times_of_tiny_shapes_stand_on_no_page(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, Case("a", fine), timed=True)
    rows = [Row("one", "a", "done", values={"x": 2.5})]
    text = page.page(BOX, ["one"], rows, lambda name: [])
    assert "| a | 2.5 |" not in text and "Ran, at tiny shapes:\n\n- a" in text
    measured = page.page(BOX | {"capability": "sm_90"}, ["one"], rows, lambda name: [])
    assert "| a | 2.5 |" in measured


# -- wheels -----


def test_the_pins_are_those_of_the_other_environments() -> None:
    shared = {
        line.partition("==")[0].lower(): line
        for name in ("run.txt", "dev.txt")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
        if "==" in line
    }
    for pin in wheels.pins():
        name = pin.partition("==")[0].lower()
        assert shared.get(name, pin).split()[0] == pin, name


def test_only_what_the_machine_lacks_is_installed(tmp_path: Path, capsys: Any) -> None:
    bounds = wheels.bounds()
    assert wheels.lacking("pydantic==2.14.3", bounds) is None
    assert wheels.lacking("no-such-package==1.0", bounds) == "not here"
    newer = {"pydantic": wheels.Requirement("pydantic>=99")}
    assert "is here, and >=99 is needed" in str(wheels.lacking("pydantic==99.0", newer))
    assert wheels.install(tmp_path / "none", tmp_path / "site") == 0
    assert "make gpu-wheels" in capsys.readouterr().out


def test_unmet_needs_are_named(tmp_path: Path) -> None:
    made = tmp_path / "needy-1.0.dist-info"
    made.mkdir()
    needs = "Requires-Dist: torch>=99\nRequires-Dist: numpy\nRequires-Dist: x; extra == 'y'\n"
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: needy\nVersion: 1.0\n{needs}")
    (told,) = wheels.conflicts(tmp_path)
    assert told.startswith("needy needs torch>=99; here is ")
