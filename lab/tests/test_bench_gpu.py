"""`make gpu` without a GPU: every stage at tiny shapes, what resumes it, and what breaks it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_stages
import pytest
from gpu import wheels
from patience import NEVER

from trustclip import head
from trustclip.cli.main import main
from trustclip_lab.bench.gpu import STAGES, correctness, race, session
from trustclip_lab.bench.gpu import training_step as steps
from trustclip_lab.bench.gpu.cases import Place, Row, stage

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("cpu", True, tmp_path)


def outcomes(name: str, cases: Any, place: Place) -> dict[str, Row]:
    return {case.key: session.outcome(name, case, place) for case in cases}


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


@pytest.mark.slow
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


# -- a stage that trains -----


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
        assert seconds["backward"] > 0 and values["mib"] is None


# -- the session -----


BOX: dict[str, Any] = {
    "processor": "p",
    "date": "2026-11-22",
    "packages": {"torch": "2.11.0", "quack-kernels": "not installed"},
}


def states(place: Place) -> dict[str, tuple[str, str]]:
    return {row.key: (row.state, row.why) for row in session.rows_of(place.folder)}


def test_a_case_that_fails_costs_no_other(place: Place) -> None:
    """Not one after which the device takes no more work, nor one that ends its process."""
    place = dataclasses.replace(place, device="cuda")
    session.open_session(place, BOX)
    session.run_stage("one", gpu_stages.STAGE, place, NEVER)
    found = states(place)
    assert found.pop("e") == ("done", "")
    assert found == {
        "a": ("cannot", "this needs a GPU"),
        "b": ("failed", "ValueError: no good"),
        "c": ("failed", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        "d": ("failed", "its process ended with -9; see one.log"),
    }
    assert session.missing("one", gpu_stages.STAGE, place) == ["long"]  # no time was left for it
    assert "one: b" in (place.folder / "one.log").read_text()
    assert not (place.folder / "begun").exists()
    # The next call runs again what failed, and nothing else.
    session.open_session(place, BOX | {"date": "2026-11-23"})
    assert session.missing("one", gpu_stages.STAGE, place) == ["b", "c", "d", "long"]
    with pytest.raises(ValueError, match="another machine"):
        session.open_session(place, BOX | {"processor": "q"})


@pytest.mark.slow
def test_a_case_that_hangs_is_killed_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_LEAST", 0.0)
    monkeypatch.setattr(session, "_MARGIN", 0.0)
    session.open_session(place, BOX)
    seconds = 4.0
    while "a" not in states(place):  # until there was time to begin it
        assert seconds < NEVER and not states(place)
        session.run_stage("one", gpu_stages.HANGING, place, seconds)
        seconds *= 2
    assert states(place) == {"a": ("failed", "its time was up; see one.log")}


def test_a_process_that_cannot_begin_is_no_endless_loop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.open_session(place, BOX)
    assert session.missing("one", gpu_stages.UNREADY, place) == ["a"]
    monkeypatch.setattr(session, "missing", lambda name, one, place: (
        [] if "all" in states(place) else ["a"]))  # fmt: skip
    monkeypatch.setenv("UNREADY", "1")
    session.run_stage("one", gpu_stages.UNREADY, place, NEVER)
    assert states(place) == {"all": ("failed", "its process ended with 1; see one.log")}


def test_every_stage_has_cases_and_nine_minutes_are_enough_for_some_of_each(tmp_path) -> None:
    for device, tiny in (("cpu", True), ("cuda", False)):
        for name in STAGES:
            cases = stage(name).cases(Place(device, tiny, tmp_path))
            assert cases and len({case.key for case in cases}) == len(cases)
    place = Place("cuda", False, tmp_path)
    shortest = [min(case.seconds for case in stage(name).cases(place)) for name in STAGES]
    assert sum(shortest) < 9 * 60


@pytest.mark.slow
def test_the_command_runs_resumes_and_writes_its_page(tmp_path: Path, capsys: Any) -> None:
    arguments = ["bench", "gpu", "--stages", "correctness", "--device", "cpu", "--minutes", "5"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Against float64" in printed and "passes" in printed
    text = (tmp_path / "out" / "README.md").read_text()
    assert "**No GPU was at hand" in text and "- two streams: a second stream needs a GPU" in text
    before = (tmp_path / "out" / "cases.jsonl").read_text()
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "cases.jsonl").read_text() == before


def test_the_page_has_every_outcome(place: Place) -> None:
    session.open_session(place, BOX)
    rows = [
        Row("one", "e", "done", values={"x": 2.5, "y": float("nan")}),
        Row("one", "b", "failed", "out of memory"),
        Row("one", "c", "cannot", "needs a GPU"),
    ]
    for row in rows:
        session._append(place, row)
    stages = {"one": gpu_stages.STAGE}
    text = session.page(BOX, stages, place)
    for part in ("No GPU was at hand", "| e | 2.5 |", "- b: out of memory", "- c: needs a GPU"):
        assert part in text
    assert "Not there: quack-kernels." in text and "Not yet run: a; d; long." in text
    card = BOX | {"device": "NVIDIA H200", "capability": "9.0", "driver_version": "580"}
    measured = session.page(card, stages, place)
    assert "No GPU" not in measured and "| device | NVIDIA H200 |" in measured
    # Times of tiny shapes stand on no page.
    timed = {"one": dataclasses.replace(gpu_stages.STAGE, timed=True)}
    text = session.page(BOX, timed, place)
    assert "| e | 2.5 |" not in text and "Ran, at tiny shapes:\n\n- e" in text


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
