"""One batch, every method that both engines train, and the gradient both must give."""

import method_cases
import torch
from torch import Tensor

import trustclip as tc
from trustclip.engines.limits import ENGINES, refusal

#: Longest completion allowed, tokens: more than any has.
MAX_LENGTH = 16

#: TRL's loss types and what verl calls the same aggregation.
VERL_MODES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}

#: Methods in every variant that verl can train, and those it cannot.
TRAINED = [m for m in method_cases.ALL if refusal(m, ENGINES["verl"]) is None]
REFUSED = [m for m in method_cases.ALL if refusal(m, ENGINES["verl"]) is not None]


def batch_for(method: tc.Method, dtype: torch.dtype = torch.float32) -> tc.TokenBatch:
    """Random tokens of seven sequences, each with one at least: engines count empty ones apart."""
    batch = method_cases.random_batch(method, dtype)
    rollout = None if batch.logp_rollout is None else batch.logp_rollout[:7]
    return tc.TokenBatch(
        *(x[:7] for x in method_cases.astuple(batch)), logp_rollout=rollout
    )  # a method that verl trains needs no more


def weights(loss_type: str, mask: Tensor) -> Tensor:
    """What a token's loss is multiplied by before all are added, written out. [batch, time]."""
    rows, tokens = mask.shape[0], mask.sum(dim=1, keepdim=True)
    weight = {
        "grpo": 1 / (rows * tokens),
        "dapo": 1 / tokens.sum().expand_as(tokens),
        "dr_grpo": torch.full_like(tokens, 1 / (rows * MAX_LENGTH), dtype=torch.float64),
        "luspo": torch.full_like(tokens, 1 / rows, dtype=torch.float64),
    }[loss_type]
    return torch.where(mask, weight, 0.0)


def expected_gradient(method: tc.Method, batch: tc.TokenBatch, loss_type: str) -> Tensor:
    """Gradient of the loss in the log-probabilities. Shape [batch, time]."""
    return -weights(loss_type, batch.mask) * tc.coefficient(method, batch).double()
