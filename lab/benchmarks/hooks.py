"""What each installed engine calls on a micro-batch: its own clipped loss, and trustclip's hook."""

import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from trustclip.constraints.batch import TokenBatch

#: From log-probabilities to the loss, metrics made.
Call = Callable[[Tensor], Tensor]


def installed(batch: TokenBatch) -> dict[str, tuple[Call | None, Call]]:
    """By engine: its own loss, None where it has none here, and the hook with ``atr``."""
    engines = {"trl": _trl, "verl": _verl, "tinker": _tinker}
    return {name: tuple(made(batch)) for name, made in engines.items() if find_spec(name)}  # type: ignore[misc]


def _trl(batch: TokenBatch) -> Iterator[Call]:
    """``_compute_loss`` of both trainers, with the model's pass taken out."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer
    from trustclip.train.tiny import tiny_model

    rows, time = batch.mask.shape
    settings: dict[str, Any] = dict(
        per_device_train_batch_size=rows, num_generations=rows, max_completion_length=time,
        num_iterations=2, use_cpu=True, bf16=False, report_to=[], loss_type="dr_grpo",
    )  # fmt: skip
    ones, ids = batch.mask.long(), torch.full_like(batch.mask, 5, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ones[:, :1], "completion_ids": ids,
        "completion_mask": ones, "advantages": batch.advantages[:, 0],
        "old_per_token_logps": batch.logp_old, "num_items_in_batch": ones.sum(),
        "sample_index": torch.arange(rows),
    }  # fmt: skip
    pairs: list[tuple[Any, Any, dict[str, Any]]] = [
        (GRPOConfig, GRPOTrainer, {}),
        (ConstrainedGRPOConfig, ConstrainedGRPOTrainer, {"method": "atr"}),
    ]
    for config, trainer, more in pairs:
        model, tokenizer = tiny_model()
        args = config(tempfile.mkdtemp(), **settings, **more)
        prompts = Dataset.from_list([{"prompt": "1+1="}] * rows)
        made = trainer(
            model, lambda completions, **_: [0.0] * len(completions), args=args,
            train_dataset=prompts, processing_class=tokenizer,
        )  # fmt: skip
        made.current_gradient_accumulation_steps = 1
        made.model.train()

        def call(logp: Tensor, made: Any = made) -> Tensor:
            passed = (logp, batch.entropy, None)
            scored = {"_get_per_token_logps_and_entropies": lambda *_, **__: passed}
            with patch.multiple(GRPOTrainer, **scored):  # type: ignore[call-overload]
                return made._compute_loss(made.model, dict(inputs))

        yield call


def _verl(batch: TokenBatch) -> Iterator[Call]:
    """Two losses of verl's registry, as its actor calls them."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn  # type: ignore[import-not-found]
    from verl.workers.config import (  # type: ignore[import-not-found]
        FSDPActorConfig,
        PolicyLossConfig,
    )

    from trustclip.engines.verl import TrustclipLossConfig

    for loss in (PolicyLossConfig(loss_mode="vanilla"), TrustclipLossConfig(method="atr")):
        config = FSDPActorConfig(
            strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=2, policy_loss=loss
        )
        config.global_batch_info.update(dp_size=1, batch_num_tokens=None, global_batch_size=None)
        yield lambda logp, config=config: get_policy_loss_fn(config.policy_loss.loss_mode)(
            old_log_prob=batch.logp_old, log_prob=logp, advantages=batch.advantages,
            response_mask=batch.mask, loss_agg_mode="token-mean", config=config,
        )[0]  # fmt: skip


def _tinker(batch: TokenBatch) -> Iterator[Call | None]:
    """The function that Tinker's client calls; its own losses run on the server."""
    import tinker  # type: ignore[import-not-found]

    from trustclip.engines.tinker import custom_loss

    fields = {"logprobs": batch.logp_old, "advantages": batch.advantages, "mask": batch.mask}
    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints([1] * batch.mask.shape[1]),
            loss_fn_inputs={
                name: tinker.TensorData.from_torch(rows[i].float()) for name, rows in fields.items()
            },
        )
        for i in range(len(batch.mask))
    ]
    loss = custom_loss("atr")
    yield None
    yield lambda logp: loss(data, list(logp))[0]
