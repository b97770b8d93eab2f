"""What users of Transformers' `Trainer` are used to holds for `ConstrainedGRPOTrainer`, too."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from durable_runs import timeless
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import PROMPTS, build, needs

import trustclip as tc
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

OURS = (ConstrainedGRPOConfig, ConstrainedGRPOTrainer)
PLAIN = (GRPOConfig, GRPOTrainer)
SAVING = {"save_strategy": "steps", "save_steps": 3}
ADAPTIVE = {"controller": "target_gate", "share": 0.02, "initial": 0.002}


def trainer_in(folder: Path, classes: Any = OURS, **settings: Any) -> Any:
    """A trainer that has not begun, of six updates with three on each generation."""
    rows = Dataset.from_dict({"prompt": PROMPTS[:4]})
    given = {"eval_dataset": rows, "callbacks": settings.pop("callbacks", None)}
    return build(folder, *classes, given=given, **SAVING | settings)


def grad_norms(trainer: Any) -> list[float]:
    return [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]


def weights_of(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Any:
    """A run that nobody stopped, with checkpoints after updates 3 and 6."""
    trainer = trainer_in(tmp_path_factory.mktemp("whole"))
    trainer.train()
    return trainer


def test_checkpoints_have_their_usual_name_and_a_model_card(whole):
    folder = Path(whole.args.output_dir)
    assert sorted(p.name for p in folder.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6"]
    assert get_last_checkpoint(str(folder)) == str(folder / "checkpoint-6")
    assert "trustclip" in (folder / "README.md").read_text()


@pytest.mark.parametrize("how", ["True", "path"])
def test_a_run_continues_from_its_checkpoint(tmp_path, whole, how):
    trainer_in(tmp_path, max_steps=3, lr_scheduler_type="constant").train()
    trainer = trainer_in(tmp_path)
    trainer.train(resume_from_checkpoint=True if how == "True" else str(tmp_path / "checkpoint-3"))
    assert torch.equal(weights_of(trainer), weights_of(whole))
    assert grad_norms(trainer) == grad_norms(whole)


@pytest.mark.slow
def test_the_best_model_is_loaded_at_the_end(tmp_path):
    best = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "eval_reward"}
    settings = {"load_best_model_at_end": True, "greater_is_better": False, **best}
    trainer = trainer_in(tmp_path, **settings, save_total_limit=1)
    trainer.train()
    step = trainer.state.best_global_step
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{step}")
    saved = type(trainer.model).from_pretrained(tmp_path / f"checkpoint-{step}")
    assert torch.equal(weights_of(trainer), torch.cat([p.flatten() for p in saved.parameters()]))


def test_checkpoints_can_be_pushed(tmp_path, monkeypatch):
    pushed: list[str] = []
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda self, token=None: None)
    monkeypatch.setattr(
        Trainer, "_push_from_checkpoint", lambda self, folder: pushed.append(Path(folder).name)
    )
    trainer = trainer_in(tmp_path, push_to_hub=True, hub_strategy="every_save")
    monkeypatch.setattr(trainer, "push_to_hub", lambda **_: None)
    trainer.train()
    assert pushed == ["checkpoint-3", "checkpoint-6"]


@needs("trl>=1.15")
def test_a_method_of_a_file_can_be_in_a_checkpoint(tmp_path):
    """Transformers pickles the arguments, and Python imports no module of a file's name."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import trustclip as tc\n\n@tc.definition\nclass Mine(tc.Method):\n"
        '    """A clip."""\n\n    low: float = 0.1\n\n    def surrogate(self, batch):\n'
        '        return tc.method("clip", epsilon=self.low).surrogate(batch)\n'
    )
    method = {"name": "centered", "inner": {"name": f"{file}:Mine", "low": 0.3}}
    trainer_in(tmp_path / "out", method=method, max_steps=3).train()
    stored = tmp_path / "out" / "checkpoint-3" / "training_args.bin"
    assert torch.load(stored, weights_only=False).constraint().inner.low == 0.3


def test_a_recorded_run_continues_in_its_folder(tmp_path):
    def recorded() -> Any:
        recorder = tc.Recorder(tmp_path / "run", tokens_every=0)
        return trainer_in(tmp_path / "out", callbacks=[recorder])

    recorded().train()
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    recorded().train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    again = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [timeless(json.loads(row)) for row in again] == [timeless(json.loads(r)) for r in rows]


# -- a second training ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_training_is_that_of_trl(tmp_path):
    norms = []
    for classes, own in (
        (PLAIN, {"epsilon": 0.1}),
        (OURS, {"method": {"name": "clip", "epsilon": 0.1}, "decoder": "transformers"}),
    ):
        trainer = trainer_in(tmp_path / classes[1].__name__, classes, **own)
        trainer.train()
        trainer.train()
        norms.append(grad_norms(trainer))
    assert norms[1] == pytest.approx(norms[0], rel=1e-5) and len(norms[0]) == 6


def test_a_second_training_takes_nothing_for_fresh_that_is_not(tmp_path):
    """The first ends within a generation; its samples and its count of updates must not stay."""
    trainer = trainer_in(tmp_path, max_steps=4, method="clip", save_strategy="no")
    trainer.train()
    seen = []
    constrain = trainer._constrain

    def watch(inputs: Any, logps: Any, measured: Any) -> Any:
        seen.append((inputs["trustclip_lag"].min().item(), inputs["generated"].max().item()))
        return constrain(inputs, logps, measured)

    trainer._constrain = watch
    trainer.train()
    assert seen[0] == (0, 0) and max(lag for lag, _ in seen) <= 2


# -- what this engine carries ---------------------------------------------------------------------

CARRIED = {"method": {"name": "atr", "delta": ADAPTIVE}}


@pytest.mark.slow
def test_the_state_of_the_engine_is_in_the_checkpoint(tmp_path):
    settings: dict[str, Any] = CARRIED
    whole = trainer_in(tmp_path / "whole", max_steps=9, **settings)
    whole.train()
    trainer_in(tmp_path / "cut", max_steps=6, **settings).train()
    trainer = trainer_in(tmp_path / "cut", max_steps=9, **settings)
    trainer.train(resume_from_checkpoint=True)
    assert torch.equal(weights_of(trainer), weights_of(whole))
    assert trainer.method == whole.method
    rows = [t.state.log_history[-2] for t in (trainer, whole)]
    for name in ("trustclip/gated", "trustclip/k3"):
        assert rows[0][name] == rows[1][name], name


def test_what_a_checkpoint_lacks_is_said(tmp_path):
    trainer_in(tmp_path, PLAIN, max_steps=3).train()
    trainer = trainer_in(tmp_path, **CARRIED)
    with pytest.warns(UserWarning, match="checkpoint-3 lacks the thresholds of 'atr'"):
        trainer.train(resume_from_checkpoint=True)


def test_a_state_that_nobody_wrote_is_refused_by_its_key(tmp_path):
    trainer_in(tmp_path, max_steps=3).train()
    file = tmp_path / "checkpoint-3" / "trustclip.json"
    other = json.loads(file.read_text()) | {"last_closed": "never"}
    said = {json.dumps(other): "last_closed", "[]": "its content", "{": "cannot be read"}
    for text, words in said.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"trustclip\.json:? {words}"):
            trainer_in(tmp_path).train(resume_from_checkpoint=True)
