"""Losses of engines that are not installed here, from their published formulas.

Each gives the value of every token's loss, in the form the source states it (the pessimistic
minimum, the clamp, the sigmoid), so that autograd finds the gradient: the library writes gates and
coefficients instead. ``w`` is a ratio, ``A`` the advantage, ``m`` the mask; the engine's numbers
stand here a second time.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import trustclip as tc


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Log-probabilities of the three policies, advantages, mask, reference. All [batch, time].

    `p` and `q` are log-probabilities of further tokens, new policy and sampler. [batch, time, k]
    """

    new: Tensor
    old: Tensor
    rollout: Tensor
    A: Tensor
    m: Tensor
    lag: Tensor
    ref: Tensor
    p: Tensor
    q: Tensor

    def mean(self, x: Tensor) -> Tensor:
        """Of each sequence. Shape [batch, 1]."""
        return (x * self.m).sum(1, keepdim=True) / self.m.sum(1, keepdim=True)

    def everywhere(self, x: Tensor) -> Tensor:
        """Mean over all tokens. Scalar."""
        return (x * self.m).sum() / self.m.sum()


def of(batch: tc.TokenBatch, new: Tensor, further: Tensor) -> Tokens:
    rollout = batch.given("logp_rollout")
    lag = batch.given("lag")
    among = batch.candidates
    assert among is not None
    return Tokens(
        *(new, batch.logp_old, rollout, batch.advantages, batch.mask, lag, batch.given("logp_ref")),
        *(further, among.logp_rollout),
    )


def ppo(t: Tokens, base: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    return bounded((t.new - base).exp(), t.A, low, high)


def prime_ppo(t: Tokens) -> Tensor:
    return bounded(up_to((t.new - t.rollout).exp(), 1e4), t.A)


def bounded(w: Tensor, A: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    return torch.maximum(-w * A, -w.clamp(1 - low, 1 + high) * A)


def dual(loss: Tensor, A: Tensor, c: float) -> Tensor:
    return torch.where(A < 0, torch.minimum(loss, -c * A), loss)


def gspo(t: Tokens, base: Tensor) -> Tensor:
    return bounded(t.mean(t.new - base).exp().expand_as(t.A), t.A)


def gspo_token(t: Tokens) -> Tensor:
    s = t.mean(t.new - t.old).detach()
    return bounded((t.new - t.new.detach() + s).exp(), t.A)


def cispo(t: Tokens, base: Tensor, least: float, most: float) -> Tensor:
    return -(t.new - base).exp().clamp(least, most).detach() * t.A * t.new


def loglinear(t: Tokens) -> Tensor:
    """The proximal policy one version behind the current one, the sampler ``lag`` behind."""
    version = 100
    behave, proximal = (version - t.lag).double(), version - 1
    alpha = torch.where(t.lag > 0, (proximal - behave) / (version - behave), t.A.new_zeros(()))
    return t.rollout + alpha * (t.new.detach() - t.rollout)


def sapo(t: Tokens, base: Tensor) -> Tensor:
    tau = torch.where(t.A > 0, t.A.new_tensor(1.0), t.A.new_tensor(1.05))
    return -torch.sigmoid(tau * ((t.new - base).exp() - 1)) * 4 / tau * t.A


def up_to(w: Tensor, most: float) -> Tensor:
    """A ratio whose value stops at a cap and whose gradient is that of its logarithm there, too."""
    return w.detach().clamp(max=most) * w / w.detach()


def masked_away(t: Tokens, delta: float, one_sided: bool, most: float = torch.inf) -> Tensor:
    """-w A of the policy that sampled, without the tokens whose probability moved too far."""
    gap = t.new.detach().exp() - t.rollout.exp()
    away = torch.where(t.A > 0, gap, -gap) if one_sided else gap.abs()
    dropped = away > delta
    return -up_to((t.new - t.rollout).exp(), most) * t.A * ~dropped


def tv_mask(t: Tokens) -> Tensor:
    """A token goes if its sequence is beyond the bound and its step would lead on."""
    apart = t.old - t.rollout
    far = t.mean((apart.exp() - 1).abs()) > 1.2
    dropped = far & (apart.sign() * t.A > 0)
    return truncated(t, 2.0) * ppo(t, t.old, 0.2, 0.272) * ~dropped


def segment_filter(t: Tokens) -> Tensor:
    """A run of unmasked tokens goes if its geometric mean of old / sampler is out of bounds."""
    kept = torch.zeros_like(t.m)
    for row, mask in enumerate(t.m.tolist()):
        for own, run in itertools.groupby(range(len(mask)), key=mask.__getitem__):
            places = [*run]
            ratio = (t.old - t.rollout)[row, places].mean().exp()
            kept[row, places] = bool(own and 0.8 <= ratio <= 1.2)
    return ppo(t, t.old) * kept


def paid(t: Tokens, price: float) -> Tokens:
    """The sampler's k1 to the reference, less its mean over all tokens, in the advantage."""
    kl = t.rollout - t.ref
    return dataclasses.replace(t, A=t.A + price * (t.everywhere(kl) - kl))


def squared(t: Tokens, base: Tensor) -> Tensor:
    return (t.new - base) ** 2


def prime_icepop(t: Tokens) -> Tensor:
    w = (t.new - t.rollout).exp()
    return -w * t.A * ((w >= 0.2) & (w <= 5.0))


def rollout_is(t: Tokens) -> Tensor:
    w = (t.new - t.rollout).exp()
    calibrated = torch.where((w > 0.8) & (w < 1.2), w, 0.0).detach()
    return -calibrated * t.A * t.new


def truncated(t: Tokens, most: float) -> Tensor:
    return (t.old - t.rollout).exp().clamp(max=most)


def within(t: Tokens, least: float, most: float) -> Tensor:
    rho = (t.old - t.rollout).exp()
    return rho * ((rho >= least) & (rho <= most))


def opsm(t: Tokens, delta: float) -> Tensor:
    return 1.0 - ((t.A < 0) & (t.mean(t.old - t.new.detach()) > delta)).double()


def covariance(t: Tokens) -> Tensor:
    new = t.new.detach()
    return (t.A - t.everywhere(t.A)) * (new - t.everywhere(new))


def clip_cov(t: Tokens) -> Tensor:
    """With every candidate dropped."""
    w = (t.new - t.old).exp()
    cut = -w.clamp(0.8, 1.2) * t.A > -w * t.A
    candidate = (covariance(t) > 1) & (covariance(t) < 5) & ~cut
    return ppo(t, t.old) * ~candidate


def kl_cov(t: Tokens, share: float, beta: float) -> Tensor:
    x = t.new - t.old
    cov = covariance(t).masked_fill(~t.m, -torch.inf)
    number = max(1, int(int(t.m.sum()) * share))
    least = cov.flatten().topk(number).values[-1]
    return -x.exp() * t.A + beta * x.abs() * (cov >= least)


def dro(t: Tokens, base: Tensor, beta: float) -> Tensor:
    return -(t.new * t.A - 0.5 * beta * squared(t, base))


def score_centered(t: Tokens, weight: Callable[[Tensor], Tensor]) -> Tensor:
    """The paper's appendix: a head of k tokens, and a tail that is the trainer's, rescaled."""
    p, q = t.p.detach().exp(), t.q.exp()
    rho = (1 - q.sum(2)).clamp(min=1e-6) / (1 - p.sum(2)).clamp(min=1e-6)
    alpha = rho * weight(1 / rho)
    residual = q * weight(p / q) - alpha[..., None] * p
    residual = torch.where(t.m[..., None], residual, 0.0)
    own = weight((t.new - t.rollout).exp().detach())
    return -t.A * (own * t.new - (residual * t.p).sum(2))


def ipo_centered(t: Tokens) -> Tensor:
    """prime-rl's: over the set that was kept, weighed and masked as the sampled token is."""
    p, q = t.p.detach().exp(), t.q.exp()
    coefficient = torch.where((p - q).abs() <= 0.3, q * (p / q).clamp(max=1e4), 0.0)
    return masked_away(t, 0.3, one_sided=False, most=1e4) + t.A * (coefficient * t.p).sum(2)


def dppo_centered(t: Tokens) -> Tensor:
    """SkyRL 0.5's: the same, a candidate masked where it has moved too far with the advantage."""
    p, q = t.p.detach().exp(), t.q.exp()
    away = torch.where(t.A[..., None] > 0, p - q, q - p)
    coefficient = torch.where(away <= 0.2, p, 0.0)
    return masked_away(t, 0.2, one_sided=True) + t.A * (coefficient * t.p).sum(2)


def alone(w: Tensor) -> Tensor:
    return torch.ones_like(w)


def at_most_two(w: Tensor) -> Tensor:
    return w.clamp(max=2.0)


def band(low: float, high: float) -> Callable[[Tensor], Tensor]:
    return lambda w: w * ((w >= low) & (w <= high))


PLAIN: Callable[[Tokens], Tensor] = lambda t: ppo(t, t.old)  # noqa: E731

FORMULAS: dict[tuple[str, str], Callable[[Tokens], Any]] = {
    ("prime-rl", "ipo"): lambda t: masked_away(t, 0.3, one_sided=False, most=1e4),
    ("prime-rl", "icepop"): prime_icepop,
    ("prime-rl", "ppo"): prime_ppo,
    ("prime-rl", "cispo"): lambda t: cispo(t, t.rollout, 0.0, 5.0),
    ("prime-rl", "ipo+sc"): ipo_centered,
    ("prime-rl", "ipo+kl"): lambda t: (
        masked_away(t, 0.1, one_sided=False) + 1e-3 * squared(t, t.rollout)
    ),
    ("prime-rl", "dppo+kl"): lambda t: (
        masked_away(t, 0.2, one_sided=True) + 1e-3 * squared(t, t.rollout)
    ),
    ("skyrl", "dppo+sc"): dppo_centered,
    ("skyrl", "regular"): PLAIN,
    ("skyrl", "dual_clip"): lambda t: dual(ppo(t, t.old), t.A, 3.0),
    ("skyrl", "gspo"): gspo_token,
    ("skyrl", "sapo"): lambda t: sapo(t, t.old),
    ("skyrl", "cispo"): lambda t: cispo(t, t.old, 0.0, 5.0),
    ("skyrl", "cispo rollout"): lambda t: cispo(t, t.rollout, 0.0, 5.0),
    ("skyrl", "rollout_is"): rollout_is,
    ("skyrl", "dppo"): lambda t: masked_away(t, 0.2, one_sided=True),
    ("skyrl", "importance_sampling"): lambda t: -(t.new - t.old).exp() * t.A,
    ("skyrl", "reinforce+sc"): lambda t: score_centered(t, alone),
    ("skyrl", "rollout_is+sc"): lambda t: score_centered(t, band(0.8, 1.2)),
    ("skyrl", "clip_cov"): clip_cov,
    ("skyrl", "kl_cov"): lambda t: kl_cov(t, 0.2, 1.0),
    ("openrlhf", "ppo"): PLAIN,
    ("openrlhf", "gspo"): lambda t: gspo(t, t.old),
    ("openrlhf", "tis"): lambda t: (t.old - t.rollout).exp().clamp(0.5, 5.0) * ppo(t, t.old),
    ("openrlhf", "seq-mask-tis"): lambda t: (
        (t.old - t.rollout).exp()
        * ((t.mean(t.old - t.rollout).exp() >= 0.5) & (t.mean(t.old - t.rollout).exp() <= 5.0))
        * ppo(t, t.old)
    ),
    ("openrlhf", "icepop"): lambda t: within(t, 0.5, 5.0) * ppo(t, t.old),
    ("nemo-rl", "grpo"): PLAIN,
    ("nemo-rl", "gspo"): lambda t: gspo(t, t.old),
    ("nemo-rl", "cispo"): lambda t: cispo(t, t.old, 0.8, 1.2),
    ("nemo-rl", "reinforce"): lambda t: torch.maximum(-t.A * t.new, -t.A * t.new),
    ("nemo-rl", "tis"): lambda t: truncated(t, 2.0) * ppo(t, t.old),
    ("nemo-rl", "icepop"): lambda t: within(t, 0.5, 5.0) * ppo(t, t.old),
    ("nemo-rl", "sequence error mask"): lambda t: (
        ppo(t, t.old) * (t.mean((t.rollout - t.old).abs().exp()) <= 1.5)
    ),
    ("slime", "grpo"): PLAIN,
    ("slime", "gspo"): lambda t: gspo(t, t.old),
    ("slime", "cispo"): lambda t: cispo(t, t.old, 0.8, 1.2),
    ("slime", "tis"): lambda t: truncated(t, 2.0) * ppo(t, t.old),
    ("slime", "opsm"): lambda t: opsm(t, 1e-4) * ppo(t, t.old),
    ("areal", "ppo"): lambda t: ppo(t, t.rollout),
    ("areal", "decoupled"): PLAIN,
    ("areal", "decoupled+mask"): lambda t: within(t, 0.0, 5.0) * ppo(t, t.old),
    ("areal", "loglinear"): lambda t: ppo(t, loglinear(t)),
    ("areal", "gspo"): lambda t: gspo(t, t.rollout),
    ("areal", "sapo"): lambda t: sapo(t, t.rollout),
    ("tinker", "importance_sampling"): lambda t: -(t.new - t.rollout).exp() * t.A,
    ("tinker", "kl_penalty"): lambda t: -(t.new - t.rollout).exp() * paid(t, 0.01).A,
    ("tinker", "ppo"): lambda t: ppo(t, t.rollout),
    ("tinker", "cispo"): lambda t: cispo(t, t.rollout, 0.0, 4.0),
    ("tinker", "dro"): lambda t: dro(t, t.rollout, 0.05),
    ("art", "cispo"): lambda t: cispo(t, t.rollout, 0.0, 5.0),
    ("art", "ppo"): lambda t: ppo(t, t.rollout),
    ("art", "kl_penalty"): lambda t: cispo(paid(t, 1.0), t.rollout, 0.0, 5.0),
    ("unsloth", "bnpo"): PLAIN,
    ("unsloth", "grpo"): PLAIN,
    ("unsloth", "dr_grpo"): PLAIN,
    ("unsloth", "dapo"): lambda t: ppo(t, t.old, 0.2, 0.28),
    ("unsloth", "sapo"): lambda t: sapo(t, t.old),
    ("torchtitan", "score_centering"): lambda t: score_centered(t, at_most_two),
    ("torchtitan", "sc alone"): lambda t: score_centered(t, alone),
    ("miles", "score_centering"): lambda t: score_centered(t, alone),
    ("miles", "sc+tis"): lambda t: score_centered(t, at_most_two),
    ("miles", "sc+mis"): lambda t: score_centered(t, band(0.5, 5.0)),
    ("open-instruct", "dapo"): lambda t: truncated(t, 2.0) * ppo(t, t.old, 0.2, 0.272),
    ("open-instruct", "cispo"): lambda t: truncated(t, 2.0) * cispo(t, t.old, 0.0, 1.272),
    ("open-instruct", "uncorrected"): lambda t: ppo(t, t.old, 0.2, 0.272),
    ("open-instruct", "tv mask"): tv_mask,
    ("roll", "token"): PLAIN,
    ("roll", "seq"): lambda t: gspo(t, t.old),
    ("roll", "dual_clip"): lambda t: dual(ppo(t, t.old), t.A, 1.4),
    ("roll", "segment filter"): segment_filter,
    ("roll", "probability filter"): lambda t: (
        ppo(t, t.old) * ((t.old.exp() - t.rollout.exp()).abs() <= 0.2)
    ),
}
