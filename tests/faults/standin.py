"""A run of some milliseconds, through the classes of a real one.

Everything that touches a disk is the product's own: the lock, the run directory, the protocol of
`Durable` and its checkpoints, the final model. Only the training is a stand-in: linear regression
on random numbers instead of a language model, in a loop of a few lines.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import Trainer, TrainerState

from trustclip import Method, method
from trustclip.durable.lock import only_process
from trustclip.durable.trainer import Durable
from trustclip.recipes.models import save_model
from trustclip.runs import directory
from trustclip.runs.directory import RunDirectory
from trustclip.tasks.problem import Problem

STEPS, SAVE_EVERY = 5, 2


@dataclass
class Settings:
    """Of the stand-in run."""

    output_dir: Path
    method: Method = field(default_factory=lambda: method("atr"))
    max_steps: int = STEPS


class Config:
    """The config of a model, and a tokenizer: what they write."""

    def __init__(self, name: str) -> None:
        self._name = name

    def save_pretrained(self, folder: Any) -> None:
        Path(folder, self._name).write_text(json.dumps({"name": self._name, "layers": [1, 2, 3]}))


class Model(nn.Linear):
    """A linear layer that saves itself as a language model does."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.config, self.generation_config = Config("config.json"), None

    def save_pretrained(self, folder: Any) -> None:
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        save_file(dict(self.state_dict()), Path(folder) / "model.safetensors")


class Loop(Trainer):
    """In the place of Transformers' training loop."""

    def train(self, resume_from_checkpoint: Any = None, *_: Any, **__: Any) -> None:  # type: ignore[override]
        self.state = TrainerState(max_steps=self.args.max_steps)
        if resume_from_checkpoint is not None:
            self._load_from_checkpoint(resume_from_checkpoint)
            path = Path(resume_from_checkpoint) / "trainer_state.json"
            self.state = TrainerState.load_from_json(str(path))
            self._load_optimizer_and_scheduler(resume_from_checkpoint)  # type: ignore[arg-type]
            self._load_rng_state(resume_from_checkpoint)
        while self.state.global_step < self.args.max_steps:
            self.update()  # type: ignore[attr-defined]
            stop = self.asked_to_stop()  # type: ignore[attr-defined]
            last = self.state.global_step == self.args.max_steps
            if stop or last or self.state.global_step % SAVE_EVERY == 0:
                self._save_checkpoint(self.model, None)  # type: ignore[arg-type]
            if stop:
                self.stopped_early = True
                return

    def store_flos(self) -> None:
        pass


class StandIn(Durable, Loop):
    """The stand-in's trainer.

    Args:
      run: its directory.
    """

    is_fsdp_enabled = is_deepspeed_enabled = False

    def __init__(self, run: RunDirectory) -> None:
        torch.manual_seed(0)
        self.args = SimpleNamespace(  # type: ignore[assignment]
            output_dir=str(run.checkpoints), save_total_limit=2, save_strategy="steps", seed=0,
            max_steps=STEPS, ddp_timeout=10, process_index=0, train_sampling_strategy="random",
            per_device_train_batch_size=4, gradient_accumulation_steps=1,
            accelerator_config=SimpleNamespace(use_seedable_sampler=True),
        )  # fmt: skip
        self.model, self.train_dataset = Model(), range(64)  # type: ignore[assignment]
        self.accelerator = SimpleNamespace(
            is_main_process=True, num_processes=1, process_index=0, scaler=None,
            device=torch.device("cpu"), unwrap_model=lambda model: model,
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.processing_class = Config("tokenizer.json")  # type: ignore[assignment]
        self._metrics = {"train": defaultdict(list)}
        self._total_train_tokens, self.journal, self._run = 0, run, run
        self._tr_loss, self._globalstep_last_logged = torch.tensor(0.0), 0
        empty = SimpleNamespace(callbacks=[], train_dataloader=None)
        with mock.patch.multiple(
            Trainer, __init__=lambda *_, **__: None, add_callback=lambda *_: None
        ):
            super().__init__()
        self.callback_handler = empty  # type: ignore[assignment]

    def update(self) -> None:
        """One update: a step of the optimizer, and the rows of a real one."""
        step, x = self.state.global_step, torch.rand(4, 6)
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.lr_scheduler.step()
        if step % 2 == 0:  # a new generation of completions
            texts = [f"{value:.6f} " * 9 for value in torch.rand(4).tolist()]
            self._run.sample(
                {"stage": "rl", "step": step, "index": i, "response": text}
                for i, text in enumerate(texts)
            )
            logp = (-torch.rand(5)).tolist()
            self._run.tokens(step, [{"logp": logp, "advantage": 0.5, "step": step}])
        self._run.gates({"step": step, "gated": torch.rand(4).tolist()})
        self._total_train_tokens += 20
        self.state.global_step = step + 1
        self._run.log({"stage": "rl", "step": step + 1, "loss": loss.item()})


def work(folder: Path) -> bool:
    """What ``trustclip rl`` does in a folder.

    Returns:
      Whether the run is finished; otherwise it was asked to stop, and has saved.
    """
    slow = mock.patch.multiple(directory, environment=dict, versions=dict)
    with only_process(folder), slow:
        run = RunDirectory.resumed(folder, "rl", Settings(folder))
        if run.summary.get("finished"):
            return True
        run.problems(Problem(str(i), "What is 1 + 1?", "2") for i in range(3))
        run.start_over()
        trainer = StandIn(run)
        if not trainer.train_durably():
            return False
        save_model(trainer.model, trainer.processing_class, run.final)
        run.summarize({"command": "rl", "finished": True})
        return True
