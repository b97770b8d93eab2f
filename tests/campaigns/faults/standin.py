"""A run of some milliseconds, through the classes of a real one.

Everything that touches a disk is the product's own: the lock, the run directory, the protocol of
`Durable` and its checkpoints, what listens to the first update, the final model. Only the training
is a stand-in: linear regression on random numbers instead of a language model, in a loop of a few
lines, on as many ranks as the setup has.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import Trainer, TrainerControl, TrainerState

from trustclip import Method, method
from trustclip.constraints.sampler import Pairs
from trustclip.findings.live.first import FirstCompletions
from trustclip.support import lock
from trustclip.support.marks import Extends, Neutral
from trustclip.train.durable.ranks import by_first
from trustclip.train.durable.trainer import Durable
from trustclip.train.models import save_model
from trustclip.train.problems.problem import Problem
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.opening import open_run

from .setups import Setup

#: Updates: of a run, and of one pass over its data.
STEPS, EPOCH = 5, 2
BATCH = 4


@dataclass
class Settings:
    """Of the stand-in run."""

    output_dir: Annotated[Path, Neutral("where it is")]
    method: Method = field(default_factory=lambda: method("atr"))
    max_steps: Annotated[int, Extends()] = STEPS


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


class Order:
    """Draws the order of every pass over the data, as TRL's sampler does."""

    def __init__(self, seed: int) -> None:
        self.initial_seed = seed
        self._dice = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(EPOCH * BATCH, generator=self._dice).view(EPOCH, BATCH).tolist())


class Loop(Trainer):
    """In the place of Transformers' training loop: the same doors, in the same order."""

    def __init__(self) -> None:
        pass

    def add_callback(self, callback: Any) -> None:
        self.callback_handler.callbacks.append(callback)

    def _call(self, event: str) -> TrainerControl:
        control = TrainerControl()
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(self.args, self.state, control, model=self.model)
        return control

    def train(self, resume_from_checkpoint: Any = None, *_: Any, **__: Any) -> None:  # type: ignore[override]
        self.state = TrainerState(max_steps=self.args.max_steps)
        if resume_from_checkpoint is not None:
            self._load_from_checkpoint(resume_from_checkpoint)
            path = Path(resume_from_checkpoint) / "trainer_state.json"
            self.state = TrainerState.load_from_json(str(path))
            self._load_optimizer_and_scheduler(resume_from_checkpoint)  # type: ignore[arg-type]
        self._call("on_train_begin")
        while self.state.global_step < self.args.max_steps:
            self.state.epoch, done = divmod(self.state.global_step, EPOCH)
            self._call("on_epoch_begin")
            batches = islice(self._sampler(), done, None)  # type: ignore[attr-defined]
            if resume_from_checkpoint is not None:
                self._load_rng_state(resume_from_checkpoint)
            if self._updates(batches):
                return

    def _updates(self, batches: Iterator[list[int]]) -> bool:
        """Train on batches of one pass; true if asked to stop."""
        for batch in batches:
            self.training_step(self.model, batch)  # type: ignore[arg-type]
            self.optimizer.step()  # type: ignore[union-attr]
            self.lr_scheduler.step()  # type: ignore[union-attr]
            self.state.global_step += 1
            step, every = self.state.global_step, self.args.save_steps
            control = self._call("on_step_end")
            last = step == self.args.max_steps
            control.should_save |= bool(every and (last or step % every == 0))
            self._maybe_log_save_evaluate(control)
            if control.should_training_stop or last:
                return control.should_training_stop
        return False

    def training_step(self, model: Any, batch: Any, *_: Any) -> Tensor:  # type: ignore[override]
        return self.gradients(model, batch)  # type: ignore[attr-defined]

    def _maybe_log_save_evaluate(self, control: TrainerControl) -> None:  # type: ignore[override]
        self.record()  # type: ignore[attr-defined]
        if control.should_save:
            self._save_checkpoint(self.model, None)  # type: ignore[arg-type]

    def store_flos(self) -> None:
        pass


class StandIn(Durable, Loop):
    """The stand-in's trainer.

    Args:
      run: its directory.
      setup: of the run.
      seed: of the data's order; another one is another training.
    """

    is_fsdp_enabled = is_deepspeed_enabled = False

    def __init__(self, run: RunDirectory, setup: Setup, seed: int) -> None:
        rank = lock.rank()
        torch.manual_seed(0)
        self.model = Model()  # type: ignore[assignment]
        for module in (random.seed, np.random.seed, torch.manual_seed):
            module(rank)
        self.args = SimpleNamespace(  # type: ignore[assignment]
            output_dir=str(run.checkpoints), save_total_limit=setup.keep, save_steps=setup.every,
            save_strategy="steps" if setup.every else "no", seed=seed, max_steps=STEPS,
            ddp_timeout=10, process_index=rank, train_sampling_strategy="random",
            per_device_train_batch_size=BATCH, gradient_accumulation_steps=1,
            accelerator_config=SimpleNamespace(use_seedable_sampler=True),
            save_async=setup.background,
        )  # fmt: skip
        self.train_dataset = range(EPOCH * BATCH)  # type: ignore[assignment]
        self.accelerator = SimpleNamespace(
            is_main_process=rank == 0, num_processes=setup.ranks, process_index=rank, scaler=None,
            device=torch.device("cpu"), unwrap_model=lambda model: model,
            reduce=lambda flag, reduction: self._summed(flag),
            wait_for_everyone=lambda: self._ranks.everyone(lambda: None),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.processing_class = Config("tokenizer.json")  # type: ignore[assignment]
        self._metrics = {"train": defaultdict(list)}
        self._total_train_tokens, self.journal, self._run = 0, run, run
        self.current_flos = 0.0
        self._tr_loss, self._globalstep_last_logged = torch.tensor(0.0), 0
        self.mismatch = SimpleNamespace(listener=None)
        batches = SimpleNamespace(sampler=Order(seed))
        self.callback_handler = SimpleNamespace(  # type: ignore[assignment]
            callbacks=[], train_dataloader=SimpleNamespace(batch_sampler=batches)
        )
        super().__init__()

    def _summed(self, value: Tensor) -> Tensor:
        return torch.stack(self._ranks.everyone(lambda: value)).sum(0)

    def gradients(self, model: nn.Module, batch: list[int]) -> Tensor:
        """Those of one update, and the rows of its completions."""
        step, x = self.state.global_step, torch.rand(BATCH, 6)
        x = x + torch.tensor(batch).unsqueeze(1) + np.random.rand() + random.random()
        if self.mismatch.listener is not None:
            listener, self.mismatch.listener = self.mismatch.listener, None
            logp = -torch.linspace(0.1, 3, 60)
            listener(Pairs(logp, logp + 0.3))
        if step % 2 == 0:  # a new generation of completions, in two batches
            texts = [f"{value:.6f} " * 9 for value in torch.rand(4).tolist()]
            rows = [
                {"stage": "rl", "step": step, "index": i, "response": text}
                for i, text in enumerate(texts)
            ]
            self._run.sample(rows[:2])
            self._run.sample(rows[2:])
            logp = (-torch.rand(5)).tolist()
            self._run.tokens(step, [{"logp": logp, "advantage": 0.5, "step": step}])
        loss = model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = self._summed(parameter.grad)
        self._total_train_tokens += 20
        self._metrics["train"]["loss"].append(loss.item())
        return loss.detach()

    def record(self) -> None:
        """The rows of an update."""
        step, gated = self.state.global_step, torch.rand(4).tolist()
        if self._run.leads:
            self._run.gates({"step": step - 1, "gated": gated})
        self._run.log({"stage": "rl", "step": step, "loss": self._metrics["train"]["loss"][-1]})


def work(folder: Path, setup: Setup, seed: int = 0) -> bool:
    """What ``trustclip rl`` does in a folder, on every rank.

    Returns:
      Whether the run is finished; otherwise it was asked to stop, and has saved.
    """
    console = Console(file=StringIO())
    with open_run("rl", Settings(folder), console) as (run, finished):
        if finished:
            return True
        run.problems(Problem(str(i), "What is 1 + 1?", "2") for i in range(3))
        run.start_over()
        trainer = StandIn(run, setup, seed)
        trainer.add_callback(FirstCompletions(run, console, trainer))
        if not trainer.train_durably():
            return False
        save_model(trainer.model, trainer.processing_class, run.final)
        by_first(lambda: run.summarize({"command": "rl", "finished": True}))
        return True
