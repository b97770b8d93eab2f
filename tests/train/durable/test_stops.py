"""A run that is asked to stop, at any pass of its model, and continued is as one that was not."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from durable_runs import Rows, differences, grpo, sft, timeless
from test_resume import ATR, CLIP_COV, FULL_KL, disturb, schedule
from transformers import Qwen3Model, TrainerCallback

from trustclip.engines.trl.sampling.decoding import Decoder
from trustclip.support import stops
from trustclip.support.stops import Requests


class Passes:
    """Counts a trainer's passes, the decoder's too; the ``at``-th is asked to be the last one.

    Args:
      trainer: whose passes.
      monkeypatch: of pytest.
      at: number of the pass in which the signal comes, from 1.
      number: the signal.
    """

    def __init__(self, trainer, monkeypatch, at: int, number=signal.SIGTERM) -> None:
        self.trainer, self.at, self.number = trainer, at, number
        self.before = self.after = 0
        self.unfinished = ""
        forward, states = Qwen3Model.forward, Decoder._states

        def noted(model, *args, **keywords):
            self.note()
            return forward(model, *args, **keywords)

        monkeypatch.setattr(Qwen3Model, "forward", noted)

        def counted(decoder, *args):
            self.note()
            return states(decoder, *args)

        monkeypatch.setattr(Decoder, "_states", counted)

    def note(self) -> None:
        if self.unfinished:
            self.after += 1
            return
        self.before += 1
        if self.before == self.at:
            self.unfinished = self.trainer.unfinished
            os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True)
def deaf():
    """A second signal does nothing here, rather than end the tests."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (15, 2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


SPARSE = {"save_strategy": "steps", "save_steps": 1000}
RUNS = {
    "atr, decoder": (grpo, {**ATR, **schedule(1, 2, 1)}),
    "atr, generate, sparse logs": (
        grpo,
        {**ATR, **schedule(2, 2, 1), "decoder": "transformers", "logging_steps": 3},
    ),
    "full kl, lora, generate, 3 epochs": (
        grpo,
        {**FULL_KL, **schedule(2, 2, 1), "lora": True, "prompts": 4},
    ),
    "clip_cov, two micro-batches": (
        grpo,
        {**CLIP_COV, **schedule(4, 2, 2), "decoder": "transformers", "log_completions": True},
    ),
    "sft, dropout, three micro-batches": (
        sft,
        {"lora": True, "gradient_accumulation_steps": 3, "max_steps": 7, "logging_steps": 2},
    ),
}


def different(cut, whole) -> list[str]:
    """What differs in the checkpoints of ``cut``, but for how often the two runs save."""
    found = []
    for name in differences(cut, whole, after=0):
        if name.endswith("trainer_state.json"):
            files = [run / "checkpoints" / name for run in (cut, whole)]
            states = [timeless(json.loads(file.read_text())) for file in files]
            assert {state.pop("save_steps") for state in states} == {1, 1000}
            found += [name] * (states[0] != states[1])
        elif not name.endswith(".jsonl"):
            found.append(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_stopped_at_any_pass_and_continued_it_leaves_the_same_bytes(
    tmp_path, monkeypatch, capfd, name
):
    make, settings = RUNS[name]
    uncut = make(tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        passes = Passes(uncut, patch, 0)
        assert uncut.train_durably()
    places = set()
    for at in range(1, passes.before, max(passes.before // 9, 1)):
        whole, cut = tmp_path / "whole", tmp_path / f"cut-{at}"
        with monkeypatch.context() as patch:
            trainer = make(cut, **{**settings, **SPARSE})
            passes = Passes(trainer, patch, at, number=(signal.SIGTERM, signal.SIGINT)[at % 2])
            assert trainer.train_durably() is False and trainer.stopped_early
        assert passes.after == 0, f"{passes.after} passes after the signal"
        states = {"generation": "before this generation", "update": "of the last whole update"}
        said = f"\nstopping: saving the state {states[passes.unfinished]}; a second"
        assert said in capfd.readouterr().err
        kept = [int(file.name[5:]) for file in (cut / "checkpoints").glob("step-*")]
        assert kept == [trainer.state.global_step] * (trainer.state.global_step > 0)
        assert different(cut, whole) == []
        places.add(passes.unfinished)
        if at % 2:  # or in the process that was stopped
            trainer = make(cut, **{**settings, **SPARSE})
        disturb()
        assert trainer.train_durably()
        assert (cut / "checkpoints" / f"step-{uncut.state.global_step:06d}").is_dir()
        assert different(cut, whole) == []
        assert Rows(cut / "rows").read() == Rows(whole / "rows").read()
    assert places == ({"generation", "update"} if make is grpo else {"update"})


class Noted(TrainerCallback):
    """Writes a line into the history as every update begins."""

    def on_step_begin(self, args, state, control, **_):
        state.log_history.append({"step": state.global_step, "begun": True})


def test_what_was_noted_since_the_last_update_is_taken_back(tmp_path, monkeypatch):
    settings = {"method": "clip", **schedule(1, 2, 1), "max_steps": 3, **SPARSE}
    trainer = grpo(tmp_path, **settings)
    trainer.add_callback(Noted())
    with monkeypatch.context() as patch:
        passes = Passes(trainer, patch, 0)
        original = trainer.training_step

        def stopping(*args):
            if trainer.state.global_step == 2:  # as it samples its next generation
                passes.at = passes.before + 1
            return original(*args)

        patch.setattr(trainer, "training_step", stopping)
        assert trainer.train_durably() is False
    assert trainer.state.global_step == 2  # the note of the third update is not of its state
    assert [row["step"] for row in trainer.state.log_history if "begun" in row] == [0, 1]


class Asked(TrainerCallback):
    """Asks the run to stop behind the step of the optimizer in its second update."""

    def on_optimizer_step(self, args, state, control, **_):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_request_after_the_optimizers_step_saves_that_update(tmp_path):
    trainer = grpo(tmp_path, **{"method": "clip", **schedule(1, 2, 1), "max_steps": 3, **SPARSE})
    trainer.add_callback(Asked())
    assert trainer.train_durably() is False
    assert [file.name for file in (tmp_path / "checkpoints").glob("step-*")] == ["step-000002"]


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_a_request_is_heard_whatever_the_shell_has_set(ignored, capsys):
    signal.signal(ignored, signal.SIG_IGN)
    heard = []
    with stops.on_request(lambda: heard.append(ignored)):
        signal.raise_signal(ignored)
    assert heard == [ignored]
    assert signal.getsignal(ignored) == signal.SIG_IGN


def test_a_second_request_does_what_it_did_before(monkeypatch):
    now, did = 100.0, []
    monkeypatch.setattr(stops.time, "monotonic", lambda: now)
    signal.signal(signal.SIGTERM, lambda *_: did.append("before"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stops.on_request(lambda: did.append("stop")):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        now = 102.0
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert did == ["stop", "before"]


def test_a_signal_that_repeats_one_is_none_when_the_training_has_ended_meanwhile():
    requests, did = Requests(lambda *_: did.append("now")), []
    requests.once.append(lambda *_: did.append("leave"))
    before = stops.listen(requests)
    try:
        with stops.on_request(lambda: did.append("stop")):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    finally:
        stops.unlisten(before)
    assert did == ["stop", "leave"]


def test_the_line_comes_even_where_the_signal_has_interrupted_a_write(capfd, monkeypatch):
    class Busy:
        def write(self, text):
            raise RuntimeError("reentrant call")

    monkeypatch.setattr("sys.stderr", Busy())
    stops.say_at_once("stopping")
    assert capfd.readouterr().err == "\nstopping\n"


WAITING = """
import signal, sys, time
from trustclip.cli import main
from trustclip.cli.commands import experiments

def work(argv):
    try:
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
    finally:
        if "stubborn" in sys.argv:
            print("ending", flush=True)
            while True:
                time.sleep(0.01)

experiments.evaluate = work
main.command()
"""


@pytest.mark.parametrize("wish", ["TERM", "INT"])
def test_timeout_in_a_background_job_ends_a_command_once(wish):
    """GNU timeout signals the command, and then its group; such a job is born deaf to SIGINT."""
    inner = f'{shlex.quote(sys.executable)} -c "$CODE" eval'
    shell = f'trap "" INT; exec timeout -s {wish} "$LIMIT" {inner}'
    around = {**os.environ, "CODE": WAITING, "LIMIT": "1000"}
    around.pop("RANK", None)
    process = subprocess.Popen(
        ["sh", "-c", shell], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=around,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)  # timeout passes it on as its own end would: to all
    said = process.communicate()[1]
    assert said == "\nstopped; the same command continues.\n"
    assert process.returncode in (0, 124, 128 + signal.SIGTERM, -signal.SIGTERM)  # by its release


def test_a_second_later_signal_ends_a_command_that_hangs_while_it_ends():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, "eval", "stubborn"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env={k: v for k, v in os.environ.items() if k != "RANK"},
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "ending\n"
    time.sleep(stops.TOGETHER)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    assert said == "\nstopped; the same command continues.\n"
    assert process.returncode == 128 + signal.SIGTERM
