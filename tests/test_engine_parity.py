"""TRL's loss under our engine has the gradient that verl's has: see `engine_cases`.

The same cases run through verl in ``verl_engine/test_losses.py``, in verl's environment; both sides
are held to one gradient.
"""

from typing import Any

import engine_cases
import method_cases
import pytest
import torch
import trl_runs
from torch import Tensor

import trustclip as tc


@pytest.fixture(scope="module", params=engine_cases.VERL_MODES)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from datasets import Dataset

    from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

    model, tokenizer = trl_runs.fresh_model()
    settings = trl_runs.COMMON | {
        "loss_type": request.param,
        "max_completion_length": engine_cases.MAX_LENGTH,
    }
    return ConstrainedGRPOTrainer(
        model=model,
        reward_funcs=trl_runs.share_of_even_digits,
        args=ConstrainedGRPOConfig(str(tmp_path_factory.mktemp("run")), **settings),
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS}),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("method", engine_cases.TRAINED, ids=method_cases.label)
def test_trl_gives_the_gradient_of_both_engines(
    trainer: Any, method: tc.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    batch = engine_cases.batch_for(method)
    logp = batch.logp.clone().requires_grad_()
    rows, length = logp.shape
    tokens = torch.ones(rows, length, dtype=torch.int64)

    def scored(self: Any, model: Any, input_ids: Tensor, *_: Any, **__: Any) -> Any:
        asked = logp[input_ids[:, 0]]  # the prompt is the number of the row
        return asked, torch.zeros_like(asked), None

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", scored)
    trainer.method = method
    trainer._examined = True  # the sampler's log-probabilities are made up, some above 0
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.arange(rows)[:, None],
            "prompt_mask": tokens[:, :1],
            "completion_ids": tokens,
            "completion_mask": batch.mask.long(),
            "advantages": batch.advantages,
            "old_per_token_logps": batch.logp_old,
            "sampling_per_token_logps": batch.logp_rollout,
            "num_items_in_batch": batch.mask.sum(),
            "sample_index": torch.arange(rows),
            "generated": torch.full((rows,), -1),  # by an earlier policy
        },
    )
    loss.backward()
    want = engine_cases.expected_gradient(method, batch, trainer.loss_type)
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad.double(), want, rtol=2e-6, atol=1e-9)
