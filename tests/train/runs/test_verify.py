"""`trustclip verify`: one changed byte in each kind of file is found."""

import json
import os
import shutil

import pytest
from faults import standin
from faults.setups import Setup
from test_checkpoints import flip

from trustclip.cli.main import main
from trustclip.train.durable.store import CheckpointStore
from trustclip.train.runs.verify import verify


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of five updates, with checkpoints of steps 4 and 5."""
    folder = tmp_path_factory.mktemp("verify") / "run"
    assert standin.work(folder, Setup())
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def states(folder):
    return {finding.name: finding.state for finding in verify(folder).checked}


def findings(folder):
    return {f.name: (f.state, f.text) for f in verify(folder).checked if f.state != "whole"}


def test_a_finished_run_is_whole_and_nothing_in_it_is_changed(run, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["verify", str(run)]) == 0
    assert "is whole: " in capsys.readouterr().out
    assert set(states(run).values()) == {"whole"}
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml", "marks.json", "environment.json", "metrics.jsonl", "gates.jsonl",
        "samples.jsonl", "problems.jsonl", "tokens/update-000000.parquet", "summary.json",
        "final/model.safetensors", "final/config.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 0.5])
def test_one_flipped_bit_is_found_in_every_kind_of_file(run, name, place):
    flip(run / name, place)
    found = {n: state for n, (state, _) in findings(run).items() if state != "unrecorded"}
    assert found == {name: "changed"}
    (run / name).unlink()
    if name != "summary.json":
        assert {n: state for n, (state, _) in findings(run).items()} == {name: "missing"}


def test_one_flipped_bit_in_any_file_of_a_checkpoint_is_found(run):
    path = CheckpointStore(run / "checkpoints").path(4)
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        flip(file)
        assert findings(run)[f"checkpoints/{path.name}"][0] == "changed", file.name
        file.write_bytes(content)
    assert not findings(run)


def test_rows_that_were_cut_off_or_added_are_found(run):
    gates, samples = run / "gates.jsonl", run / "samples.jsonl"
    os.truncate(gates, gates.stat().st_size - 5)
    with samples.open("a") as file:
        file.write('{"stage": "rl", "step": 4}\n')
    (run / "samples-rank1.jsonl").write_text('{"stage": "rl", "step": 4}\n')
    found = findings(run)
    assert found["gates.jsonl"][0] == "missing" and "bytes are left of" in found["gates.jsonl"][1]
    assert found["samples.jsonl"][0] == found["samples-rank1.jsonl"][0] == "changed"


def test_of_a_run_that_goes_on_its_newest_rows_are_not_covered_yet(run):
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "rl", "step": 6}\n')
    verification = verify(run)
    assert verification.whole and not verification.finished
    assert any("newer than the last checkpoint" in f.text for f in verification.checked)
    flip(run / "gates.jsonl")
    assert findings(run)["gates.jsonl"][0] == "changed"


def test_an_old_run_has_no_hashes(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "hashes": None}))
    shutil.rmtree(run / "checkpoints")
    assert main(["verify", str(run)]) == 0
    assert "is unrecorded: it has no hashes" in capsys.readouterr().out


def test_what_is_no_run_has_status_2_and_json_says_the_same(run, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["verify", str(empty)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    flip(run / "final/model.safetensors")
    assert main(["verify", str(run), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    changed = [file["name"] for file in said["files"] if file["state"] == "changed"]
    assert (said["whole"], said["finished"], changed) == (False, True, ["final/model.safetensors"])


@pytest.mark.parametrize(
    "entry",
    [7, None, [], "x", {"bytes": "a", "sha256": "b"}, {"bytes": 3, "sha256": "zz"},
     {"bytes": 3, "sha256": "ab", "chain": [[1]]}, {"bytes": 3, "sha256": 3, "chain": 4}],
)  # fmt: skip
def test_a_malformed_record_is_a_finding_and_no_traceback(run, entry):
    summary = json.loads((run / "summary.json").read_text())
    summary["hashes"]["metrics.jsonl"] = entry
    (run / "summary.json").write_text(json.dumps(summary))
    assert not verify(run).whole


def test_a_link_is_no_file_of_a_run(run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes((run / "gates.jsonl").read_bytes())
    (run / "gates.jsonl").unlink()
    (run / "gates.jsonl").symlink_to(secret)
    assert findings(run)["gates.jsonl"] == ("missing", "no regular file")
