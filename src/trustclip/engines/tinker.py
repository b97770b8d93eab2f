"""Tinker: the function that ``TrainingClient.forward_backward_custom`` takes.

::

    training_client.forward_backward_custom(data, custom_loss("atr", delta=0.07))
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import as_floats, means, per_token_loss

CustomLoss = Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]


def custom_loss(method: str = "atr", **method_args: Any) -> CustomLoss:
    """Loss over a list of data, summed over tokens as in Tinker's own losses.

    Each datum's ``loss_fn_inputs`` must have ``logprobs`` (of the policy that sampled, which is
    the old one here) and ``advantages``. The tokens of its ``mask`` count, or else those of its
    ``sequence_ratio_mask``. A datum without both is padded as the cookbook pads it: where
    log-probability and advantage are 0, nothing was sampled. (The cookbook's training loop takes
    ``mask`` out before it calls the server; leave it in.) Only the gradient in each log-probability
    goes to the server.

    Args:
      method: name of the constraint.
      **method_args: its hyper-parameters.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that needs more than this.
    """
    chosen = check(named(method, **method_args), "Tinker")

    def loss(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        def pad(name: str) -> Tensor:
            rows = [datum.loss_fn_inputs[name].to_torch() for datum in data]
            return pad_sequence(
                [row.to(logp) for row, logp in zip(rows, logprobs, strict=True)], True
            )

        logp, old = pad_sequence(list(logprobs), True), pad("logprobs")
        mask = pad_sequence([_sampled(datum.loss_fn_inputs) for datum in data], True)
        mask = mask.to(logp.device)
        batch = TokenBatch(logp, old, pad("advantages"), mask, logp_rollout=old)
        per_token, surrogate = per_token_loss(chosen, batch)
        return per_token.sum(), as_floats(means(batch, surrogate))

    return loss


def _sampled(inputs: Mapping[str, Any]) -> Tensor:
    """True for the tokens of a datum that the policy sampled. Shape [time]."""
    for name in ("mask", "sequence_ratio_mask"):
        if name in inputs:
            return inputs[name].to_torch() != 0
    return (inputs["logprobs"].to_torch() != 0) | (inputs["advantages"].to_torch() != 0)
