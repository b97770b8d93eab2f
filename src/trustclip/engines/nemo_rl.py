"""NeMo-RL: a ``LossFunction`` to pass to ``grpo_train`` from your own run script.

::


    loss_fn = TrustclipLoss("atr", delta=0.07)    # instead of the one that setup() returned
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import as_floats, means, per_token_loss


class TrustclipLoss:
    """Token-level loss of a method, normalised by the number of tokens in the update.

    Args:
      method: name of the constraint.
      **method_args: its hyper-parameters.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that needs more than NeMo-RL gives.
    """

    def __init__(self, method: str = "atr", **method_args: Any) -> None:
        from nemo_rl.algorithms.loss.interfaces import (  # pyright: ignore[reportMissingImports]
            LossInputType,
            LossType,
        )

        self.loss_type, self.input_type = LossType.TOKEN_LEVEL, LossInputType.LOGPROB
        self.method = check(named(method, **method_args), "NeMo-RL")

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Mapping[str, Tensor],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Loss and metrics of a micro-batch: both sum to those of the update.

        Args:
          next_token_logprobs: of every token but the first. Shape [batch, time - 1].
          data: NeMo-RL's tensors of shape [batch, time], and ``sample_mask`` [batch].
          global_valid_seqs: sequences of the update.
          global_valid_toks: tokens of the update.
        """
        mask = (data["token_mask"][:, 1:] * data["sample_mask"][:, None]).bool()
        batch = TokenBatch(
            next_token_logprobs,
            data["prev_logprobs"][:, 1:],
            data["advantages"][:, 1:],
            mask,
            logp_rollout=data["generation_logprobs"][:, 1:],
        )
        per_token, surrogate = per_token_loss(self.method, batch)
        metrics = means(batch, surrogate, global_valid_toks, self.method)
        metrics["num_valid_samples"] = data["sample_mask"].sum().to(per_token.dtype)
        return per_token.sum() / global_valid_toks, as_floats(metrics)
