r"""Stable-Baselines3's PPO under any method, without a copy of its loss.

SB3's `PPO.train` reads three things from a mini-batch: advantages $A$, old log-probabilities and,
from the policy, new ones, and minimises $-\frac1N\sum A\,e^{\log\pi - \log\pi_{old}}$ (its own clip
opened wide), plus terms for value and entropy. We hand it $A = 1$ and
$\log\pi = \log\pi_{old} + J - \text{sg}(J)$ with $J$ the method's objective: the value is 1, the
gradient that of $J$, also where $J$ has one through a KL divergence. Rollouts, returns, the order
of mini-batches, the optimiser and all else stay SB3's.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trustclip import diagnostics
from trustclip.batch import TokenBatch
from trustclip.method import Method


def constrain(model: Any, method: Method) -> Any:
    """Put SB3's PPO under a method, in place of its clip.

    Args:
      model: a `stable_baselines3.PPO`, of a discrete or a box action space, not trained yet.
      method: the constraint. A state and its action are one token, and a sequence of its own;
        what it measures over a generation is measured over the mini-batch.

    Returns:
      The model. Its logger's ``train/*`` get `trustclip.diagnostics` under ``trustclip/``.

    Raises:
      ValueError: a model or method that cannot be used: the message says which and why.
    """
    if model.target_kl is not None:
        raise ValueError("target_kl has no effect here; use the method 'trpo'.")
    _check(model, method)
    Constraint(model, method)
    return model


def _check(model: Any, method: Method) -> None:
    from gymnasium import spaces  # pyright: ignore[reportMissingImports]

    space = model.action_space
    if not isinstance(space, spaces.Discrete | spaces.Box):
        raise ValueError(f"the action space must be Discrete or Box, got {space}.")
    missing = {"top_k_kl", "top_k_tv", "groups"}.intersection(method.requires)
    if missing:
        raise ValueError(f"{method.name!r} needs `{missing.pop()}`, which control does not have.")
    if isinstance(space, spaces.Box) and _by_probability(method):
        raise ValueError(
            f"{method.name!r} reads probabilities of tokens, and a continuous action has a "
            "density, which may exceed 1; use a discrete action space."
        )


def _by_probability(method: Method) -> bool:
    try:
        method.log_interval()
    except ValueError as error:
        return "p_old" in str(error)
    return False


class Constraint:
    """What stands between a PPO model and its policy while it trains; see `constrain`.

    ``history`` holds the metrics of each generation's updates.
    """

    def __init__(self, model: Any, method: Method) -> None:
        self.model, self.method = model, method
        self._normalize = model.normalize_advantage
        self._train = model.train
        self._old: Any = None
        self._data: Any = None
        self._seen = 0
        self._window = diagnostics.Window()
        self.history: list[dict[str, float]] = []
        model.constraint = self
        model.normalize_advantage = False
        model.clip_range = lambda _: math.inf
        model.train = self.train

    def train(self) -> None:
        """`PPO.train`, under the method."""
        exact = any(name.startswith("kl_") for name in self.method.requires)
        exact = exact or self.method.name == "trpo"
        self._old = copy.deepcopy(self.model.policy).requires_grad_(False) if exact else None
        self._window = diagnostics.Window()
        with self._between():
            self._train()
        means = self._window.read()
        self.history.append(means)
        for name, value in means.items():
            self.model.logger.record(f"trustclip/{name}", value)
        self.model.logger.record("train/clip_fraction", means["gated"])
        self.model.logger.record("train/approx_kl", means["k3"])

    @contextmanager
    def _between(self) -> Iterator[None]:
        buffer, policy = self.model.rollout_buffer, self.model.policy
        get, evaluate = buffer.get, policy.evaluate_actions

        def watched(batch_size: int | None = None) -> Iterator[Any]:
            for self._data in get(batch_size):
                yield self._data

        def constrained(obs: Any, actions: Tensor) -> Any:
            values, logp, entropy = evaluate(obs, actions)
            return values, self._carrier(logp, entropy), entropy

        buffer.get, policy.evaluate_actions = watched, constrained
        try:
            yield
        finally:
            del buffer.get, policy.evaluate_actions

    def _carrier(self, logp: Tensor, entropy: Tensor | None) -> Tensor:
        """Log-probabilities with the old ones' value and the objective's gradient; sets A to 1."""
        data = self._data
        batch = self._batch(logp, entropy)
        surrogate = self.method.surrogate(batch)
        self._window.add(batch, surrogate, self.method)
        if self.method.adapts:
            update = diagnostics.Window()
            update.add(batch, surrogate)
            self.method = self.method.after(update.read())
        # SB3 copied it out of its buffer for this mini-batch alone.
        data.advantages.fill_(1.0)
        objective = surrogate.objective[:, 0]
        return data.old_log_prob + (objective - objective.detach())

    def _batch(self, logp: Tensor, entropy: Tensor | None) -> TokenBatch:
        a, count = self._data.advantages.clone(), len(logp)
        if self._normalize and count > 1:
            a = (a - a.mean()) / (a.std() + 1e-8)
        keys = torch.arange(self._seen, self._seen + count, device=logp.device)
        self._seen += count
        optional = {
            "entropy": None if entropy is None else entropy.detach()[:, None],
            "keys": keys[:, None],
            "logp_rollout": self._data.old_log_prob[:, None],
        }
        if self._old is not None:
            optional |= self._exact()
        mask = torch.ones_like(keys, dtype=torch.bool)[:, None]
        return TokenBatch(
            logp[:, None], self._data.old_log_prob[:, None], a[:, None], mask, **optional
        )

    def _exact(self) -> dict[str, Tensor]:
        """Exact KL divergences of the mini-batch's states, in closed form, with their graph."""
        from torch.distributions import kl_divergence

        observations = self._data.observations
        new = self.model.policy.get_distribution(observations).distribution
        old = self._old.get_distribution(observations).distribution
        both = {"kl_old_new": kl_divergence(old, new), "kl_new_old": kl_divergence(new, old)}
        # A Gaussian has one for each dimension of the action.
        return {name: kl.reshape(len(kl), -1).sum(dim=1, keepdim=True) for name, kl in both.items()}
