"""`centered` against dense distributions: every token of a small vocabulary, by autograd alone.

The oracle here knows no candidates: it has whole distributions, states a method's weight as a
formula of them, and lets autograd differentiate the sum over every token that could be drawn.
"""

import dataclasses
import typing
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from method_cases import candidates_for, random_batch
from torch import Tensor

import trustclip as tc
from trustclip.constraints import drift
from trustclip.constraints.candidates import Candidates
from trustclip.constraints.diagnostics import token_metrics

Weight = typing.Callable[..., Tensor]
VOCABULARY, TIME = 18, 6


@dataclasses.dataclass(frozen=True)
class Dense:
    """Whole distributions at [1, TIME] positions, a sampled token and an advantage at each."""

    logits: Tensor
    old: Tensor
    sampler: Tensor
    sampled: Tensor
    advantages: Tensor

    @classmethod
    def drawn(cls, seed: int, kept: int = VOCABULARY, far: float = 0.6) -> "Dense":
        torch.manual_seed(seed)
        z = 1.5 * torch.randn(1, TIME, VOCABULARY, dtype=torch.float64)
        old, sampler = (z + far * torch.randn_like(z) for _ in range(2))
        least = sampler.topk(kept, dim=2).values[..., -1:]
        sampler = torch.where(sampler >= least, sampler, -torch.inf)
        q = sampler.softmax(dim=2)
        sampled = torch.multinomial(q[0], 1)[None, :, 0]
        advantages = torch.tensor([1.0, -1.0, 0.5, -2.0, 0.0, 1.5], dtype=torch.float64)[None]
        return cls(z.requires_grad_(), old.log_softmax(dim=2), q.log(), sampled, advantages)

    @property
    def logp(self) -> Tensor:
        return self.logits.log_softmax(dim=2)

    def at(self, x: Tensor, ids: Tensor) -> Tensor:
        return x.gather(2, ids if ids.dim() == 3 else ids[..., None])

    def batch(self, ids: Tensor, partial: bool) -> tc.TokenBatch:
        """What an engine hands over: numbers of some tokens of each position."""
        all_of = (self.logp, self.old, self.sampler)
        collision = self.logp.exp().square().sum(dim=2).detach()
        given: Any = {"partial": partial, "collision": collision}
        candidates = Candidates(*(self.at(x, ids) for x in all_of), **given)
        logp, old, sampler = (self.at(x, self.sampled).squeeze(2) for x in all_of)
        mask = torch.ones(1, TIME, dtype=torch.bool)
        return tc.TokenBatch(
            logp, old, self.advantages, mask, logp_rollout=sampler, candidates=candidates
        )

    def modelled(self, ids: Tensor) -> "Dense":
        """The same where, beyond some tokens, old and sampler are the policy rescaled."""
        p = self.logp.detach().exp()
        among = torch.zeros_like(p, dtype=torch.bool).scatter(2, ids, True)

        def rescaled(log: Tensor) -> Tensor:
            mass = 1 - torch.where(among, log.exp(), 0.0).sum(dim=2, keepdim=True)
            rest = torch.where(among, 0.0, p)
            return torch.where(among, log.exp(), rest * mass / rest.sum(dim=2, keepdim=True)).log()

        return dataclasses.replace(self, old=rescaled(self.old), sampler=rescaled(self.sampler))

    def centered(self, weight: Weight, sampled_by: "Dense | None" = None) -> Tensor:
        """Gradient in the logits of sum_t A (c_y log p_y - sum_v q_v c_v log p_v)."""
        logp, a = self.logp, self.advantages[..., None]
        fixed = logp.detach()
        own = self if sampled_by is None else sampled_by
        c_own = weight(fixed, own.old, own.sampler, a)
        c = weight(fixed, self.old, self.sampler, a)
        q = self.sampler.exp()
        drifted = torch.where(q > 0, q * c * logp, 0.0).sum(dim=2)
        score = self.at(torch.nan_to_num(c_own) * logp, self.sampled).squeeze(2)
        return torch.autograd.grad((self.advantages * (score - drifted)).sum(), self.logits)[0]


def importance(logp: Tensor, old: Tensor, sampler: Tensor, a: Tensor) -> Tensor:
    return (logp - old).exp()


def reinforce(logp: Tensor, old: Tensor, sampler: Tensor, a: Tensor) -> Tensor:
    return torch.ones_like(logp)


def gated(low: float, high: float) -> Weight:
    def weight(logp: Tensor, old: Tensor, sampler: Tensor, a: Tensor) -> Tensor:
        w = (logp - old).exp()
        cut = ((a > 0) & (w > high)) | ((a < 0) & (w < low))
        return torch.where(cut, 0.0, w)

    return weight


def truncated(logp: Tensor, old: Tensor, sampler: Tensor, a: Tensor) -> Tensor:
    return (old - sampler).exp().clamp(max=2.0) * gated(0.8, 1.2)(logp, old, sampler, a)


def total_variation(logp: Tensor, old: Tensor, sampler: Tensor, a: Tensor) -> Tensor:
    w = (logp - old).exp()
    cut = ((logp.exp() - old.exp()).abs() > 0.08) & ((w - 1) * a > 0)
    return torch.where(cut, 0.0, w.clamp(max=20.0))


L, U = oracle.log_interval(oracle.k3, 0.07)
CASES: dict[str, tuple[Any, Weight]] = {
    "none": ("importance_sampling", importance),
    "reinforce": ("reinforce", reinforce),
    "clip": ("clip", gated(0.8, 1.2)),
    "atr": ("atr", gated(float(np.exp(L)), float(np.exp(U)))),
    "tis": ({"name": "tis", "inner": "clip"}, truncated),
    "dppo": ({"name": "dppo", "delta": 0.08}, total_variation),
}
ALL_IDS = torch.arange(VOCABULARY).expand(1, TIME, VOCABULARY)


def gradient(inner: Any, dense: Dense, batch: tc.TokenBatch) -> Tensor:
    """Of the loss as a user computes it, in the logits."""
    method = tc.method("centered", inner=inner)
    value = tc.policy_loss(method, batch, "dr_grpo", max_length=1).value
    return -torch.autograd.grad(value, dense.logits, retain_graph=True)[0]


@pytest.mark.parametrize("kept", [None, 7])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_over_the_whole_vocabulary_or_the_set_that_the_sampler_kept(name, seed, kept) -> None:
    """Top-k 7 of 18; the others are drawn by no one, however likely for the trainer."""
    inner, weight = CASES[name]
    dense = Dense.drawn(seed, kept=kept) if kept else Dense.drawn(seed)
    ids = dense.sampler.topk(9, dim=2).indices if kept else ALL_IDS  # padded: three are -inf
    got = gradient(inner, dense, dense.batch(ids, partial=False))
    torch.testing.assert_close(got, dense.centered(weight), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_over_the_likeliest_with_a_model_of_the_rest(name: str, seed: int) -> None:
    inner, weight = CASES[name]
    dense = Dense.drawn(seed)
    ids = dense.sampler.topk(9, dim=2).indices
    got = gradient(inner, dense, dense.batch(ids, partial=True))
    want = dense.modelled(ids).centered(weight, sampled_by=dense)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_statistics_are_those_of_the_sampled_tokens(seed: int) -> None:
    """Clip-Cov that drops all of high covariance, about the means of what was sampled."""
    dense = Dense.drawn(seed)
    sampled = dense.at(dense.logp.detach(), dense.sampled)
    mean_a, mean_logp = dense.advantages.mean(), sampled.mean()

    def weight(logp: Tensor, old: Tensor, sampler: Tensor, a: Tensor) -> Tensor:
        covariance = (a - mean_a) * (logp - mean_logp)
        dropped = (covariance > 0.1) & (covariance < 3)
        return torch.where(dropped, 0.0, gated(0.5, 1.5)(logp, old, sampler, a))

    cov = {"name": "clip_cov", "low": 0.5, "high": 0.5, "share": 1.0, "cov_low": 0.1, "cov_high": 3}
    keys = torch.arange(TIME)[None]
    batch = dataclasses.replace(dense.batch(ALL_IDS, partial=False), keys=keys)
    got = gradient(cov, dense, batch)
    torch.testing.assert_close(got, dense.centered(weight), rtol=0, atol=1e-12)


def test_a_rewarded_token_beyond_the_bound_goes_on_to_rise() -> None:
    q = torch.tensor([0.2, 0.3, 0.2, 0.2, 0.1], dtype=torch.float64)
    p = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)  # 2.5 q at the first
    z = p.log().requires_grad_()
    logp, one = z.log_softmax(0)[None, None], torch.ones(1, 1, dtype=torch.float64)
    among = Candidates(logp, q.log()[None, None], q.log()[None, None])
    batch = tc.TokenBatch(logp[..., 0], q.log()[None, :1], one, one > 0, candidates=among)
    for method in ({"name": "clip", "epsilon": 0.2}, {"name": "atr", "delta": 0.07}):
        surrogate = tc.method("centered", inner=method).surrogate(batch)
        assert not surrogate.kept.any()
        (found,) = torch.autograd.grad(surrogate.objective.sum(), z, retain_graph=True)
        cut = torch.tensor([0.5, 0, 0, 0, 0], dtype=torch.float64)  # p of what the gate cuts
        torch.testing.assert_close(found, cut - cut.sum() * p, rtol=0, atol=1e-12)


# Published implementations -----------------------------------------------------------------------


def released(dense: Dense, ids: Tensor, weight: typing.Callable[[Tensor], Tensor]) -> Tensor:
    """The authors' loss, which verl, miles, torchtitan and vime have as well: one ratio p/q."""
    head, own = dense.at(dense.logp, ids), dense.at(dense.logp, dense.sampled).squeeze(2)
    sampler, sampled = dense.at(dense.sampler, ids), dense.at(dense.sampler, dense.sampled)
    p, q = head.detach().exp(), sampler.exp()
    rho = (1 - q.sum(dim=2)).clamp(min=1e-6) / (1 - p.sum(dim=2)).clamp(min=1e-6)
    alpha = rho * weight(1 / rho)
    residual = q * weight(p / q) - alpha[..., None] * p
    centered = weight((own.detach() - sampled.squeeze(2)).exp()) * own - (residual * head).sum(2)
    return torch.autograd.grad((dense.advantages * centered).sum(), dense.logits)[0]


@pytest.mark.parametrize(
    ("inner", "weight"),
    [
        ("reinforce", torch.ones_like),
        ("importance_sampling", lambda r: r),
        ({"name": "cispo", "low": 1.0, "high": 1.0}, lambda r: r.clamp(max=2.0)),
        (
            {"name": "icepop", "inner": "importance_sampling", "policy": "new"},
            lambda r: torch.where((r >= 0.5) & (r <= 5.0), r, 0.0),
        ),
    ],
    ids=["none", "importance", "truncated", "masked"],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_authors_loss(inner: Any, weight: Any, seed: int) -> None:
    """Their one ratio is of the policy to the sampler: the sampler is the old policy, too."""
    dense = Dense.drawn(seed)
    dense = dataclasses.replace(dense, old=dense.sampler)
    ids = dense.sampler.topk(6, dim=2).indices
    got = gradient(inner, dense, dense.batch(ids, partial=True))
    torch.testing.assert_close(got, released(dense, ids, weight), rtol=0, atol=1e-10)


# The fields --------------------------------------------------------------------------------------


def test_masked_and_missing_candidates_never_matter() -> None:
    dense = Dense.drawn(1)
    batch = dense.batch(ALL_IDS, partial=False)
    mask = batch.mask.clone()
    mask[0, 3] = False
    masked = dataclasses.replace(batch, mask=mask)
    want = gradient("clip", dense, masked)
    assert not want[0, 3].any() and want[0, 2].any()
    dirt = torch.full((1, TIME, VOCABULARY), 0.0, dtype=torch.float64)
    dirt[0, 3] = torch.nan
    assert batch.candidates is not None
    dirty = dataclasses.replace(batch.candidates, collision=None).map(lambda x: x + dirt)
    got = gradient("clip", dense, dataclasses.replace(masked, candidates=dirty))
    assert torch.equal(got, want)
    # A position for which the sampler gave none: as the method inside.
    none = dirt.clone()
    none[0, 5], none[0, 3] = torch.nan, 0.0
    without = dataclasses.replace(
        batch.candidates, logp_rollout=batch.candidates.logp_rollout + none
    )
    got = gradient("clip", dense, dataclasses.replace(batch, candidates=without))
    plain = tc.policy_loss("clip", batch, "dr_grpo", max_length=1).value
    want = -torch.autograd.grad(plain, dense.logits)[0]
    torch.testing.assert_close(got[0, 5], want[0, 5])
    assert not torch.allclose(got[0, 2], want[0, 2])


def test_a_candidate_that_is_not_finite_reaches_the_gradient() -> None:
    dense = Dense.drawn(1)
    batch = dense.batch(ALL_IDS, partial=False)
    assert batch.candidates is not None
    for name in ("logp", "logp_old"):
        value = getattr(batch.candidates, name).clone()
        value[0, 2, 5] = torch.nan
        broken = dataclasses.replace(batch.candidates, **{name: value})
        loss = tc.policy_loss(
            tc.method("centered", inner="clip"), dataclasses.replace(batch, candidates=broken)
        )
        assert loss.value.isnan()
        assert loss.metrics["nonfinite"][0].item() == 1


def test_what_cannot_be_centered_is_named() -> None:
    with pytest.raises(ValueError, match=r"'gspo' cannot be centered: a token's coefficient"):
        tc.method("centered", inner="gspo")
    with pytest.raises(ValueError, match=r"'penalty' cannot be centered: it moves tokens without"):
        tc.method("centered", inner={"name": "penalty"})
    with pytest.raises(ValueError, match=r"likeliest tokens and the sampled one"):
        tc.method("centered", inner={"name": "dppo", "divergence": "top_k_tv"})
    with pytest.raises(ValueError, match=r"centered\(inner=tis\(\.\.\.\)\)"):
        tc.method("tis", inner={"name": "centered"})
    with pytest.raises(ValueError, match=r"needs `candidates` in the batch; it comes from"):
        tc.policy_loss(tc.method("centered"), random_batch(tc.method("clip")))
    with pytest.raises(ValueError, match=r"must be Candidates of \[8, 11\] tokens, got torch"):
        batch = random_batch(tc.method("clip"))
        dataclasses.replace(batch, candidates=typing.cast(Any, batch.logp))
    x = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"floating point \[1, 2, 3\], got .* \[1, 2, 2\]"):
        Candidates(x, x, x[..., :2])


def test_a_penalty_is_added_to_the_centered_method() -> None:
    dense = Dense.drawn(2)
    batch = dense.batch(ALL_IDS, partial=False)
    method = tc.method("centered", inner="clip") + tc.penalty("k2", 0.3)
    value = tc.policy_loss(method, batch, "dr_grpo", max_length=1).value
    got = -torch.autograd.grad(value, dense.logits, retain_graph=True)[0]
    price = 0.3 * (batch.logp - batch.logp_old).square().sum() / 2
    want = gradient("clip", dense, batch) - torch.autograd.grad(price, dense.logits)[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_packed_sequences_have_the_candidates_of_padded_ones() -> None:
    lengths = torch.tensor([2, 4])
    dense = Dense.drawn(3)
    batch = dense.batch(ALL_IDS, partial=False)
    flat = {n: getattr(batch, n)[0] for n in ("logp", "logp_old", "advantages", "logp_rollout")}
    packed = tc.TokenBatch.packed(**flat, lengths=lengths, candidates=batch.candidates)
    want = gradient("atr", dense, batch)
    value = tc.policy_loss(
        tc.method("centered", inner="atr"), packed, "dr_grpo", max_length=1
    ).value
    got = -torch.autograd.grad(value * 2, dense.logits)[0]  # a mean over two sequences
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


# The ledger --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kept", [VOCABULARY, 7])
@pytest.mark.parametrize("partial", [False, True])
def test_the_ledger_is_that_of_dense_gradients(name: str, kept: int, partial: bool) -> None:
    """Squares in the logits of the whole vocabulary, whatever the candidates are."""
    inner, weight = CASES[name]
    dense = Dense.drawn(7, kept=VOCABULARY if partial else kept)
    ids = dense.sampler.topk(kept, dim=2).indices
    if partial:
        among = torch.zeros_like(dense.old, dtype=torch.bool).scatter(2, ids, True)
        inside = dense.at(among, dense.sampled).squeeze(2)  # elsewhere its own numbers enter, too
        dense = dataclasses.replace(
            dense.modelled(ids), sampled=torch.where(inside, dense.sampled, ids[..., 0])
        )
    batch = dense.batch(ids, partial=partial)
    method = tc.as_method(inner)
    found = token_metrics(batch, method.surrogate(batch), method)
    p, q = dense.logp.detach().exp(), dense.sampler.exp()
    a = dense.advantages[..., None]
    c = torch.nan_to_num(weight(p.log(), dense.old, dense.sampler, a)) * a
    inside = q * torch.where(q > 0, c, 0.0)
    d = inside - inside.sum(dim=2, keepdim=True) * p
    e = torch.nn.functional.one_hot(dense.sampled, VOCABULARY).to(p)
    g = dense.at(c, dense.sampled) * (e - p)
    rtol = 1e-5 if partial else 1e-9  # the least mass beyond
    for key, value in {"size": d, "signal": g - d}.items():
        want = value.square().sum()
        torch.testing.assert_close(found[f"drift/{key}"][0], want, rtol=rtol, atol=1e-10)
    pull = (inside * (q / p - 1)).sum(dim=2)
    torch.testing.assert_close(found["drift/pull"][0], pull.sum(), rtol=1e-9, atol=1e-10)
    for sign, some in (("positive", a > 0), ("negative", a < 0)):
        some = some.squeeze(2)
        total, size = found[f"drift/pull_{sign}"]
        torch.testing.assert_close(total, pull[some].sum(), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(size, dense.advantages.abs()[some].sum())
    centered = tc.method("centered", inner=inner)
    same = token_metrics(batch, centered.surrogate(batch), centered)
    assert same["drift/size"][0] == found["drift/size"][0]
    assert "drift/size" not in token_metrics(batch, method.surrogate(batch), tc.method("gspo"))


def test_candidates_of_a_part_of_the_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tc.method("icepop")
    batch = random_batch(tc.method("centered", inner=inner))
    want = drift.expected(inner, batch)
    monkeypatch.setattr(drift, "_AT_ONCE", 1)
    got = drift.expected(inner, batch)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)
    assert candidates_for(batch.logp_old).partial
