"""Guards: a bad gradient costs its own update and nothing else; the rest is told once."""

import contextlib
import copy
import csv
import io
import json
import math
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from durable_runs import differences, grpo
from peft import LoraConfig
from transformers import TrainerCallback
from trl_runs import COMMON, PROMPTS, fresh_model, share_of_even_digits

from trustclip.cli.main import main
from trustclip.engines.trl import ConstrainedGRPOConfig
from trustclip.logs.answers import answer_rows
from trustclip.support.jsonl import read_jsonl
from trustclip.support.terminal import Terminal
from trustclip.train import rl
from trustclip.train.durable.store import CheckpointStore, NonFiniteError
from trustclip.train.pipeline import conclude_scores
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import RLStage
from trustclip.train.trainers import DurableGRPOTrainer
from trustclip.train.watch.guards import Guards, TooManySkips

HEALTHY = Path(__file__).parents[1] / "data" / "healthy_runs.csv"
COLUMNS = {
    "entropy": "trustclip/entropy",
    "gated": "trustclip/gated",
    "zero_std": "frac_reward_zero_std",
    "cut": "completions/clipped_ratio",
    "correct": "rewards/correct/mean",
}


def healthy_runs():
    """Logged rows of twenty real runs of the tiny model, under eleven methods."""
    with HEALTHY.open() as file:
        for name, lines in groupby(csv.DictReader(file), key=lambda line: line["run"]):
            yield (
                name,
                [
                    {COLUMNS.get(k, k): float(v) for k, v in line.items() if v and k != "run"}
                    for line in lines
                ],
            )


def guards_and_said():
    said = []
    return Guards(lambda step, name, text: said.append((step, name, text))), said


def feed(guards, rows, start=1):
    for step, row in enumerate(rows, start=start):
        guards.read(step, row)


# A gradient that is not finite


def tensors(optimizer):
    """Copies of every parameter and of everything the optimizer knows about it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [optimizer.state.get(p, {}) for p in parameters]
    return [p.detach().clone() for p in parameters] + [
        torch.as_tensor(value).clone() for state in states for _, value in sorted(state.items())
    ]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def train(tmp_path, broken=(), *, lora=False, killed_after=None, guards=None, **settings):
    """A tiny run whose loss is NaN in the (update, micro-batch) pairs of ``broken``.

    Returns the trainer, the tensors after each update, what the guards said, and the guards.
    """

    class Broken(DurableGRPOTrainer):
        def _compute_loss(self, model, inputs):
            micro = self._step % self.args.gradient_accumulation_steps
            bad = (self.state.global_step + 1, micro) in broken
            return super()._compute_loss(model, inputs) * (math.nan if bad else 1.0)

    after = {}

    class Watcher(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer: Any = None, **_):
            after[state.global_step] = tensors(optimizer.optimizer)
            if state.global_step == killed_after:
                raise KeyboardInterrupt

    torch.set_num_threads(1)
    model, tokenizer = fresh_model()
    torch.manual_seed(0)
    adapters = LoraConfig(r=4, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    made, said = guards_and_said()
    guards = made if guards is None else guards
    trainer = Broken(
        model=model,
        reward_funcs=share_of_even_digits,
        args=ConstrainedGRPOConfig(str(tmp_path), method="atr", **{**COMMON, **settings}),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        peft_config=adapters if lora else None,
        callbacks=[guards, Watcher()],
    )
    durable = settings.get("save_strategy") == "steps"
    with contextlib.suppress(KeyboardInterrupt):
        trainer.train_durably() if durable else trainer.train()
    return trainer, after, said, guards


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_skipped_update_changes_nothing(tmp_path, lora):
    _, after, said, guards = train(tmp_path, {(3, 0)}, lora=lora, max_steps=4)
    assert same(after[2], after[3])
    assert not same(after[1], after[2]) and not same(after[3], after[4])
    assert all(t.isfinite().all() for t in after[4])
    assert [(step, name) for step, name, _ in said] == [(3, "nonfinite_gradient")]
    assert guards.summary()["skipped_steps"] == 1


def test_one_bad_micro_batch_skips_the_whole_update_and_the_schedule_goes_on(tmp_path):
    settings: dict[str, Any] = dict(
        gradient_accumulation_steps=2, steps_per_generation=4, num_iterations=1, max_steps=4,
        lr_scheduler_type="linear", per_device_train_batch_size=8,
    )  # fmt: skip
    trainer, after, said, _ = train(tmp_path, {(2, 0)}, **settings)
    assert same(after[1], after[2]) and not same(after[2], after[3])
    assert len(said) == 1
    rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    assert rates == pytest.approx([3e-3, 2.25e-3, 1.5e-3, 0.75e-3])


@pytest.mark.parametrize("kind", [{}, {"fused": True}, {"foreach": True}, {"amsgrad": True}])
def test_later_updates_are_as_if_the_bad_one_never_was(kind):
    args = SimpleNamespace(fp16=False, device=torch.device("cpu"))

    def run(gradients):
        guards, _ = guards_and_said()
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(4, 3)) for _ in range(2)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1, **kind)
        for step, gradient in enumerate(gradients):
            for parameter, value in zip(parameters, gradient, strict=True):
                parameter.grad = value.clone()
            state = SimpleNamespace(global_step=step)
            guards.on_pre_optimizer_step(args, state, None, optimizer=optimizer)
            optimizer.step()
            optimizer.zero_grad()
        return tensors(optimizer), guards.summary()["skipped_steps"]

    torch.manual_seed(1)
    good = [[torch.randn(4, 3), torch.randn(4, 3)] for _ in range(3)]
    wanted, none = run(good)
    assert none == 0
    for value in (math.nan, math.inf, -math.inf):
        bad = copy.deepcopy(good[1])
        bad[1][2, 1] = value
        got, skipped = run([good[0], bad, good[1], good[2]])
        assert skipped == 1 and same(got, wanted)


def test_training_ends_when_more_than_a_tenth_of_the_updates_are_bad(tmp_path):
    with pytest.raises(TooManySkips, match=r"3 of the last 4 updates.*learning_rate"):
        train(tmp_path, {(1, 0), (2, 0), (4, 0)})


def skips(pattern):
    """The update at which a run with these bad updates (1) is ended, or None."""
    guards, _ = guards_and_said()
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    args = SimpleNamespace(fp16=False, device=torch.device("cpu"))
    for step, bad in enumerate(pattern):
        parameter.grad = torch.full((2,), math.nan if bad else 1.0)
        try:
            guards.on_pre_optimizer_step(
                args, SimpleNamespace(global_step=step), None, optimizer=optimizer
            )
        except TooManySkips:
            return step + 1
    return None


def test_the_share_of_bad_updates_that_is_borne():
    assert skips([1, 1] + [0] * 100) is None
    assert skips([1, 1, 1]) == 3  # already more than a tenth of twenty
    assert skips([0] * 45 + [1] * 5 + [0] * 100) is None
    assert skips([0] * 60 + [1] * 6) == 66
    assert skips([0] * 30 + [1] * 6) == 34  # four of thirty-four
    assert skips(([0] * 9 + [1]) * 20) is None  # exactly a tenth, for ever
    assert skips(([0] * 8 + [1]) * 20) == 27


def test_a_resumed_run_counts_on_and_says_nothing_twice(tmp_path):
    broken = {(2, 0), (5, 0)}
    settings: dict[str, Any] = dict(save_strategy="steps", save_steps=3)
    _, whole_after, _, whole = train(tmp_path / "whole", broken, **settings)
    _, _, said, _ = train(tmp_path / "cut", broken, killed_after=4, **settings)
    assert [step for step, *_ in said] == [2]
    _, after, said, guards = train(tmp_path / "cut", broken, **settings)
    assert said == [] and sorted(after) == [4, 5, 6]
    assert guards.summary() == whole.summary() and guards.summary()["skipped_steps"] == 2
    assert guards.state() == whole.state()
    assert same(after[6], whole_after[6])


# What is told


def test_no_false_alarm_on_twenty_healthy_runs():
    names = []
    for name, rows in healthy_runs():
        guards, said = guards_and_said()
        feed(guards, rows)
        assert said == [], name
        names.append(name)
    assert len(set(names)) == 20


def broken_rows(name, rows):
    """A healthy run that goes wrong at row 60; the row at which it must be told."""
    rows = copy.deepcopy(rows)
    first = sorted(row["trustclip/entropy"] for row in rows[:5])[2]
    generations = [i for i in range(60, len(rows)) if "frac_reward_zero_std" in rows[i]]
    for i in range(60, len(rows)):
        if name == "entropy_collapse":
            rows[i] |= {"trustclip/entropy": 0.04 * first, "rewards/correct/mean": 0.4}
        elif name == "gate_closed":
            rows[i]["trustclip/gated"] = 0.0 if i % 4 == 0 else 0.7
        elif name == "gradient_spike" and i == 70:
            rows[i]["grad_norm"] = 10.1 * max(row["grad_norm"] for row in rows[20:70])
        elif name == "loss_spike" and i == 70:
            rows[i]["loss"] = -10.1 * max(abs(row["loss"]) for row in rows[20:70])
        elif name == "truncated" and i in generations:
            rows[i]["completions/clipped_ratio"] = 0.97
        elif name == "constant_reward":
            rows[59]["frac_reward_zero_std"] = 0.5
            rows[i]["frac_reward_zero_std"] = 1.0
    closed = [i for i in range(60, len(rows)) if i % 4]
    at = {
        "entropy_collapse": 62,
        "gate_closed": closed[4],
        "gradient_spike": 70,
        "loss_spike": 70,
        "truncated": generations[2] if len(generations) > 2 else None,
        "constant_reward": 69,
    }[name]
    return rows, at


@pytest.mark.parametrize(
    "name",
    ["entropy_collapse", "gate_closed", "gradient_spike", "loss_spike", "truncated",
     "constant_reward"],
)  # fmt: skip
def test_each_failure_is_told_once_in_the_row_that_meets_its_condition(name):
    for run, healthy in healthy_runs():
        rows, at = broken_rows(name, healthy)
        if at is None:
            continue
        guards, said = guards_and_said()
        feed(guards, rows, start=0)
        assert [(step, told) for step, told, _ in said if told == name] == [(at, name)], run
        if name != "constant_reward":  # whose rows mean other things as well
            assert len(said) == 1, run
        text = said[0][2]
        assert any(character.isdigit() for character in text) and text.endswith(".")


def test_low_entropy_of_a_policy_that_solves_everything_is_no_collapse():
    rows = [{"trustclip/entropy": 0.4, "rewards/correct/mean": 0.3}] * 10
    rows += [{"trustclip/entropy": 0.004, "rewards/correct/mean": 0.97}] * 10
    guards, said = guards_and_said()
    feed(guards, rows)
    assert said == []
    feed(guards, [{"trustclip/entropy": 0.004, "rewards/correct/mean": 0.5}] * 3, start=21)
    assert [name for _, name, _ in said] == ["entropy_collapse"]


def test_streaks_survive_a_checkpoint():
    rows = [{"completions/clipped_ratio": 1.0}] * 2
    guards, said = guards_and_said()
    feed(guards, rows)
    other, later = guards_and_said()
    vars(other).update(json.loads(json.dumps(guards.state()))["attributes"])
    feed(other, rows, start=3)
    assert said == [] and [(step, name) for step, name, _ in later] == [(3, "truncated")]


def test_a_run_whose_constraint_is_inert_says_so_and_has_it_in_its_record(
    tmp_path, monkeypatch, capsys
):
    """By the command, from a model that knows nothing and learns from noise."""
    monkeypatch.setattr(rl, "starting_model", lambda *_: fresh_model())
    monkeypatch.setattr(rl, "save_model", lambda *_: None)
    arguments = ["--max-steps", "5", "--method.delta", "50", "--trl.inert_patience", "3"]
    arguments += ["--reward-noise", "0.5"]
    out = tmp_path / "run"
    assert main(["rl", "--preset", "tiny", "--output-dir", str(out), *arguments]) == 0
    (notice,) = [row for row in read_jsonl(out / "metrics.jsonl") if row["stage"] == "notice"]
    assert (notice["step"], notice["notice"]) == (3, "inert_constraint")
    assert "gate closed on no token" in notice["text"]
    assert f"warning at update 3: {notice['text']}" in capsys.readouterr().out
    (told,) = json.loads((out / "summary.json").read_text())["notices"]
    assert told["notice"] == "inert_constraint"


def poison(trainer, step, what):
    """Make one element NaN after an update: of the weights, or of the optimizer's moments."""

    class Poison(TrainerCallback):
        def on_optimizer_step(
            self, args, state, control, model: Any = None, optimizer: Any = None, **_
        ):
            if state.global_step + 1 == step:
                parameter = next(model.parameters())
                held = parameter if what == "weight" else optimizer.state[parameter]["exp_avg"]
                held.data.view(-1)[0] = math.nan

    # Before the checkpoint of the update is written.
    trainer.callback_handler.callbacks.insert(0, Poison())
    return trainer


@pytest.mark.parametrize(
    ("what", "save_steps"),
    [("moment", 1), *(pytest.param("weight", every, marks=pytest.mark.slow) for every in (1, 4))],
)
def test_weights_that_are_not_finite_end_training_and_replace_no_checkpoint(
    tmp_path, what, save_steps
):
    settings: dict[str, Any] = dict(
        save_steps=save_steps, save_total_limit=1, max_steps=8, num_iterations=2,
        steps_per_generation=1, learning_rate=1e-3,
    )  # fmt: skip
    torch.set_num_threads(1)
    trainer = poison(grpo(tmp_path / "run", **settings), 6, what)
    trainer.add_callback(guards_and_said()[0])
    with pytest.raises(NonFiniteError) as error:
        trainer.train_durably()
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    good = 5 if save_steps == 1 else 4
    assert store.newest() == store.path(good)
    words = f"is not saved; the newest checkpoint is {store.path(good)}, and the same command"
    assert words in str(error.value) and "continues from it" in str(error.value)
    if what == "moment" and save_steps == 1:  # found before it reaches a weight
        assert str(error.value).startswith("exp_avg of ")
    assert grpo(tmp_path / "run", **settings).train_durably()
    assert grpo(tmp_path / "whole", **settings).train_durably()
    assert differences(tmp_path / "whole", tmp_path / "run", after=7) == []


@pytest.mark.parametrize("last", [0.2, 0.75])
def test_a_run_that_ends_below_its_best_says_so(tmp_path, last):
    run = RunDirectory(tmp_path / "run", "rl", RLStage(dataset="arithmetic"))
    for step, share in ((0, 0.3), (8, 0.8), (16, last)):
        rows = answer_rows("t", {f"p{i}": [int(i < 60 * share)] for i in range(60)})
        run.sample({"stage": "eval", "step": step, **row} for row in rows)
        run.log({"stage": "eval", "step": step, "task": "t", "mean@1": share})
    out = io.StringIO()
    conclude_scores(run.path, Terminal(file=out, width=200))
    fell = "the best was 80.0 %" in out.getvalue() and "The score fell" in out.getvalue()
    assert fell == (last < 0.5)
