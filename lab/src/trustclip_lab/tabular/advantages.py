"""Advantages from the rewards of a group: sequences that answer the same prompt.

Rewards come in one flat tensor [groups * group_size], the ``group_size`` answers to a prompt, 2 or
more, next to each other. Equal rewards have an advantage of exactly 0.
"""

from torch import Tensor

from trustclip.constraints.masked import widen


def group_mean(rewards: Tensor, group_size: int) -> Tensor:
    r"""Reward minus the mean of its group (Dr. GRPO, Liu et al., 2025): $A_i = R_i - \bar R$.

    Raises:
      ValueError: the rewards do not divide into groups of at least 2.

    Example:
      >>> import torch
      >>> group_mean(torch.tensor([1.0, 0.0, 0.0, 0.0]), 4)
      tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """
    return _deviations(_groups(rewards, group_size)).flatten()


def group_standardized(rewards: Tensor, group_size: int, eps: float = 1e-4) -> Tensor:
    r"""`group_mean` over the group's standard deviation (GRPO, Shao et al., 2024).

    $A_i = (R_i - \bar R) / (s + \epsilon)$, $s$ with $n - 1$ in the denominator; $\epsilon$ keeps
    rewards which hardly differ from being blown up.

    Example:
      >>> import torch
      >>> group_standardized(torch.tensor([1.0, 0.0, 0.0, 0.0]), 4)
      tensor([ 1.4997, -0.4999, -0.4999, -0.4999])
    """
    groups = _groups(rewards, group_size)  # [groups, group_size]
    deviations = _deviations(groups)
    scaled = deviations / (groups.std(dim=1, keepdim=True) + eps)
    return scaled.where(deviations != 0, 0.0).flatten()  # with eps=0 equal rewards give 0 / 0


def leave_one_out(rewards: Tensor, group_size: int) -> Tensor:
    r"""Reward minus the mean of the others of its group (RLOO, Ahmadian et al., 2024).

    $A_i = R_i - \frac{1}{n-1}\sum_{j \ne i} R_j = \frac{n}{n-1}(R_i - \bar R)$.

    Example:
      >>> import torch
      >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), 4)
      tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    return group_mean(rewards, group_size) * (group_size / (group_size - 1))


def _deviations(groups: Tensor) -> Tensor:
    # The mean of equal numbers is rounded, and dividing by a tiny deviation would blow up the rest.
    # By differences, so that infinite rewards do not count as equal.
    equal = (groups - groups[:, :1] == 0).all(dim=1, keepdim=True)  # [groups, 1]
    return (groups - groups.mean(dim=1, keepdim=True)).masked_fill(equal, 0.0)


def _groups(rewards: Tensor, group_size: int) -> Tensor:
    if rewards.dim() != 1 or group_size < 2 or rewards.numel() % group_size:
        raise ValueError(
            "rewards must be one flat tensor of whole groups of at least 2, got shape "
            f"{tuple(rewards.shape)} with group_size={group_size}."
        )
    # A mean in half precision would round rewards that differ.
    return widen(rewards).reshape(-1, group_size)  # [groups, group_size]
