r"""Stable-Baselines3's PPO under any method, without a copy of its loss.

`PPO.train` reads three things from a mini-batch: advantages $A$, old log-probabilities and, from
the policy, new ones, and minimises $-\frac1N\sum A\,e^{\log\pi - \log\pi_{old}}$ (its own clip
unlimited), plus terms for value and entropy. It gets $A = 1$ and
$\log\pi = \log\pi_{old} + J - \text{sg}(J)$ with $J$ the method's objective: the gradient is that
of $J$, also where $J$ has one through a KL divergence. Rollouts, returns, the order of
mini-batches, the optimiser, saving and loading stay Stable-Baselines3's.
"""

import copy
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from gymnasium import spaces  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
from torch import Tensor

from trustclip.constraints import diagnostics, divergences, probes
from trustclip.constraints.adaptive import adapts
from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.loss import coefficient
from trustclip.constraints.registry import as_method
from trustclip.engines.limits import check
from trustclip.methods.clip import Clip


class ConstrainedPPO(PPO):
    """`stable_baselines3.PPO` with a method in place of its clip; all else is unchanged.

    A state and its action are one token, and a sequence by itself; what a method measures over a
    generation is measured over the mini-batch. `save` stores the method with the model and `load`
    restores it; the plain `PPO.load` of such a file refuses to train.

    Args:
      policy: as for `PPO`, like all arguments that are not named here.
      env: as for `PPO`.
      *args: as for `PPO`.
      method: a method, its name, or ``{"name": ..., **hyper-parameters}``; None for `PPO`'s own
        clip at `clip_range`, which may be a schedule.
      **kwargs: as for `PPO`. `clip_range` is refused beside a method, `target_kl` always.

    Attributes:
      history: the metrics of `trustclip.constraints.diagnostics` for each generation; its logger
        has them as ``trustclip/*``.

    Raises:
      ValueError: a setting, action space or method that cannot be used; the message states which
        and why.

    Example:
      >>> model = ConstrainedPPO("MlpPolicy", "CartPole-v1", n_steps=64, method="atr", device="cpu")
      >>> model.learn(64).history[-1]["gated"] < 0.5
      True
    """

    def __init__(
        self,
        policy: Any,
        env: Any,
        *args: Any,
        method: Method | str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        values = inspect.signature(PPO.__init__).bind(self, policy, env, *args, **kwargs).arguments
        if method is not None and "clip_range" in values:
            raise ValueError(
                f"clip_range={values['clip_range']!r} has no effect together with a method; set "
                "the method's threshold, or no method for PPO's own clip."
            )
        self.method = method
        self.history: list[dict[str, float]] = []
        self._tokens_seen = 0
        super().__init__(policy, env, *args, **kwargs)

    def _setup_model(self) -> None:
        if self.method is not None:
            self.method = as_method(self.method)
            # Read by PPO.train alone: a plain PPO that loads this model must not train unaware.
            self.clip_range = _Replaced(self.method.name)
        self._check()
        super()._setup_model()

    def _check(self) -> None:
        if self.target_kl is not None:
            raise ValueError("target_kl has no effect here; use the method 'trpo'.")
        method = self.method
        if not isinstance(method, Method):
            return
        check(method, "Stable-Baselines3")
        if isinstance(self.action_space, spaces.Box) and _by_probability(method):
            raise ValueError(
                f"{method.name!r} reads probabilities of tokens, and a continuous action has a "
                "density, which may exceed 1; use a discrete action space."
            )

    def train(self) -> None:
        """`PPO.train`, under the method."""
        clip_range, normalize = self.clip_range, self.normalize_advantage
        method = self.method
        if not isinstance(method, Method):
            method = Clip(epsilon=clip_range(self._current_progress_remaining))
        updates = _Updates(self, method, self._tokens_seen)
        # The method's batch does both, so PPO's own are off.
        self.clip_range, self.normalize_advantage = _unlimited, False
        try:
            with updates.between():
                super().train()
        finally:
            self.clip_range, self.normalize_advantage = clip_range, normalize
        self._tokens_seen = updates.tokens
        if self.method is not None:
            self.method = updates.method
        self._log(updates)

    def _log(self, updates: "_Updates") -> None:
        means = updates.window.read()
        self.history.append(means)
        for name, value in means.items():
            self.logger.record(f"trustclip/{name}", value)
        # PPO.train computed a policy loss of -1 and no clip.
        values = self.logger.name_to_value
        loss = values["train/loss"] + 1 - updates.objectives[-1]
        objective = sum(updates.objectives) / len(updates.objectives)
        last_epoch = updates.k3[-(len(updates.k3) // self.n_epochs) :]
        self.logger.record("train/loss", loss)
        self.logger.record("train/policy_gradient_loss", -objective)
        self.logger.record("train/approx_kl", sum(last_epoch) / len(last_epoch))
        self.logger.record("train/clip_fraction", means["gated"])
        if self.method is None:
            clip_range = self.clip_range(self._current_progress_remaining)
            self.logger.record("train/clip_range", clip_range)
        else:
            values.pop("train/clip_range", None)


class _Replaced:
    """The clip range of a model that has a method instead."""

    def __init__(self, method: str) -> None:
        self.method = method

    def __call__(self, _: float) -> float:
        raise ValueError(
            f"this model trains under the method {self.method!r} and has no clip range: load it "
            "with trustclip_lab.control.sb3.ConstrainedPPO, or give PPO.load a clip_range."
        )


def _unlimited(_: float) -> float:
    return math.inf


def _by_probability(method: Method) -> bool:
    """Whether a method reads more of a token than its ratio: another unit of its density shows."""
    batch = probes.ragged(method, seed=1, left=False, per_token=True)
    logps = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name.startswith("logp")}
    scaled = replace(batch, **{name: x - 3.0 for name, x in logps.items() if x is not None})
    one, other = (coefficient(method, each) for each in (batch, scaled))
    return not torch.allclose(one, other, equal_nan=True)


class _Updates:
    """Intercepts the mini-batches and log-probabilities of a model during one `PPO.train`.

    Args:
      model: the model.
      method: its method, replaced as its thresholds adapt.
      tokens: states in earlier updates, which number this one's.
    """

    def __init__(self, model: Any, method: Method, tokens: int) -> None:
        self.method, self.tokens = method, tokens
        self.window = diagnostics.Window()
        self.objectives: list[float] = []
        self.k3: list[float] = []
        self.old: Any = None
        self.data: Any = None
        self._model, self._normalize = model, model.normalize_advantage
        if any(name.startswith("kl_") for name in method.requires) or method.name == "trpo":
            self.old = copy.deepcopy(model.policy).requires_grad_(False)

    @contextmanager
    def between(self) -> Iterator[None]:
        """Context in which the model's mini-batches and log-probabilities are intercepted."""
        buffer, policy = self._model.rollout_buffer, self._model.policy
        get, evaluate = buffer.get, policy.evaluate_actions

        def mini_batches(batch_size: int | None = None) -> Iterator[Any]:
            for self.data in get(batch_size):
                yield self.data

        def evaluate_constrained(obs: Any, actions: Tensor) -> Any:
            values, logp, entropy = evaluate(obs, actions)
            return values, self._carrier(logp, entropy), entropy

        buffer.get, policy.evaluate_actions = mini_batches, evaluate_constrained
        try:
            yield
        finally:
            del buffer.get, policy.evaluate_actions

    def _carrier(self, logp: Tensor, entropy: Tensor | None) -> Tensor:
        """Log-probabilities with the old values and the objective's gradient; sets A to 1."""
        batch = self._batch(logp, entropy)
        surrogate = self.method.surrogate(batch)
        self.window.add(batch, surrogate, self.method)
        if adapts(self.method):
            update = diagnostics.Window()
            update.add(batch, surrogate)
            self.method = self.method.after(update.read())
        # The buffer copied it for this mini-batch alone.
        self.data.advantages.fill_(1.0)
        objective = surrogate.objective[:, 0]  # [batch]
        self.objectives.append(objective.detach().mean().item())
        self.k3.append(divergences.k3(batch.log_ratio.detach()).mean().item())
        return self.data.old_log_prob + (objective - objective.detach())

    def _batch(self, logp: Tensor, entropy: Tensor | None) -> TokenBatch:
        a, count = self.data.advantages.clone(), len(logp)
        if self._normalize and count > 1:
            a = (a - a.mean()) / (a.std() + 1e-8)
        keys = torch.arange(self.tokens, self.tokens + count, device=logp.device)
        self.tokens += count
        optional = {
            "entropy": None if entropy is None else entropy.detach()[:, None],
            "keys": keys[:, None],
            "logp_rollout": self.data.old_log_prob[:, None],
        }
        if self.old is not None:
            optional |= self.exact()
        mask = torch.ones_like(keys, dtype=torch.bool)[:, None]
        return TokenBatch(  # every field [batch, 1]
            logp[:, None],
            self.data.old_log_prob[:, None],
            a[:, None],
            mask,
            **optional,
            density=isinstance(self._model.action_space, spaces.Box),
        )

    def exact(self) -> dict[str, Tensor]:
        """Exact KL divergences of the mini-batch's states, in closed form, with their graph."""
        from torch.distributions import kl_divergence

        new, old = (
            policy.get_distribution(self.data.observations).distribution
            for policy in (self._model.policy, self.old)
        )
        # One distribution for each dimension of a MultiDiscrete action.
        pairs = [*zip(old, new, strict=True)] if isinstance(new, list) else [(old, new)]

        def total(kls: list[Tensor]) -> Tensor:
            # A Gaussian and a Bernoulli have one value for each dimension of the action.
            return torch.stack([kl.reshape(len(kl), -1).sum(dim=1) for kl in kls]).sum(dim=0)

        return {
            "kl_old_new": total([kl_divergence(o, n) for o, n in pairs])[:, None],
            "kl_new_old": total([kl_divergence(n, o) for o, n in pairs])[:, None],
        }
