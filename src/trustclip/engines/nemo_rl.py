"""NeMo-RL: a loss to pass to ``grpo_train``, in your own copy of its ``run_grpo.py``.

::

    loss_fn = TrustclipLoss(loss_fn, "atr", delta=0.07)    # around the one that setup() returned
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import as_floats, means, per_token_loss

#: Metrics of the policy term that a method replaces: NeMo-RL's own bounds, which no longer act.
_REPLACED = ("probs_ratio_clamped", "is_oob_ratio")


class TrustclipLoss:
    """NeMo-RL's own loss with a method in place of its policy term.

    The rest of it stays: the KL to the reference policy, the likelihood of right answers, the
    normalisers and the metrics that its trainers read. ``ratio_clip_*``, ``use_cispo``,
    ``disable_ppo_ratio`` and ``sequence_level_importance_ratios`` are of the term that is replaced.

    Args:
      theirs: the loss that NeMo-RL's ``setup()`` returned.
      method: name of the constraint.
      **method_args: its hyper-parameters.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that needs more than NeMo-RL gives;
        a loss that is not NeMo-RL's; ``force_on_policy_ratio``, which leaves no old policy; NeMo's
        correction for the sampler under a method that makes none.
    """

    def __init__(self, theirs: Any, method: str = "atr", **method_args: Any) -> None:
        self.theirs = theirs
        self.method = check(named(method, **method_args), "NeMo-RL")
        _check_settings(theirs, self.method)
        kinds = getattr(theirs, "metric_normalizations", {})
        over_tokens = kinds.get("token_mult_prob_error")  # as the sums of `means` are
        self.metric_normalizations = {**kinds, **dict.fromkeys(_names(self.method), over_tokens)}

    def __getattr__(self, name: str) -> Any:
        """Whatever else NeMo-RL reads of a loss: its type, its input, its KL."""
        if "theirs" not in vars(self):  # while it is unpickled on a worker
            raise AttributeError(name)
        return getattr(self.theirs, name)

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
        without = {**data, "advantages": torch.zeros_like(data["advantages"])}
        rest, logged = self.theirs(
            next_token_logprobs=next_token_logprobs,
            data=without,
            global_valid_seqs=global_valid_seqs,
            global_valid_toks=global_valid_toks,
        )
        tokens = data["token_mask"][:, 1:]
        batch = TokenBatch(
            next_token_logprobs,
            data["prev_logprobs"][:, 1:],
            data["advantages"][:, 1:],
            (tokens * data["sample_mask"][:, None]).bool(),
            logp_rollout=data["generation_logprobs"][:, 1:],
        )
        per_token, surrogate = per_token_loss(self.method, batch)  # 0 where masked
        if self.loss_type.name == "TOKEN_LEVEL":
            policy = per_token.sum() / global_valid_toks
        else:
            policy = (per_token.sum(1) / tokens.sum(1).clamp(min=1)).sum() / global_valid_seqs
        metrics = as_floats(means(batch, surrogate, global_valid_toks, self.method))
        kept = {k: v for k, v in logged.items() if not k.startswith(_REPLACED)}
        return rest + policy, {**kept, "loss": kept["loss"] + policy.item(), **metrics}


def _check_settings(theirs: Any, method: Method) -> None:
    """Raise a ValueError where a setting of the replaced term would stop acting in silence."""
    if not hasattr(theirs, "force_on_policy_ratio"):
        raise ValueError(
            "TrustclipLoss takes the loss that NeMo-RL's setup() returned (ClippedPGLossFn) and "
            f"then the method: TrustclipLoss(loss_fn, {method.name!r}); got {theirs!r}."
        )
    if theirs.force_on_policy_ratio:
        raise ValueError(
            "loss_fn.force_on_policy_ratio makes NeMo-RL pass zeros for the old policy's "
            f"log-probabilities, from which {method.name!r} would measure every token: set it to "
            "false."
        )
    corrects = Trait.CORRECTS_SAMPLER in method.traits
    if theirs.use_importance_sampling_correction and not corrects:
        raise ValueError(
            "loss_fn.use_importance_sampling_correction is a weight inside the term that "
            f"{method.name!r} replaces, so none would be made: name it as a method, such as "
            f"TrustclipLoss(loss_fn, 'tis', inner={method.name!r}), or set it to false."
        )


def _names(method: Method) -> list[str]:
    """Names of the metrics of a method."""
    x = torch.zeros(1, 1)
    batch = TokenBatch(x, x, x, x == 0, logp_rollout=x)
    return [*means(batch, method.surrogate(batch), x.sum(), method)]
