"""A training of Python has a run directory that the commands read like those of recipes."""

import json

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import COMMON, PROMPTS, build, share_of_even_digits

import trustclip as tc
from trustclip.cli.main import main
from trustclip.engines.trl import observe
from trustclip.logs.answers import answer_rows
from trustclip.logs.reader import read_run
from trustclip.logs.samples import shards
from trustclip.logs.writing.completions import problem_of
from trustclip.support.jsonl import read_jsonl
from trustclip.train.trainers import DurableGRPOTrainer

STOCK = (GRPOConfig, GRPOTrainer)


def longer(completions, **_):
    return [len(text) / 100 if len(text) % 2 else None for text in completions]


def trainer_of(folder, out, *, stock=False, callbacks=(), recorder=None, **settings):
    classes = STOCK if stock else (None, DurableGRPOTrainer)
    if not stock:
        settings = {"method": "atr", "decoder": "transformers", **settings}
    recorder = recorder or tc.Recorder(folder, tokens_every=2, tokens_completions=4)
    given = {
        "reward_funcs": [share_of_even_digits, longer],
        "train_dataset": Dataset.from_dict({"prompt": PROMPTS, "answer": ["4"] * len(PROMPTS)}),
        "callbacks": [recorder, *callbacks],
    }
    trainer = build(out, *classes, given=given, **settings)
    return (observe(trainer) if stock else trainer), recorder


def files(folder):
    """Every row of a run, by file, without what tells times."""
    names = ["metrics.jsonl", "gates.jsonl", *(path.name for path in shards(folder))]
    rows = {name: list(read_jsonl(folder / name)) for name in names}
    for row in rows["metrics.jsonl"]:
        row.pop("step_time", None)
    tokens = {p.name: p.read_bytes() for p in sorted((folder / "tokens").iterdir())}
    return rows, tokens


class Killed(Exception):
    pass


def killer(step):
    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == step:
                raise Killed

    return Kill()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two recorded runs, one of them by the stock trainer, each evaluated before and after."""
    base = tmp_path_factory.mktemp("recorded")
    for name, stock in (("ours", False), ("stock", True)):
        trainer, recorder = trainer_of(base / name, base / f"{name}-out", stock=stock)
        recorder.evaluation("digits", {f"p{i}": [i % 2, 0] for i in range(8)})
        trainer.train()
        recorder.evaluation("digits", {f"p{i}": [1, i % 2] for i in range(8)})
    return base


@pytest.mark.parametrize("name", ["ours", "stock"])
def test_the_run_directory_is_whole(recorded, name):
    run = read_run(recorded / name)
    assert run.finished and run.last_step == 6 and run.command == "rl"
    assert run.method == tc.method("atr" if name == "ours" else "clip_higher", **(
        {} if name == "ours" else {"low": 0.2, "high": 0.2})).to_dict()  # fmt: skip
    assert run.config["learning_rate"] == COMMON["learning_rate"]
    assert run.config["rewards"] == {"share_of_even_digits": 1.0, "longer": 1.0}
    assert all("trustclip/gated" in row for row in run.training) and "reward" in run.training[0]
    assert [e.step for e in run.evaluations] == [0, 6] and not run.remarks
    score = run.evaluations[1].score("digits", "mean@2")
    assert score is not None and score["value"] == 0.75
    rows, tokens = files(run.path)
    samples = [row for row in rows["samples.jsonl"] if row["stage"] == "rl"]
    assert len(samples) == 2 * 16 and {row["step"] for row in samples} == {0, 3}
    for row in samples:  # of which some lack the second
        given = [value for value in row["rewards"].values() if value is not None]
        assert row["reward"] == pytest.approx(sum(given), abs=1e-6)
        assert len(row["response"]) and row["gold"] == "4" and row["id"]
    assert 0 < sum(row["rewards"]["longer"] is None for row in samples) < len(samples)
    gates = rows["gates.jsonl"]
    assert [row["step"] for row in gates] == [1, 2, 3, 4, 5, 6]
    assert max(max(row["gated"]) for row in gates) > 0
    assert len(tokens) == 3
    problems = {row["id"]: row["problem"] for row in read_jsonl(run.path / "problems.jsonl")}
    assert {row["id"] for row in samples} == problems.keys() and set(problems.values()) <= {
        *PROMPTS
    }


@pytest.mark.parametrize("name", ["ours", "stock"])
def test_the_commands_read_it(recorded, name, capsys):
    run = str(recorded / name)
    assert main(["explain", run]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "updates" in said and "mean@2" in said.lower()
    assert main(["tokens", run, "--count", "1"]) == 0
    assert "cut by this run" in capsys.readouterr().out


@pytest.mark.parametrize("stock", [False, True])
def test_recording_changes_nothing(tmp_path, stock):
    trainer, _ = trainer_of(tmp_path / "run", tmp_path / "a", stock=stock, max_steps=4)
    trainer.train()
    other, recorder = trainer_of(tmp_path / "other", tmp_path / "b", stock=stock, max_steps=4)
    other.remove_callback(recorder)
    other.recorder = other.token_sampler = None
    if not stock:
        other.journal = None
    other.train()
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("stock", [False, True])
def test_a_continued_run_reads_like_one_that_was_not_interrupted(tmp_path, stock):
    settings = {"save_strategy": "steps", "save_steps": 3, "stock": stock}
    whole, _ = trainer_of(tmp_path / "whole", tmp_path / "w", **settings)
    whole.train()
    cut, _ = trainer_of(tmp_path / "cut", tmp_path / "c", callbacks=[killer(5)], **settings)
    with pytest.raises(Killed):
        cut.train() if stock else cut.train_durably()
    assert not read_run(tmp_path / "cut").finished
    more, _ = trainer_of(tmp_path / "cut", tmp_path / "c", **settings)
    if stock:
        more.train(resume_from_checkpoint=str(tmp_path / "c" / "checkpoint-3"))
    else:
        more.train_durably()
    run = read_run(tmp_path / "cut")
    assert run.finished and [row["step"] for row in run.training] == [*range(1, 7)]
    steps = [row["step"] for row in read_jsonl(run.path / "gates.jsonl")]
    assert steps == [*range(1, 7)], "nothing stands twice"
    if not stock:  # whose samples after a checkpoint are others
        assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_folder_is_used_once(tmp_path):
    trainer, recorder = trainer_of(tmp_path / "run", tmp_path / "a", max_steps=2)
    trainer.train_durably()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again, _ = trainer_of(tmp_path / "run", tmp_path / "b", max_steps=2)
    with pytest.raises(ValueError, match="already holds a run, which this training does not"):
        again.train()
    durable, _ = trainer_of(tmp_path / "run", tmp_path / "a", max_steps=2)
    with pytest.raises(ValueError, match="holds a finished run, and there is no checkpoint"):
        durable.train_durably()
    with pytest.raises(ValueError, match=r"learning_rate=0\.003, not 0\.01\. .* another folder"):
        trainer_of(tmp_path / "run", tmp_path / "d", max_steps=2, learning_rate=0.01)
    with pytest.raises(ValueError, match="has a trainer; make one for each"):
        trainer_of(tmp_path / "run", tmp_path / "e", max_steps=2, recorder=recorder)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_stock_trainer_must_be_observed(tmp_path):
    recorder = tc.Recorder(tmp_path / "run")
    trainer = build(tmp_path / "out", *STOCK, given={"callbacks": [recorder]})
    with pytest.raises(ValueError, match=r"call observe\(trainer\) on the stock trainer"):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_warnings_are_printed_and_recorded_once(tmp_path, capsys):
    settings = {"method": {"name": "atr", "delta": 50.0}, "inert_patience": 2, "max_steps": 5}
    saved = {"save_strategy": "steps", "save_steps": 3}
    trainer, _ = trainer_of(
        tmp_path / "run", tmp_path / "a", callbacks=[killer(4)], **settings, **saved
    )
    with pytest.raises(Killed):
        trainer.train_durably()
    assert "has been inert for 2 updates" in " ".join(capsys.readouterr().err.split())
    more, _ = trainer_of(tmp_path / "run", tmp_path / "a", **settings, **saved)
    more.train_durably()
    run = read_run(tmp_path / "run")
    said = [row["notice"] for row in run.notices]
    assert said.count("inert_constraint") == 1
    assert [n["notice"] for n in run.summary["notices"]] == said
    assert "recorded, with" in " ".join(capsys.readouterr().err.split())


# Answers of an evaluation, and texts


def test_answers_that_are_no_evaluation():
    with pytest.raises(ValueError, match="no answers to record for 'math'"):
        answer_rows("math", {})
    with pytest.raises(ValueError, match="'b' has 1, 'a' has 2"):
        answer_rows("math", {"a": [1, 0], "b": [1]})
    with pytest.raises(ValueError, match=r"`correct`, 0 or 1; got .*0\.5"):
        answer_rows("math", {"a": [0.5]})
    with pytest.raises(ValueError, match="an answer has `id`"):
        answer_rows("math", [{"correct": 1}])


def test_a_problem_has_the_same_name_in_every_process():
    chat = {"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "2+2"}]}
    assert problem_of(chat)["problem"] == "2+2"
    assert problem_of(chat) == problem_of(json.loads(json.dumps(chat)))
    assert problem_of({**chat, "solution": "4"})["id"] != problem_of(chat)["id"]
    assert problem_of({**chat, "id": 3})["id"] == "3"
