"""Heads that change their logits: soft-caps, factors, rows without a token; against dense ones."""

from typing import Any

import pytest
import torch
from test_head import inputs, small_tiles  # noqa: F401
from torch import Tensor

from trustclip.head import Head, exact, exact_kl, score, selected_logprobs, topk
from trustclip.head.logprobs import Plan, scored
from trustclip.head.softmax import exp
from trustclip.head.topk import logp_of

T, SCALE, CAP = 0.7, 1.6, 2.5


pytestmark = pytest.mark.usefixtures("small_tiles")


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, cap: float | None) -> Tensor:
    """What a model computes, and its sampler divides by T."""
    z = SCALE * (hidden @ weight.T + (0 if bias is None else bias))
    return (z if cap is None else cap * torch.tanh(z / cap)) / T


@pytest.mark.parametrize("cap", [None, CAP, 30.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("trained", [(True, False), (True, True), (False, True)])
def test_values_and_gradients(cap: float | None, biased: bool, trained: tuple[bool, bool]) -> None:
    hidden, weight, ids, bias = inputs()
    g, h = torch.randn(2, len(ids), dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(ours: bool) -> list[Tensor]:
        leaves = [x.clone() for x in (hidden, weight, bias)]
        for leaf, wanted in zip(leaves, (*trained, trained[1] and biased), strict=True):
            leaf.requires_grad_(wanted)
        of, b = leaves[:2], leaves[2] if biased else None
        if ours:
            head = Head.of(of[1], b, temperature=T, scale=SCALE, softcap=cap)
            logp, entropy = selected_logprobs(of[0], head, ids)
        else:
            whole = logits(of[0], of[1], b, cap).log_softmax(-1)
            logp = whole.gather(1, ids[:, None]).squeeze(1)
            entropy = -(whole.exp() * whole).sum(-1)
        assert entropy is not None
        alone = torch.autograd.grad(logp @ g, of[not trained[0]], retain_graph=True)
        (logp @ g + entropy @ h).backward()
        grads = [x.grad for x in leaves if x.grad is not None]
        return [logp.detach(), entropy.detach(), *alone, *grads]

    for got, want in zip(run(True), run(False), strict=True):
        assert (got - want).abs().max() <= 1e-12 * want.abs().max()


@pytest.mark.parametrize("order", ["old_new", "new_old"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_exact_kl(order: Any, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exact.CHUNK_LOGITS, "cpu", 1500)  # chunks of two rows, and a last one
    new, weight, _, bias = inputs()
    old = new + 0.3 * torch.randn_like(new)
    before = None if frozen else weight + 0.1 * torch.randn_like(weight)
    head = Head.of(weight, bias, temperature=T, scale=SCALE, softcap=CAP)
    got = exact_kl(new, old, head, before, order)
    p = logits(new, weight, bias, CAP).log_softmax(-1)
    q = logits(old, weight if before is None else before, bias, CAP).log_softmax(-1)
    first, second = (q, p) if order == "old_new" else (p, q)
    torch.testing.assert_close(got, (first.exp() * (first - second)).sum(-1), rtol=1e-10, atol=0)


@pytest.mark.parametrize("k", [1, 4, 699])
def test_the_likeliest_tokens(k: int) -> None:
    new, weight, ids, bias = inputs()
    head = Head.of(weight, bias, temperature=T, scale=SCALE, softcap=CAP)
    want = logits(new, weight, bias, CAP).log_softmax(-1)
    top, logp = topk(new, head, k)
    torch.testing.assert_close((logp, top), tuple(want.topk(k)))
    plain = ((new @ weight.T + bias) / T).log_softmax(-1).topk(k)
    found = topk(new, weight, k, bias=bias, temperature=T)
    torch.testing.assert_close(found, (plain.indices, plain.values))
    scores = scored(head, new, ids, Plan(collision=True))
    torch.testing.assert_close(scores.collision, want.exp().square().sum(-1), rtol=1e-12, atol=0)
    log_partition = scores.log_partition
    torch.testing.assert_close(logp_of(new, log_partition, head, top), want.gather(1, top))


@pytest.mark.parametrize("cap", [None, CAP])
def test_rows_that_no_token_has_count_or_are_cut_off(cap: float | None) -> None:
    """A model's own loss counts them; a slice leaves them out, in values and in gradients."""
    hidden, weight, ids, _ = inputs()
    ids, tokens = ids % 611, 611
    weight.requires_grad_()
    head = Head.of(weight[:tokens], temperature=T, scale=SCALE, softcap=cap)
    logp, _ = selected_logprobs(hidden, head, ids)
    cut = logits(hidden, weight, None, cap).index_fill(1, torch.arange(tokens, 700), -torch.inf)
    want = cut.log_softmax(-1).gather(1, ids[:, None]).squeeze(1)
    torch.testing.assert_close(logp, want, rtol=1e-12, atol=0)
    got, ref = (torch.autograd.grad(x.sum(), weight, retain_graph=True)[0] for x in (logp, want))
    torch.testing.assert_close(got, ref, rtol=1e-11, atol=1e-13)
    assert not got[tokens:].any() and got[:tokens].any()
    whole, _ = selected_logprobs(hidden, Head.of(weight, softcap=cap), ids)
    assert (whole < selected_logprobs(hidden, Head.of(weight[:tokens], softcap=cap), ids)[0]).all()


def test_what_makes_no_head_is_refused() -> None:
    hidden, weight, ids, bias = inputs()
    for wrong, error in (
        ({"softcap": -1.0}, "cap of logits must be positive"),
        ({"softcap": 0.0}, "cap of logits must be positive"),
        ({"scale": 0.0}, "`scale` must be positive"),
        ({"temperature": 0.0}, "`temperature` must be positive"),
    ):
        with pytest.raises(ValueError, match=error):
            Head.of(weight, bias, **wrong)
    head = Head.of(weight, softcap=CAP)
    with pytest.raises(ValueError, match=r"give them to Head\.of"):
        selected_logprobs(hidden, head, ids, temperature=0.5)
    with pytest.raises(ValueError, match="not linear in `hidden`"):
        score(hidden, head, ids, mean=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_exponential_by_powers_of_two_is_right_where_it_counts(dtype):
    """Relative to 1, the largest there is, to the last digit; relative to itself, to |x| steps."""
    x = -torch.cat([torch.zeros(1), torch.logspace(-8, 1.94, 20_000)]).to(dtype)
    got, want = exp(x, torch.empty_like(x)).double(), x.double().exp()
    step = torch.finfo(dtype).eps
    assert (got - want).abs().max() <= step
    assert ((got / want - 1).abs() <= step * (1 + x.double().abs())).all()
    far = torch.tensor([-1e4, -1e30, -torch.inf], dtype=dtype)
    assert not exp(far, torch.empty_like(far)).any()
