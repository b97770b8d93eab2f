"""How long training waits for a checkpoint: whole or sharded weights, in the background or not.

    PYTHONPATH=src:tests/support torchrun --nproc-per-node 2 benchmarks/saving.py [SAVES] [HIDDEN]

AdamW in float32, on the CPUs of one machine. The first rank prints, for each kind, medians over the
saves: seconds that training was held, seconds until the checkpoint was complete, CPU seconds of all
ranks, and megabytes of the folder.
"""

import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import trl_runs
from datasets import Dataset
from sharded_processes import kind_settings

from trustclip.train.tiny import tiny_model
from trustclip.train.trainers import DurableGRPOConfig, DurableGRPOTrainer


def measure(kind: str, saves: int, hidden: int, folder: Path) -> dict[str, float]:
    model, tokenizer = tiny_model(seed=1, layers=4, hidden=hidden)
    common = {**trl_runs.COMMON, "per_device_train_batch_size": 8, "num_iterations": 2}
    common |= {"max_steps": 2, "method": {"name": "atr"}, "head": "trl"}
    trainer = DurableGRPOTrainer(
        model=model,
        reward_funcs=trl_runs.share_of_even_digits,
        args=DurableGRPOConfig(str(folder / kind), **{**common, **kind_settings(kind)}),
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS}),
        processing_class=tokenizer,
    )
    assert trainer.train_durably()
    trainer._store.origin(dict)
    rows: list[list[float]] = []
    for step in range(3, 3 + saves):
        trainer.state.global_step = step
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        trainer._save_checkpoint(trainer.model, None)
        held = time.perf_counter() - start
        trainer._saver.settle()
        rows.append([held, time.perf_counter() - start, time.process_time() - used])
    medians: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(
        medians, [statistics.median(column) for column in zip(*rows, strict=True)]
    )
    files = (folder / kind / f"step-{2 + saves:06d}").rglob("*")
    size = sum(file.stat().st_size for file in files if file.is_file())
    return {
        "held_s": max(row[0] for row in medians),
        "complete_s": max(row[1] for row in medians),
        "cpu_s": sum(row[2] for row in medians),
        "folder_mb": size / 1e6,
    }


def main(saves: int = 5, hidden: int = 512) -> None:
    folder = [tempfile.mkdtemp() if os.environ["RANK"] == "0" else ""]
    for kind in ("ddp", "ddp+async", "fsdp2", "fsdp2+async"):
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        dist.broadcast_object_list(folder)
        result = measure(kind, saves, hidden, Path(folder[0]))
        if os.environ["RANK"] == "0":
            print(kind, json.dumps({name: round(value, 3) for name, value in result.items()}))
        # accelerate remembers how a process shards: reset it before the next kind.
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))
