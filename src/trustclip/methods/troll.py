"""TROLL: the policy is projected onto its trust region, and no token is cut."""

from typing import NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.base import Method, NonNegative, Positive, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.drift import FLOOR
from trustclip.constraints.masked import safe_exp, zero_masked

#: Halvings of the interval of s, to some digits beyond those of float32; a step of Newton follows.
_HALVINGS = 26


@definition
class TROLL(Method, requires=("candidates",)):
    r"""TROLL: a token's ratio is that of the policy's projection onto a KL ball around the old one.

    $$
    \tilde\pi = \mathrm{arg}\min_{\pi} KL(\pi\|\pi_\theta) \quad\text{with}\quad
    KL(\pi\|\pi_{old}) \le \delta, \qquad J_t = A_t \frac{\tilde\pi(y_t)}{\pi_{old}(y_t)} - \alpha\,
    KL\big(\pi_\theta \| \mathrm{sg}(\tilde\pi)\big)
    $$

    The projection lies on the geometric path between the two, $\tilde\pi \propto \pi_{old}^{1-s}
    \pi_\theta^{s}$, with the largest $s \le 1$ that the bound allows ($s = 1/(1+\eta)$ of the
    source's multiplier $\eta$). With $r = \log\pi_\theta - \log\pi_{old}$ of a candidate and
    $\psi(s) = \log\sum_v \pi_{old}(v)\, e^{s r_v}$,

    $$
    \log\frac{\tilde\pi}{\pi_{old}}(y_t) = s\,x_t - \psi(s), \qquad
    KL(\tilde\pi\|\pi_{old}) = s\,\psi'(s) - \psi(s),
    $$

    which rises with $s$. The gradient goes through $s$ too: at the edge, a step that would leave
    the ball moves the policy along it. What the ball does not hold the second term brings back.
    Inside the method is plain importance sampling. ``kept`` is false where the policy was
    projected; such a token still has a gradient, and so have tokens that were not sampled.

    *Candidates* (``batch.candidates``): the source takes some 64 likeliest tokens; all others are
    one more outcome here, with a probability of at least 1e-6, so that the divergence is a lower
    bound of the whole vocabulary's (up to that floor). Where both policies leave less than 1e-6 to
    the others, they are left out: the projection is exact where the candidates are the whole
    vocabulary. A position without any is importance sampling.

    Args:
      delta: $\delta$, nats. 0.05 in the source.
      alpha: $\alpha$, the price of what was projected away, per nat; 1 in the source.

    Example:
      >>> import torch, trustclip as tc
      >>> from trustclip.constraints.candidates import Candidates
      >>> old, new = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.9, 0.1]]]).log()
      >>> batch = tc.TokenBatch(new[..., 0], old[..., 0], torch.ones(1, 1), torch.ones(1, 1) > 0,
      ...                       candidates=Candidates(new, old, old))
      >>> surrogate = tc.method("troll", alpha=0).surrogate(batch)  # w = 1.8, KL 0.37 nats
      >>> surrogate.kept.item(), round(surrogate.objective.item(), 3)  # of (0.657, 0.343), KL 0.05
      (False, 1.314)

    References:
      Becker, Freymuth et al., `TROLL: trust regions improve reinforcement learning for large
      language models <https://arxiv.org/abs/2510.03817>`_, 2025
    """

    delta: Positive = 0.05
    alpha: NonNegative = 1.0

    @property
    def traits(self) -> Trait:
        pull = Trait.MOVES_WITHOUT_ADVANTAGE if self.alpha else Trait(0)
        return Trait.CUTS | Trait.REVERSES | pull

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        path = _Path.of(batch)
        one = torch.ones_like(batch.logp)
        whole = path.divergence(one).detach()
        inside = whole <= self.delta  # [batch, time], as all that follows
        s = torch.where(inside, one, self._edge(path))
        x = torch.where(inside, batch.log_ratio, s * batch.log_ratio - path.psi(s))
        # (1 - s) KL(new || old) + psi(s), with the projection held: 0 in value and gradient inside.
        fixed = s.detach()[..., None] * path.r.detach() - path.psi(s).detach()[..., None]
        residual = (path.new * (path.r - fixed)).sum(dim=2)
        objective = safe_exp(x) * batch.advantages - self.alpha * zero_masked(residual, ~inside)
        kept = (inside | batch.logp.isnan()) & batch.mask
        return Surrogate(zero_masked(objective, batch.mask), kept)

    def _edge(self, path: "_Path") -> Tensor:
        """Largest s within the bound, [batch, time], with the gradient of the implicit function."""
        low, high = torch.zeros_like(path.r[..., 0]), torch.ones_like(path.r[..., 0])
        with torch.no_grad():
            for _ in range(_HALVINGS):
                middle = 0.5 * (low + high)
                within = path.divergence(middle) <= self.delta
                low, high = torch.where(within, middle, low), torch.where(within, high, middle)
            slope = (low * path.variance(low)).clamp(min=torch.finfo(low.dtype).tiny)
        return low - (path.divergence(low) - self.delta) / slope


class _Path(NamedTuple):
    """The policies from the old one (s = 0) to the new one (s = 1).

    Args:
      new: probability of each candidate and of all others together, 0 where there are none. Shape
        [batch, time, k + 1].
      log_old: its logarithm under the old policy, nats; -inf for 0.
      r: log-ratio new / old of each, nats.
    """

    new: Tensor
    log_old: Tensor
    r: Tensor

    @classmethod
    def of(cls, batch: TokenBatch) -> "_Path":
        candidates = batch.given("candidates")
        valid = candidates.valid
        masses = [zero_masked(x.exp(), valid) for x in (candidates.logp, candidates.logp_old)]
        rest = [1 - mass.sum(dim=2, keepdim=True) for mass in masses]  # [batch, time, 1]
        valid = torch.cat([valid, torch.maximum(*rest) > FLOOR], dim=2)  # [batch, time, k + 1]
        new, old = (
            torch.cat([logp, mass.clamp(min=FLOOR).log()], dim=2)
            for logp, mass in zip((candidates.logp, candidates.logp_old), rest, strict=True)
        )
        log_old = torch.where(valid, old, -torch.inf)
        return cls(zero_masked(new.exp(), valid), log_old, zero_masked(new - old, valid))

    def psi(self, s: Tensor) -> Tensor:
        return (self.log_old + s[..., None] * self.r).logsumexp(dim=2)

    def at(self, s: Tensor) -> Tensor:
        return (self.log_old + s[..., None] * self.r - self.psi(s)[..., None]).exp()

    def divergence(self, s: Tensor) -> Tensor:
        """KL of the policy at s from the old one, nats."""
        return s * (self.at(s) * self.r).sum(dim=2) - self.psi(s)

    def variance(self, s: Tensor) -> Tensor:
        """Of r under the policy at s: the slope of the divergence over s."""
        at = self.at(s)
        mean = (at * self.r).sum(dim=2, keepdim=True)
        return (at * (self.r - mean) ** 2).sum(dim=2)
