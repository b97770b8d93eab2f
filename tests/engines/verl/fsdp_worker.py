# pyright: reportMissingImports=false
"""A rank of verl's real FSDP2 training worker, on CPU: three updates by three methods.

Started by `test_worker.py` with ``torch.distributed.run``; the first rank writes what it saw as
JSON. Arguments: folder of the model, file to write, and optionally ``stock`` or ``watched``: then
it trains with verl's own losses, plain or under ``trustclip_watch``.
"""

import hashlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
)
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from trustclip.engines.verl import TrustclipLossConfig
from trustclip.engines.verl.limits import WATCH
from trustclip.train.durable.ranks import leave

SEQUENCES, PROMPT, LONGEST, MICRO = 8, 5, 6, 2
FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
#: Method, its hyper-parameters, and verl's aggregation.
UPDATES = [
    ("atr", {"delta": 0.05}, "token-mean"),
    ("gspo", {"low": 0.1, "high": 0.1}, "seq-mean-token-mean"),
    ("dual_clip", {"ceiling": 1.5}, "seq-mean-token-sum-norm"),
]


def policy_losses(losses: str) -> list[tuple[Any, str]]:
    """The policy loss and the aggregation of each update."""
    if losses == "trustclip":
        return [
            (TrustclipLossConfig(method={"name": method, **arguments}), mode)
            for method, arguments, mode in UPDATES
        ]
    own = [("vanilla", "token-mean"), ("gspo", "seq-mean-token-mean"), ("vanilla", "token-mean")]
    if losses == "stock":
        return [(PolicyLossConfig(loss_mode=name), mode) for name, mode in own]
    return [
        (TrustclipLossConfig(loss_mode=WATCH, watched=name, shadows=["atr", "gspo"]), mode)
        for name, mode in own
    ]


def weights(worker: TrainingWorker) -> str:
    """Digest of every weight; all ranks must ask."""
    digest = hashlib.sha256()
    for parameter in worker.engine.module.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(whole.detach().numpy().tobytes())
    return digest.hexdigest()


class Data:
    """The same ragged batch on every rank, of which each takes its share."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = partial(torch.randint, 4, 90, generator=generator)
        self.prompts, self.answers = draw((SEQUENCES, PROMPT)), draw((SEQUENCES, LONGEST))
        self.lengths = torch.randint(2, LONGEST + 1, (SEQUENCES,), generator=generator).tolist()
        self.advantages = torch.randn(SEQUENCES, generator=generator)
        self.moved = 0.4 * torch.randn(SEQUENCES, LONGEST, generator=generator)
        self.weights = 0.5 + torch.rand(SEQUENCES, LONGEST, generator=generator)

    def take(self, rows: list[int], old: dict[int, torch.Tensor] | None = None) -> Any:
        """verl's dictionary of nested tensors; with ``old``, one to train on."""

        def nested(make: Any) -> torch.Tensor:
            return torch.nested.as_nested_tensor([make(i) for i in rows], layout=torch.jagged)

        def answer(x: torch.Tensor) -> torch.Tensor:
            return nested(lambda i: x[i, : self.lengths[i]].clone())

        fields = {
            "prompts": nested(lambda i: self.prompts[i]),
            "responses": answer(self.answers),
            "input_ids": nested(
                lambda i: torch.cat([self.prompts[i], self.answers[i, : self.lengths[i]]])
            ),
            "position_ids": nested(lambda i: torch.arange(PROMPT + self.lengths[i])),
            "attention_mask": nested(
                lambda i: torch.ones(PROMPT + self.lengths[i], dtype=torch.long)
            ),
            "response_mask": answer(torch.ones(SEQUENCES, LONGEST)),
            "loss_mask": answer(torch.ones(SEQUENCES, LONGEST)),
        }
        if old is not None:
            fields["old_log_probs"] = nested(lambda i: old[i])
            fields["advantages"] = answer(self.advantages[:, None].expand(-1, LONGEST))
            fields["rollout_is_weights"] = answer(self.weights)
        plain = dict(
            temperature=1.0,
            global_batch_size=SEQUENCES,
            mini_batch_size=SEQUENCES,
            micro_batch_size_per_gpu=MICRO,
            use_dynamic_bsz=False,
            use_remove_padding=False,
            calculate_entropy=True,
            epochs=1,
            seed=0,
            dataloader_kwargs={"shuffle": False},
        )
        return tu.get_tensordict(fields, non_tensor_dict=plain)


def make_worker(model: str) -> TrainingWorker:
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=model,
                use_remove_padding=False,
                override_config={"attn_implementation": "eager"},
                enable_gradient_checkpointing=False,
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                use_torch_compile=False,
                model_dtype="fp32",
                mixed_precision=FP32,
                micro_batch_size_per_gpu=MICRO,
                infer_micro_batch_size_per_gpu=MICRO,
                use_dynamic_bsz=False,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-5, total_training_steps=10, clip_grad=1.0),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    return worker


def old_log_probs(worker: TrainingWorker, data: Data, rows: list[int]) -> dict[int, torch.Tensor]:
    """The policy's own, moved away by known amounts."""
    batch = data.take(rows)
    tu.assign_non_tensor(batch, compute_loss=False)
    logps = no_padding_2_padding(worker.infer_batch(batch)["log_probs"], data.take(rows))
    lengths = data.lengths
    return {
        i: (row[: lengths[i]] - data.moved[i, : lengths[i]]).detach()
        for i, row in zip(rows, logps, strict=True)
    }


def main(model: str, out: str, losses: str = "trustclip") -> None:
    torch.set_num_threads(1)
    worker, data = make_worker(model), Data()
    rank, world = dist.get_rank(), dist.get_world_size()
    share = SEQUENCES // world
    rows = list(range(rank * share, (rank + 1) * share))
    old = old_log_probs(worker, data, rows)
    updates = []
    for policy_loss, mode in policy_losses(losses):
        actor = FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=4,
            ppo_micro_batch_size_per_gpu=MICRO,
            loss_agg_mode=mode,
            loss_scale_factor=LONGEST,
            policy_loss=policy_loss,
        )
        worker.set_loss_fn(partial(ppo_loss, config=actor))
        seen = tu.get(worker.train_mini_batch(data.take(rows, old)), "metrics")
        kept = ("trustclip/", "actor/pg_", "loss", "grad_norm")
        updates.append(
            {k: float(torch.tensor(v).mean()) for k, v in seen.items() if k.startswith(kept)}
        )
    digest = weights(worker)
    if rank == 0:
        setup = {
            "weights": digest,
            "world": world,
            "backend": dist.get_backend(),
            "module": type(worker.engine.module).__name__,
            "sharded": str(type(next(worker.engine.module.parameters())).__name__),
        }
        Path(out).write_text(json.dumps({**setup, "updates": updates}), encoding="utf-8")
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
