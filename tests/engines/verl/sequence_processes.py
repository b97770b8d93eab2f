# pyright: reportMissingImports=false
"""For `test_sequence_parallel.py`, on two ranks: ``sequence_processes.py FILE``.

Each rank has half of a row of packed tokens, as under ``ulysses_sequence_parallel_size=2``; verl's
own function gathers them, and the first rank writes how far gradients are from those of a process
that has all tokens, as JSON.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import engine_cases
import torch
import torch.distributed as dist
from patience import NEVER
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.ulysses import gather_outputs_and_unpad
from verl_calls import actor, called, settings_of

from trustclip.constraints.registry import as_method

#: A method of each level.
METHODS = ({"name": "atr"}, {"name": "atr", "level": "prefix"}, {"name": "gspo"})


def apart(spec: dict[str, str]) -> float:
    method = as_method(spec)
    batch = engine_cases.batch_for(method, torch.float64)
    config = actor(settings_of(method))
    _, want, _ = called(batch, config)
    tokens, ranks = batch.logp.numel(), dist.get_world_size()
    padding = -tokens % ranks
    packed = torch.nn.functional.pad(batch.logp.detach().flatten(), (0, padding))
    own = packed.chunk(ranks)[dist.get_rank()].clone().requires_grad_()
    whole = gather_outputs_and_unpad(own, 0, 0, padding, group=dist.group.WORLD)
    loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=batch.logp_old,
        log_prob=whole.view(batch.logp.shape),
        advantages=batch.advantages,
        response_mask=batch.mask,
        loss_agg_mode="token-mean",
        config=config,
        rollout_is_weights=None,
    )
    (got,) = torch.autograd.grad(loss, own)
    part = torch.nn.functional.pad(want.flatten(), (0, padding)).chunk(ranks)[dist.get_rank()]
    # Weights' gradients are averaged over ranks, so verl multiplies by their number.
    return ((got / ranks - part).abs().max() / want.abs().max()).item()


def main(file: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=NEVER))
    found = torch.tensor([apart(spec) for spec in METHODS], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    if os.environ["RANK"] == "0":
        file.write_text(json.dumps(found.tolist()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    # A thread of gloo that still drops a tensor while Python shuts down aborts the process.
    os._exit(0)
