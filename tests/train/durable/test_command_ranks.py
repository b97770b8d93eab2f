"""Commands on two ranks: what one of them writes and the others read, and how they end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import NEVER, until
from ports import free_port
from test_ranks import Ended, launched

from trustclip.logs.samples import shards
from trustclip.support.jsonl import read_jsonl
from trustclip.support.lock import only_process

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "support" / "late_rank.py"
#: Of a terminal so wide that no line is broken.
WIDE = {"COLUMNS": "500"}


def trustclip(*arguments: str, **environment: str) -> Ended:
    """A command on two ranks, of which the first is late."""
    return launched(*arguments, ranks=2, program=PROGRAM.name, LATE="0", **WIDE, **environment)


class Pair:
    """Two ranks started by hand, so that each can be signalled and has a status of its own."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        folder.mkdir()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        common = {**os.environ, **address, **WIDE, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._logs = [folder / f"rank-{rank}.txt" for rank in (0, 1)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, *command],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment},
                stdout=log.open("w"),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(self._logs)
        ]

    def ended(self) -> list[Ended]:
        """How each has ended; what hangs is killed."""
        try:
            codes = [process.wait(timeout=NEVER) for process in self.ranks]
        finally:
            for process in self.ranks:
                process.kill()
                process.wait()
        return [Ended(code, log.read_text()) for code, log in zip(codes, self._logs, strict=True)]


HANDED = """
import os, signal, sys, time
from pathlib import Path
from trustclip.train.durable.ranks import by_first

def write():
    time.sleep(1)
    {end}
    Path(sys.argv[1]).write_text("written")
    return ["told"]

print(by_first(write), Path(sys.argv[1]).read_text())
print(by_first(lambda: os.environ["RANK"]))
"""


@pytest.mark.parametrize(
    ("end", "codes", "words"),
    [
        ("pass", (0, 0), "['told'] written\n0\n"),
        ("raise ValueError('no room')", (1, 1), "TrainingError: rank 0: no room"),
        ("sys.exit(0)", (0, -signal.SIGINT), "KeyboardInterrupt"),
        ("os.kill(os.getpid(), signal.SIGKILL)", (-signal.SIGKILL, 1), "DistNetworkError"),
    ],
    ids=["done", "failed", "stopped", "killed"],
)
def test_the_others_wait_for_the_first_and_end_with_it(tmp_path, end, codes, words):
    program = HANDED.format(end=end)
    first, second = Pair(tmp_path / "job", "-c", program, str(tmp_path / "file")).ended()
    assert (first.code, second.code) == codes, first.output + second.output
    assert words in second.output


def rows_of(folder: Path, stage: str) -> list[dict]:
    rows = [row for path in shards(folder) for row in read_jsonl(path)]
    return [row for row in rows if row["stage"] == stage]


RECIPE = """
name: small
model: tiny
output_dir: {folder}
sft: {{dataset: arithmetic-primer, prompt_style: plain, max_steps: 2, logging_steps: 1}}
rl:
  {{dataset: arithmetic, prompt_style: plain, max_steps: 2, save_steps: 1, lora_r: 0,
   per_device_train_batch_size: 4, num_generations: 4, gradient_accumulation_steps: 1,
   steps_per_generation: 2, num_iterations: 1, max_completion_length: 8}}
eval: {{tasks: arithmetic, prompt_style: plain, limit: 4, k: 2, max_tokens: 8, every: 1}}
"""


def test_two_ranks_run_a_recipe_with_its_evaluations(tmp_path):
    run, recipe = tmp_path / "run", tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=run))
    done = trustclip("run", str(recipe))
    assert done.code == 0, done.output[-3000:]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"] and summary["final"]["tasks"]["arithmetic"]["problems"] == 4
    answers = rows_of(run, "eval")
    assert [row["step"] for row in answers] == [step for step in (0, 1, 2) for _ in range(8)]
    assert done.output.count("gain, paired by problem:") == 2
    assert (run / "final" / "README.md").is_file()
    again = trustclip("run", str(recipe))
    assert again.code == 0 and again.output.count("is finished; nothing to do.\n") == 2
    more = trustclip("resume", str(run), "--max-steps", "3")
    assert more.code == 0, more.output[-3000:]
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["stage"] == "rl"] == [1, 2, 3]
    assert json.loads((run / "summary.json").read_text())["finished"]


def test_an_evaluation_on_two_ranks_is_that_of_one(tmp_path):
    command = ["eval", "--model", "tiny", "--tasks", "arithmetic", "--limit", "4", "--k", "2"]
    command += ["--prompt-style", "plain", "--max-tokens", "8"]
    for ranks in (1, 2):
        folder = str(tmp_path / str(ranks))
        done = launched(*command, "--output-dir", folder, ranks=ranks, program=PROGRAM.name)
        assert done.code == 0, done.output[-3000:]
    one, two = (rows_of(tmp_path / str(ranks), "eval") for ranks in (1, 2))
    assert len(one) == 8 and one == two


def test_a_folder_in_use_is_refused_on_all_ranks(tmp_path):
    with only_process(tmp_path / "run"):
        pair = Pair(
            tmp_path / "job", *("-m", "trustclip", "rl", "--preset", "tiny"),
            *("--output-dir", str(tmp_path / "run")),
        )  # fmt: skip
        ended = pair.ended()
    assert [rank.code for rank in ended] == [2, 2]
    for rank in ended:
        assert f"is in use by another process (pid {os.getpid()} on" in rank.output
        assert "Traceback" not in rank.output


def test_a_signal_during_the_fine_tuning_stops_all_ranks_and_the_command_continues(tmp_path):
    run, hold = tmp_path / "run", tmp_path / "hold"
    command = [str(PROGRAM), "rl", "--preset", "tiny", "--max-steps", "2", "--output-dir", str(run)]
    for attempt, signalled in enumerate(([0, 1], [1])):
        pair = Pair(tmp_path / f"job-{attempt}", *command, HOLD=str(hold))
        until(lambda pair=pair: hold.exists() or any(p.poll() is not None for p in pair.ranks))
        for rank in signalled:
            pair.ranks[rank].send_signal(signal.SIGTERM)
        hold.unlink()
        for rank in pair.ended():
            assert rank.code == 0, rank.output
            assert f"stopped; the same command continues {run}.\n" in rank.output
            assert "Traceback" not in rank.output
    done = trustclip(*command[1:])
    assert done.code == 0, done.output[-3000:]
    steps = [row["step"] for row in read_jsonl(run / "sft" / "metrics.jsonl")]
    assert steps == [8, 16, 24, 32, 40, 48, 56]
    assert json.loads((run / "summary.json").read_text())["finished"]
