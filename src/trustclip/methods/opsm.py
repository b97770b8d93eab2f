"""OPSM: drop wrong answers that the policy has already moved away from."""

from trustclip.constraints.base import Positive, definition
from trustclip.constraints.batch import Anchor
from trustclip.constraints.compose import Choice
from trustclip.constraints.registry import Part
from trustclip.constraints.twins import Twins
from trustclip.methods.clip import Clip
from trustclip.methods.sampler import Sampler


@definition
class OPSM(Choice):
    r"""OPSM: any method drops the negative-advantage sequences that are too far off-policy.

    $$
    J_t \cdot \mathbf 1\Big[A_t \ge 0 \ \text{or}\
    \frac1T \sum_s \log\frac{\pi_{old}(y_s)}{\pi_\theta(y_s)} \le \delta\Big]
    $$

    with $J_t$ the objective of ``inner``. The mean is of k1 and signed: it is large where
    the new policy finds the sequence much less likely, that is where learning from the mistake has
    been done already and pushing on does harm. DeepSeek-V3.2 measures against the policy that
    sampled (``anchor="rollout"``), which catches the mismatch of engines too, and does not state
    $\delta$; TRL, which has this as ``off_policy_mask_threshold``, suggests 0.5.

    Args:
      inner: the method to mask: its name, or a mapping with ``name`` and hyper-parameters.
      delta: $\delta$, nats per token. TRL suggests 0.5, slime runs 1e-4.
      anchor: ``"old"`` or ``"rollout"``: the policy in the numerator.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((2, 2), -1.0)
      >>> batch = tc.TokenBatch(old - torch.tensor([[0.1, 0.1], [0.1, 1.0]]), old,
      ...                       -torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))
      >>> tc.method("opsm", inner="soft_gate").surrogate(batch).kept
      tensor([[ True,  True],
              [False, False]])

    References:
      DeepSeek-AI, `DeepSeek-V3.2 <https://arxiv.org/abs/2512.02556>`_, 2025
    """

    inner: Part = Clip()
    delta: Positive = 0.5
    anchor: Anchor = "old"

    @property
    def twins(self) -> Twins:
        inner = self.inner.twins.get("TRL")
        if inner is None:
            return {}
        # With vLLM, TRL measures the mask against the sampler, and by default corrects for it.
        if self.anchor == "rollout":
            sampler = {"use_vllm": True, "vllm_importance_sampling_correction": False}
        else:
            sampler = {"use_vllm": False}
        return {"TRL": inner | {"off_policy_mask_threshold": self.delta} | sampler}

    def as_sampler(self) -> Sampler:
        return Sampler(
            inner=self.inner,
            measure="k1",
            between="new_old" if self.anchor == "old" else "new_rollout",
            level="sequence",
            ceiling=self.delta,
            only="negative",
        )
