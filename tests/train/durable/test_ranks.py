"""Two ranks against one: the same updates from the same global batch, and what a lost rank does.

Processes are started as users start them, by torch's launcher; gloo is the backend of a CPU.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from durable_runs import differences
from patience import NEVER, slowness
from ports import free_port

from trustclip.logs.reader import read_run
from trustclip.logs.recognise import token_rows
from trustclip.logs.samples import shards
from trustclip.support.jsonl import read_jsonl

pytestmark = pytest.mark.slow

METHODS = ("atr", "clip_cov", "full_kl")


@dataclass(frozen=True)
class Ended:
    """A launch that is over."""

    code: int
    output: str


def launched(
    *arguments: str, ranks: int, program: str = "rank_processes.py", **environment: str
) -> Ended:
    """What became of a program of the tests on some ranks; one that hangs is ended by `NEVER`."""
    here = Path(__file__).parents[2] / "support"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "--shutdown-timeout", "5"),
            *(str(here / program), *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]).strip(":"),
            **environment,
        },
    )
    try:
        output, _ = process.communicate(timeout=NEVER)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"not over after {NEVER} s: {output[-3000:]}")
    return Ended(process.returncode, output)


def told_by(folder: Path, *arguments: str, ranks: int, **environment: str) -> dict:
    """What the first rank wrote down."""
    folder.mkdir(exist_ok=True)
    command, *rest = arguments
    ended = launched(command, str(folder), *rest, ranks=ranks, **environment)
    assert ended.code == 0, ended.output[-3000:]
    return json.loads((folder / "told.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[int, dict]:
    """Every run of `rank_processes.RUNS`, on one rank and on two."""
    folder = tmp_path_factory.mktemp("ranks")
    return {ranks: told_by(folder / str(ranks), "train", ranks=ranks) for ranks in (1, 2)}


def column(run: dict, name: str) -> list[float]:
    return [row[name] for row in run["rows"]]


def test_there_are_two_ranks_and_ddp(runs):
    """A launcher that starts one process, or a wrapper that is not there, would pass the rest."""
    for run in runs[2].values():
        assert (run["world"], run["type"]) == (2, "MULTI_CPU")
        assert run["wrapper"] == "DistributedDataParallel"
    for run in runs[1].values():
        assert (run["world"], run["type"]) == (1, "MULTI_CPU")


@pytest.mark.parametrize("name", [*METHODS, "token-mean"])
def test_two_ranks_take_the_updates_of_one(runs, name):
    one, two = runs[1][name], runs[2][name]
    assert len(one["rows"]) == 6 and max(column(one, "trustclip/gated")) > 0.05
    assert column(two, "grad_norm") == pytest.approx(column(one, "grad_norm"), rel=1e-6)
    assert two["norm"] == pytest.approx(one["norm"], rel=1e-6)
    assert two["parameters"][0] == two["parameters"][1]


def test_a_model_that_fsdp2_shards_has_the_gradients_and_divergences_of_a_whole_one(tmp_path):
    """Frozen or not: the head's own module gathers its weight, in both passes."""
    told = told_by(tmp_path / "fsdp2", "fsdp2", ranks=2)
    for run in told.values():
        assert run["gradient"] < 1e-5
        assert run["kl"] < 1e-6 < 1e-3 < run["largest kl"]


@pytest.mark.parametrize("name", [*METHODS, "adapting", "watched", "idle rank"])
def test_two_ranks_log_what_one_does(runs, name):
    one, two = runs[1][name]["rows"], runs[2][name]["rows"]
    for a, b in zip(map(dict, one), map(dict, two), strict=True):
        assert a.keys() == b.keys() and len(a) > 30
        # TRL averages the ranks' mean entropies, whatever their number of tokens.
        assert b.pop("entropy") == pytest.approx(a.pop("entropy"), rel=1e-3)
        if name == "idle rank":  # a completion that cannot matter has to take part on it
            assert a.pop("trustclip/skipped") - b.pop("trustclip/skipped") == 1 / 16
        for row in (a, b):  # equal bits depend on the shape of a batch
            for key in [key for key in row if key.endswith("identical_share")]:
                assert 0 <= row.pop(key) <= 1
        # Quantiles of what the two passes of a policy differ by: nothing but rounding.
        for key in [key for key in a if "sampler/log_ratio_q" in key]:
            assert b.pop(key) == pytest.approx(a.pop(key), abs=2e-6)
        assert b == pytest.approx(a, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["skipping", "idle rank"])
def test_leaving_rows_out_changes_no_gradient_whichever_rank_has_them(runs, name):
    whole = "nothing skipped" if name == "skipping" else "idle rank, nothing skipped"
    wanted = column(runs[1][whole], "grad_norm")
    assert max(column(runs[1][whole], "trustclip/skipped")) == 0
    for ranks in (1, 2):
        run = runs[ranks][name]
        assert column(run, "grad_norm") == pytest.approx(wanted, rel=1e-5)
        assert len(set(run["parameters"])) == 1
    left_out = [max(column(runs[ranks][name], "trustclip/skipped")) for ranks in (1, 2)]
    # A rank without a row that matters passes one, to take part in the collective calls.
    assert left_out == ([0.5, 0.5] if name == "skipping" else [0.5, 7 / 16])


def test_a_bad_gradient_on_one_rank_skips_the_update_on_all(runs):
    run = runs[2]["guards"]
    assert run["skipped"] == [1, 1]
    assert run["said"] == [["3 nonfinite_gradient"], []]  # once: the first rank speaks
    assert run["after"][0] == run["after"][1]
    sums = run["after"][0]
    assert sums[2] == sums[1] and len(set(sums)) == 5
    assert run["norm"] == pytest.approx(runs[1]["guards"]["norm"], rel=1e-6)


needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None,
    reason="deepspeed is not installed (a separate package; on a CPU it compiles an operator)",
)


@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_takes_the_updates_of_one_rank(tmp_path, stage):
    one = told_by(tmp_path / "one", "zero", "0", ranks=1)
    two = told_by(tmp_path / "two", "zero", str(stage), ranks=2, DS_ACCELERATOR="cpu")
    for name in METHODS:
        assert two[name]["wrapper"] == "DeepSpeedEngine" and two[name]["own_head"]
        ours, wanted = (column(run[name], "grad_norm") for run in (two, one))
        assert ours == pytest.approx(wanted, rel=1e-5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run of the faults, without one."""
    folder = tmp_path_factory.mktemp("whole")
    told_by(folder, "fault", "none", ranks=2)
    return folder


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raise", ["rank      : 1", "a reward that fails"]),
        ("kill", ["rank      : 1", "exitcode  : -9"]),
        (
            "hang",
            [
                "Timed out waiting {seconds}000ms",
                "rank 0 has had no answer from rank 1,",
                "rank 1 ends: another rank has failed. It was here:",
                "in rest_for_ever",
            ],
        ),
    ],
    ids=["raise", "kill", "hang"],
)
def test_a_lost_rank_ends_the_job_and_the_last_checkpoint_serves(tmp_path, whole, kind, words):
    folder = tmp_path / "first"
    # Only who waits for a rank that hangs has to give up; no slow one is to be taken for it.
    seconds = round(20 * slowness()) if kind == "hang" else round(NEVER)
    ended = launched("fault", str(folder), kind, str(seconds), ranks=2)
    if "(exitcode: -6)" in ended.output:
        # A thread of gloo's can abort the process when its peer vanishes, before Python sees it.
        folder = tmp_path / "second"
        ended = launched("fault", str(folder), kind, str(seconds), ranks=2)
    assert ended.code == 1
    for word in words:
        assert word.replace("{seconds}", str(seconds)) in ended.output
    reached = len(list((folder / "checkpoints").glob("step-*")))
    assert 5 <= reached < 12
    again = launched("fault", str(folder), "none", ranks=2)
    assert again.code == 0, again.output[-3000:]
    assert (folder / "checkpoints" / "step-000012").is_dir()
    assert differences(whole, folder, after=reached) == []


FIRST_RANK_LOST = """
import os, signal, sys
import torch
import torch.distributed as dist
from trustclip.train.durable.ranks import LostRankError, roll_call

dist.init_process_group("gloo", init_method="env://")
try:
    with roll_call(float(sys.argv[2])):
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 0:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        dist.all_reduce(torch.ones(1))
except LostRankError as error:
    print(error, flush=True)
    sys.exit(2)
"""


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_a_lost_first_rank_is_named_although_it_holds_the_store(how):
    """Started without a launcher that keeps the ranks' store, as srun does."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    seconds = str(4 * slowness())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_RANK_LOST, how, seconds],
            env={**os.environ, **address, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        output, _ = ranks[1].communicate(timeout=NEVER)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert ranks[1].returncode == 2, output
    assert "rank 1 has had no answer from rank 0, which hangs or has ended." in output


DONE = """
import atexit, os, sys
import torch
import torch.distributed as dist
from trustclip.train.durable.ranks import leave

class Late:  # as a thread of gloo does that still has a tensor when Python shuts down
    def __del__(self, abort=os.abort):
        abort()

late = Late()
dist.init_process_group("gloo", init_method="env://", rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
atexit.register(lambda: print("closed", dist.is_initialized(), flush=False))
print("done", flush=False)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("leave()", 0), ("leave(2)", 2), ("sys.exit(0)", -signal.SIGABRT)],
)
def test_a_rank_that_is_done_does_not_fail_by_its_ending(tmp_path, end, code):
    """What is printed and registered is still written and called, with the process group that the
    end of a vLLM needs; Python's own end fails."""
    done = subprocess.run(
        [sys.executable, "-c", DONE.replace("env://", f"file://{tmp_path}/store") + end],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (code, "done\nclosed True\n")


def test_the_record_of_two_ranks_is_that_of_one(tmp_path):
    for ranks in (1, 2):
        told_by(tmp_path / str(ranks), "record", ranks=ranks)
    one, two = (read_run(tmp_path / str(ranks) / "run") for ranks in (1, 2))
    assert one.finished and two.finished and len(one.training) == 6
    for a, b in zip(one.training, two.training, strict=True):
        assert b["reward"] == a["reward"] if "reward" in a else "reward" not in b
        assert b["trustclip/gated"] == pytest.approx(a["trustclip/gated"])
    assert [e.answers for e in one.evaluations] == [e.answers for e in two.evaluations]
    assert len(two.evaluations) == 2

    def completions(run):
        rows = [row for path in shards(run.path) for row in read_jsonl(path)]
        kept = [r for r in rows if r["stage"] == "rl"]
        return sorted((r["step"], r["index"], r["response"], r["reward"]) for r in kept)

    assert len(completions(one)) == 32 and completions(one) == completions(two)
    gates = [
        [
            sorted(zip(r["index"], r["gated"], strict=True))
            for r in read_jsonl(run.path / "gates.jsonl")
        ]
        for run in (one, two)
    ]
    assert gates[0] == gates[1]
    recorded = [sum(1 for _ in token_rows(run.path / "tokens")) for run in (one, two)]
    assert recorded[0] == recorded[1] > 16
    assert len(list((two.path / "tokens").glob("*-rank1.parquet"))) > 1
