"""What a run has recorded is there, or its absence is said: kills, power cuts, other hands."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faults import evaluations, standin
from faults.disk import Disk
from faults.runs import as_a_process, emptied, memory_folder, outcome
from faults.setups import Setup
from faults.world import Plan, World
from patience import NEVER

from trustclip.cli.commands import experiments
from trustclip.cli.main import main
from trustclip.support.jsonl import read_jsonl
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.verify import verify


@pytest.mark.parametrize(
    "work", [evaluations.work, pytest.param(standin.work, marks=pytest.mark.slow)]
)
def test_what_has_reported_its_end_survives_a_power_cut_whole(work):
    with memory_folder() as base:
        whole = None
        for seed in range(20):
            emptied(base / "disk")
            disk, run = Disk(base / "disk"), base / "disk" / "new" / "run"
            with as_a_process(), World(disk, Plan()):
                assert work(run, Setup())
            whole = whole or outcome(run)
            disk.cut_power(random.Random(seed))
            assert outcome(run) == whole, seed
            assert verify(run).whole


@pytest.mark.parametrize("gone", ["final", "final/model.safetensors", "cut"])
def test_a_finished_run_whose_model_is_gone_is_made_again(tmp_path, gone):
    run = tmp_path / "run"
    assert standin.work(run, Setup())
    model = run / "final" / "model.safetensors"
    content = model.read_bytes()
    before = read_jsonl(run / "metrics.jsonl")
    if gone == "final":
        shutil.rmtree(run / "final")
    elif gone == "cut":
        os.truncate(model, 10)
    else:
        model.unlink()
    again = RunDirectory.resumed(run, "rl", standin.Settings(run))
    with pytest.warns(UserWarning, match="newest checkpoint is taken to make it again"):
        assert not again.finished()
    assert not again.summary["finished"] and standin.work(run, Setup())
    assert model.read_bytes() == content and read_jsonl(run / "metrics.jsonl") == before
    assert verify(run).whole


def test_without_a_checkpoint_it_is_said_what_is_missing_and_what_to_do(tmp_path):
    run = tmp_path / "run"
    assert standin.work(run, Setup())
    assert RunDirectory.resumed(run, "rl", standin.Settings(run)).finished()
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match=r"final/config.json.* missing .* no checkpoint is left"):
        RunDirectory.resumed(run, "rl", standin.Settings(run)).finished()


WRITES = {
    "metrics.jsonl": lambda run, step: run.log({"stage": "rl", "step": step}),
    "gates.jsonl": lambda run, step: run.gates({"step": step}),
    "samples.jsonl": lambda run, step: run.sample([{"step": step}]),
}


def at_update_2(folder):
    run = RunDirectory(folder, "rl", standin.Settings(folder))
    for write in WRITES.values():
        write(run, 2)
    return run, run.cursor()


def deleted(path):
    path.unlink()


def cut(path):
    os.truncate(path, 5)


def replaced(path):
    content = path.read_bytes()
    path.rename(path.with_name("rotated"))
    path.write_bytes(content)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("hand", [deleted, cut, replaced])
@pytest.mark.parametrize("noticed", ["write", "checkpoint"])
def test_rows_lost_while_the_run_goes_on_are_said_and_recorded(tmp_path, name, hand, noticed):
    run, before = at_update_2(tmp_path)
    hand(tmp_path / name)
    with pytest.warns(UserWarning, match=f"{name} was {hand.__name__}"):
        WRITES[name](run, 3) if noticed == "write" else run.cursor()
    notices = [row for row in read_jsonl(tmp_path / "metrics.jsonl") if "notice" in row]
    assert [(row["notice"], row["step"]) for row in notices] == [("records_lost", 2)]
    assert not verify(tmp_path).whole
    run.cursor()  # nothing is said twice
    assert sum("notice" in row for row in read_jsonl(tmp_path / "metrics.jsonl")) == 1
    if hand is not replaced:  # the earlier checkpoint does not go on from what is left
        with pytest.raises(ValueError, match=r"lost lines|changed since"):
            RunDirectory.resumed(tmp_path, "rl", standin.Settings(tmp_path)).rewind(before)


def test_the_run_s_own_cuts_and_moves_are_no_loss(tmp_path, recwarn):
    run, before = at_update_2(tmp_path)
    WRITES["metrics.jsonl"](run, 3)
    run.rewind(before)
    for write in WRITES.values():
        write(run, 3)
    run.rewind({})
    run.log({"stage": "rl", "step": 1})
    run.cursor()
    assert not recwarn.list
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1]


@pytest.mark.parametrize("closed", [False, True])
def test_a_command_that_records_outlives_its_output(tmp_path, monkeypatch, capfd, closed):
    """On a disk that is full and stays full, or a stream that is closed: said once, status 0."""

    def rl(argv):
        for update in range(3):
            print(f"rl {update}/3", flush=True)
        (tmp_path / "done").touch()
        return 0

    monkeypatch.setattr(experiments, "rl", rl)
    with Path("/dev/full").open("w") as full:
        if closed:
            full.close()
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["rl"]) == 0
    assert (tmp_path / "done").exists()
    assert capfd.readouterr().err.count("the run goes on") == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_file_of_a_run_gets_the_number_of_a_closed_stream(tmp_path, number):
    code = (
        "import os, sys; from trustclip.cli.streams import occupy_closed; occupy_closed();"
        "file = open(sys.argv[1], 'w'); print('x', file=file); print('said');"
        "sys.exit(0 if file.fileno() > 2 else 7)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(words, preexec_fn=lambda: os.close(number), timeout=NEVER)
    assert done.returncode == 0 and (tmp_path / "file").read_text() == "x\n"
