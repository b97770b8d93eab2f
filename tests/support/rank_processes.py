"""What tests of several ranks run under a launcher; the first rank tells the rest, as JSON.

``rank_processes.py train FOLDER [NAMES]``: the runs of `RUNS`, or those named.
``rank_processes.py zero FOLDER STAGE``: the same under DeepSpeed.
``rank_processes.py fsdp2 FOLDER``: trustclip's head and the exact KL in models that FSDP2 shards.
``rank_processes.py record FOLDER``: a training of Python, recorded.
``rank_processes.py fault FOLDER KIND [SECONDS]``: KIND is raise, kill, hang or none; ranks wait for
each other for so many seconds.
Importing takes longer than a run, so one launch does many.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rank_program
import torch
import trl_runs
from durable_runs import grpo, timeless
from patience import NEVER

import trustclip as tc
from trustclip.engines.trl.phases import Generating
from trustclip.engines.trl.scoring import hidden
from trustclip.support.sharded import whole
from trustclip.train.trainers import DurableGRPOConfig, DurableGRPOTrainer

#: Completions of an update, over all ranks.
GLOBAL_BATCH = 16


class SameSamples(DurableGRPOTrainer):
    """Every completion has random numbers of its own: the same, however many ranks share them."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        first = self.accelerator.process_index * len(prompt_ids)
        completions, logps = [], []
        for row, prompt in enumerate(prompt_ids, start=first):
            torch.manual_seed(1000 * self.state.global_step + row)
            sampled, of_sampled = super()._generate_single_turn([prompt], *args, **kwargs)
            completions += sampled
            logps += of_sampled or []
        if logps:
            assert isinstance(self._phase, Generating)
            self._phase.sampled[:] = [logps]  # as if one call had sampled them all
        return completions, logps or None


def varied(completions, **_) -> list[float]:
    """So dense that no group of completions has one reward, and no rank nothing to do."""
    return [sum(ord(c) * (i + 1) % 7 for i, c in enumerate(text)) / 30 for text in completions]


def half_constant(prompts, completions, **_) -> list[float]:
    """All completions of every other prompt get the same reward."""
    dense = varied(completions)
    half = set(trl_runs.PROMPTS[::2])
    return [0.5 if p in half else r for p, r in zip(prompts, dense, strict=True)]


def only_of_first_rank(prompts, completions, **_) -> list[float]:
    """Completions in the second half of the global batch all get the same reward."""
    dense, world = varied(completions), int(os.environ["WORLD_SIZE"])
    first = int(os.environ["RANK"]) * len(dense)
    assert len(dense) * world == GLOBAL_BATCH
    return [r if first + i < GLOBAL_BATCH // 2 else 0.5 for i, r in enumerate(dense)]


ATR: dict[str, Any] = {"method": {"name": "atr", "delta": 0.01}}

HELD = {"controller": "target_gate", "share": 0.02, "initial": 0.01}

#: Settings of each run, and the reward where it is not dense.
RUNS: dict[str, tuple[dict[str, Any], Callable[..., list[float]]]] = {
    "atr": (ATR, varied),
    "clip_cov": ({"method": "clip_cov"}, varied),
    "full_kl": (
        {"method": {"name": "full_kl", "delta": 0.01}},
        varied,
    ),
    "token-mean": ({**ATR, "loss_type": "dapo"}, varied),
    "adapting": ({"method": {"name": "atr", "delta": HELD}}, varied),
    "watched": ({**ATR, "exact_kl_every": 2}, varied),
    "skipping": (ATR, half_constant),
    "nothing skipped": ({**ATR, "skip_zero_advantage": False}, half_constant),
    "idle rank": (ATR, only_of_first_rank),
    "idle rank, nothing skipped": ({**ATR, "skip_zero_advantage": False}, only_of_first_rank),
}


def trainer_of(
    folder: Path, reward: Any, kind: type = SameSamples, callbacks: Any = None, **settings: Any
) -> DurableGRPOTrainer:
    from datasets import Dataset
    from transformers import PrinterCallback

    model, tokenizer = trl_runs.fresh_model()
    local = GLOBAL_BATCH // int(os.environ["WORLD_SIZE"])
    common = {**trl_runs.COMMON, "per_device_train_batch_size": local}
    trainer = kind(
        model=model,
        reward_funcs=reward,
        args=DurableGRPOConfig(output_dir=str(folder), **{**common, "metrics": "full", **settings}),
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS}),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def told_of(trainer: DurableGRPOTrainer) -> dict[str, Any]:
    """What ran, what it logged, and how far the ranks' parameters are apart."""
    from accelerate.utils import gather_object

    parameters = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    return {
        "world": trainer.accelerator.num_processes,
        "type": str(trainer.accelerator.distributed_type.value),
        "wrapper": type(trainer.model_wrapped).__name__,
        "rows": timeless(rows),
        "parameters": gather_object([parameters.double().sum().item()]),
        "norm": parameters.double().norm().item(),
    }


def train(folder: Path, names: list[str]) -> dict[str, Any]:
    told = {}
    for name in names or RUNS:
        settings, reward = RUNS[name]
        trainer = trainer_of(folder / name, reward, **settings)
        trainer.train()
        told[name] = told_of(trainer)
    if not names:
        told["guards"] = guarded(folder / "guards")
    return told


def record(folder: Path) -> dict[str, Any]:
    recorder = tc.Recorder(folder / "run", tokens_every=1, tokens_completions=16)
    trainer = trainer_of(folder / "out", varied, callbacks=[recorder], **ATR)
    recorder.evaluation("t", {"a": [0, 1], "b": [0, 0]})
    trainer.train()
    recorder.evaluation("t", {"a": [1, 1], "b": [0, 1]})
    return told_of(trainer)


def guarded(folder: Path) -> dict[str, Any]:
    """A run whose loss is NaN in the third update on the last rank alone."""
    from accelerate.utils import gather_object
    from transformers import TrainerCallback

    from trustclip.train.watch.guards import Guards

    class Broken(SameSamples):
        def _compute_loss(self, model, inputs):
            last = self.accelerator.process_index == self.accelerator.num_processes - 1
            bad = self.state.global_step == 2 and last
            return super()._compute_loss(model, inputs) * (math.nan if bad else 1.0)

    after: list[float] = []

    class Watcher(TrainerCallback):
        def on_step_end(self, args, state, control, model: Any = None, **_):
            after.append(sum(p.detach().double().sum().item() for p in model.parameters()))

    said: list[str] = []
    guards = Guards(lambda step, name, text: said.append(f"{step} {name}"))
    trainer = trainer_of(folder, varied, Broken, **ATR)
    trainer.add_callback(guards)
    trainer.add_callback(Watcher())
    trainer.train()
    return {
        **told_of(trainer),
        "skipped": gather_object([guards.summary()["skipped_steps"]]),
        "said": gather_object([said]),
        "after": gather_object([after]),
    }


def zero(folder: Path, stage: int) -> dict[str, Any]:
    """The methods under DeepSpeed, or without it at stage 0."""
    config = {
        "zero_optimization": {"stage": stage},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    told: dict[str, Any] = {}
    for name in ("atr", "clip_cov", "full_kl"):
        settings, reward = RUNS[name]
        settings = {**settings, "decoder": "transformers", "deepspeed": config if stage else None}
        trainer = trainer_of(folder / name, reward, **settings)
        trainer.train()
        rows = [row for row in trainer.state.log_history if "grad_norm" in row]
        told[name] = {
            "rows": timeless(rows),
            "wrapper": type(trainer.model_wrapped).__name__,
            "own_head": trainer._request is not None,
        }
    return told


def fsdp2(folder: Path) -> dict[str, Any]:
    """Gradients and divergences of a sharded model, each rank with completions of its own.

    accelerate makes DDP of FSDP2 on a CPU, so the model is sharded here as accelerate shards it.
    """
    from torch.distributed import init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from trustclip.constraints.registry import method
    from trustclip.engines.trl.scoring.exact_kl import KLWatch
    from trustclip.engines.trl.scoring.forward import use_head

    init_process_group("gloo")
    mesh, rank = init_device_mesh("cpu", (2,)), int(os.environ["RANK"])
    ids = torch.randint(3, 200, (4, 9), generator=torch.Generator().manual_seed(0))

    def results(sharded: bool, frozen: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        model, _ = trl_runs.fresh_model()
        if frozen:
            model.get_output_embeddings().weight.requires_grad_(False)
        request = use_head(model, 0.8)
        if sharded:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh, reshard_after_forward=True)
        watch = KLWatch(model, method("full_kl"), 0.8, request)
        own = ids[2 * rank : 2 * rank + 2] if sharded else ids
        evidence = []
        for policy in ("old", "new"):
            with watch.watching(model, policy) as seen:
                scores = model(input_ids=own, labels=own, fused_lm_head=True)
            evidence.append(seen.of_completions(8).at(torch.ones(len(own), 8, dtype=torch.bool)))
            if policy == "old":
                watch.old_head = hidden.trained_head(model)
                with torch.no_grad():
                    model.model.norm.weight.mul_(1.2)
        kl = watch._exact(model, evidence[1], evidence[0], "old_new")
        (scores.log_probs.cos().sum() / len(own)).backward()
        trained = ((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
        return {name: whole(gradient) for name, gradient in trained}, kl

    told = {}
    for frozen in (False, True):
        (got, kl), (want, all_rows) = results(True, frozen), results(False, frozen)
        assert got.keys() == want.keys() and any("embed" in name for name in got) != frozen
        largest = max(x.abs().max().item() for x in want.values())
        told[f"frozen={frozen}"] = {
            "gradient": max((got[n] - x).abs().max().item() for n, x in want.items()) / largest,
            "kl": (kl - all_rows.view(2, -1)[rank]).abs().max().item(),
            "largest kl": all_rows.max().item(),
        }
    return told


def rest_for_ever() -> None:
    while True:
        time.sleep(3600)


def fault(folder: Path, kind: str, seconds: str = f"{NEVER:.0f}") -> None:
    """A durable run whose second rank raises, is killed or hangs in its fourth generation."""
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 8, "max_steps": 12, "num_iterations": 2
    }  # fmt: skip
    settings["ddp_timeout"] = int(seconds)
    trainer = grpo(folder, **ATR, **settings)
    reward, rank = trainer.reward_funcs[0], trainer.accelerator.process_index
    plain = type(reward).__call__

    class Failing(type(reward)):
        def __call__(self, *args, **kwargs):
            if rank == 1 and self.calls == 3 and kind != "none":
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "hang":
                    rest_for_ever()
                raise RuntimeError("a reward that fails")
            return plain(self, *args, **kwargs)

    reward.__class__ = Failing
    trainer.train_durably()


def commands(folder: Path, rest: list[str]) -> dict[str, Callable[[], Any]]:
    return {
        "train": lambda: train(folder, rest),
        "fsdp2": lambda: fsdp2(folder),
        "zero": lambda: zero(folder, int(rest[0])),
        "record": lambda: record(folder),
        "fault": lambda: fault(folder, *rest),
    }


if __name__ == "__main__":
    rank_program.run(commands)
