"""Blocks of the vocabulary left out of gradients: never more than said, never further off."""

import math
from typing import Any

import pytest
import torch
from on_cuda import OnCuda
from test_head import inputs
from torch.utils._python_dispatch import TorchDispatchMode

import trustclip as tc
from trustclip.head import Head, dispatch, error_bounds, product, score, selected_logprobs
from trustclip.head.logprobs import Plan, scored
from trustclip.head.skipped import lightest

TOKENS, WIDTH, VOCABULARY, BLOCK = 23, 8, 200, 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 16 columns, of which the last is not full; up to 9 rows, or 7 that are kept."""
    monkeypatch.setitem(product.NARROW, "cpu", BLOCK)
    monkeypatch.setitem(product._ROWS, "cpu", 9)
    monkeypatch.setitem(product.KEPT, "cpu", 7 * VOCABULARY)


def rows_with(logits: torch.Tensor, ids: torch.Tensor) -> tuple[Any, ...]:
    """Hidden states and weight that have these logits to rounding, of a width of V + 1."""
    g = torch.Generator().manual_seed(5)
    count = logits.shape[1]
    turn = torch.linalg.qr(torch.randn(count, count, generator=g).double())[0]
    return logits.double() @ turn, turn, ids


def problem(kind: str) -> tuple[Any, ...]:
    """(hidden, weight, ids) of one kind of rows, float64."""
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (TOKENS,), generator=g)
    ranks = torch.stack([torch.randperm(VOCABULARY, generator=g) for _ in range(TOKENS)])
    # Entropies from nearly none to a lot.
    falling = -(ranks + 1.0).log() * torch.linspace(1.2, 9, TOKENS)[:, None]
    match kind:
        case "random":
            hidden, weight, ids, _ = inputs(TOKENS, VOCABULARY, WIDTH)
            return 2 * hidden, weight, ids
        case "power laws":
            return rows_with(falling, ids)
        case "uniform":
            return rows_with(torch.zeros(TOKENS, VOCABULARY), ids)
        case "sure":
            return rows_with(60.0 * (ranks == 0), ranks.argmin(dim=1))
        case "sure of another token":
            return rows_with(60.0 * (ranks == 0), ids)
        case "blocks of the very mass":
            # The first block has nearly all, each other one a tenth of what may go, or all of it.
            mass = torch.full((TOKENS, VOCABULARY), 1e-3 / 10 / BLOCK)
            mass[1::2] = 1e-3 / BLOCK
            mass[:, :BLOCK] = 1 / BLOCK
            return rows_with(mass.log(), ids % BLOCK)
        case "rows of W alike":
            # What is left out pulls one way, along the tallest row: the bound is reached.
            hidden, weight, ids = rows_with(falling, ids % BLOCK)
            tall = torch.nn.functional.pad(weight, (0, 1))
            tall[:BLOCK] *= 1e-3
            tall[BLOCK:] = 0
            tall[BLOCK:, -1] = 1
            heads = falling.double() @ weight * 0
            heads = torch.cat([heads, torch.full((TOKENS, 1), -12.0).double()], dim=1)
            heads[:, :-1] = 1e3 * (falling[:, :BLOCK].double() @ weight[:BLOCK])
            return heads, tall, ids
    raise AssertionError(kind)


KINDS = (
    "random", "power laws", "uniform", "sure", "sure of another token", "blocks of the very mass",
    "rows of W alike",
)  # fmt: skip
#: How the gradients are made: with the logits, or by tiles made again; of what.
PATHS = ("frozen", "trained", "trained, foreseen", "trained, foreseen wrongly", "capped")


def run(given: Any, path: str, skip: float, bias: Any = None, dtype: Any = torch.float64) -> Any:
    """The coefficients, scores and gradients of hidden states, weight and bias."""
    hidden, weight, ids = (x.to(dtype) if x.is_floating_point() else x for x in given)
    hidden, weight = hidden.clone().requires_grad_(), weight.clone()
    weight.requires_grad_(path.startswith("trained"))
    if bias is not None:
        bias = bias.to(dtype).clone().requires_grad_(path.startswith("trained"))
    g = torch.Generator().manual_seed(4)
    coefficients = torch.randn(len(ids), generator=g).to(dtype)
    coefficients[5] = 0
    factor = torch.arange(len(ids)) if path.endswith("wrongly") else 1
    foresee = (lambda rows, *_: (coefficients * factor)[rows]) if "foreseen" in path else None
    cap = 30.0 if path == "capped" else None
    head = Head(weight, bias, 0.8, cap, skip=skip)
    scores = scored(head, hidden, ids, Plan(foresee=foresee))
    (scores.logp @ coefficients).backward()
    grads = [None if x is None else x.grad for x in (hidden, weight, bias)]
    return head, coefficients, scores, grads


@pytest.mark.parametrize("skip", [1e-4, 1e-2])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_gradient_is_further_off_than_its_bound(kind, path, skip, dtype):
    given = problem(kind)
    bias = torch.linspace(-1, 1, len(given[1])).double() if kind == "random" else None
    *_, exact = run(given, path, 0.0, bias)
    *_, whole = run(given, path, 0.0, bias, dtype)
    head, g, scores, found = run(given, path, skip, bias, dtype)
    assert scores.dropped is not None and scores.dropped.max() <= skip * (1 + 1e-4)
    bounds = error_bounds(head, given[0], g, scores.dropped)
    assert bounds.hidden.max() <= g.abs().max() * skip * given[1].norm(dim=1).max() / 0.8 * 1.001
    # Products of fewer rows round logits otherwise: by some units of the last digit of the largest.
    largest = (given[0] @ given[1].T).abs().max() / 0.8
    last = 4 * torch.finfo(dtype).eps * (1 + largest) * g.abs().max()
    heights = given[1].norm(dim=1).max(), given[0].norm(dim=1).sum(), 1.0
    for bound, got, want, rounded, height in zip(bounds, found, exact, whole, heights, strict=True):
        if got is None:
            continue
        error, rounding = (
            torch.linalg.vector_norm((x - want)[:, None] if x.dim() == 1 else x - want, dim=1)
            for x in (got, rounded)
        )
        if got.shape == given[0].shape:  # a bound of each row
            assert (error <= bound + rounding.max() + last * height).all()
        else:
            assert error.sum() <= bound + rounding.sum() + last * height * TOKENS


def test_the_bound_is_reached():
    """So no smaller one holds."""
    given = problem("rows of W alike")
    *_, exact = run(given, "frozen", 0.0)
    head, g, scores, found = run(given, "frozen", 1e-2)
    dropping = scores.dropped > 1e-6
    assert dropping.sum() > 5
    error = (found[0] - exact[0]).norm(dim=1)
    bound = error_bounds(head, given[0], g, scores.dropped).hidden
    assert (error >= 0.999 * bound)[dropping].all()


@pytest.mark.parametrize("path", ["frozen", "trained", "trained, foreseen"])
def test_what_is_left_out_is_what_was_said(path):
    """The gradient is that of logits of which some blocks get none, by mass and by place."""
    hidden, weight, ids = given = problem("power laws")
    _, g, scores, found = run(given, path, 1e-2)
    p = (hidden @ weight.T / 0.8).softmax(dim=1)
    share = torch.stack([part.sum(dim=1) for part in p.split(BLOCK, dim=1)])
    kept, dropped = lightest(share, ids // BLOCK, 1e-2)
    torch.testing.assert_close(scores.dropped, dropped, rtol=1e-9, atol=1e-15)
    assert 0.2 < kept.double().mean() < 0.8 and kept.gather(0, ids[None] // BLOCK).all()
    slope = torch.nn.functional.one_hot(ids, VOCABULARY) - p
    slope = slope * kept.T.repeat_interleave(BLOCK, dim=1)[:, :VOCABULARY] * g[:, None] / 0.8
    torch.testing.assert_close(found[0], slope @ weight, rtol=1e-9, atol=1e-12)
    if found[1] is not None:
        torch.testing.assert_close(found[1], slope.T @ hidden, rtol=1e-9, atol=1e-12)


def test_log_probabilities_and_a_gradient_of_entropies_are_whole():
    hidden, weight, ids = problem("power laws")
    grads = []
    for head in (Head(weight), Head(weight, skip=1e-2)):
        leaf = hidden.clone().requires_grad_()
        logp, entropy = selected_logprobs(leaf, head, ids)
        assert entropy is not None
        (logp.sum() + entropy.sum()).backward()
        grads.append((logp.detach(), entropy.detach(), leaf.grad))
    for whole, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12)


class Products(TorchDispatchMode):
    """Operations of products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::addmm", "aten::addmm_", "aten::mm"):
            a, b = [x for x in args if isinstance(x, torch.Tensor)][-2:]
            self.count += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("path", "whole"), [("frozen", 2), ("trained", 4), ("trained, foreseen", 3), ("capped", 3)]
)
def test_a_block_left_out_costs_no_product(path, whole):
    """Sure rows keep the block of their token: of 13 blocks one, and the logits of all."""
    given = problem("sure")
    product_of = 2 * TOKENS * VOCABULARY * VOCABULARY
    with Products() as before:
        run(given, path, 0.0)
    with Products() as found:
        run(given, path, 1e-3)
    # A row without a coefficient costs nothing in a backward pass.
    assert whole * 0.95 < before.count / product_of <= whole
    assert 1 < found.count / product_of < 1 + (whole - 1) / 10


@pytest.mark.parametrize("skip", [-1e-3, 0.02, math.nan])
def test_a_mass_out_of_range_is_refused(skip):
    with pytest.raises(ValueError, match=r"`skip` must be from 0 to 0\.01"):
        Head.of(torch.eye(3), skip=skip)


def test_where_it_cannot_hold_it_is_refused():
    hidden, weight, ids = problem("random")
    with pytest.raises(ValueError, match="`mean` is of the whole vocabulary"):
        score(hidden, Head(weight, skip=1e-3), ids, mean=True)
    shard: Any = object()
    with pytest.raises(ValueError, match="ranks share"):
        Head(weight, shard=shard, skip=1e-3)


def test_rows_without_a_token_and_no_rows():
    hidden, weight, ids = problem("power laws")
    ids = ids.clone()
    ids[::3] = -100
    scores = score(hidden, Head(weight, skip=1e-2), ids)
    assert scores.dropped is not None
    assert not scores.dropped[::3].any() and (scores.dropped[1::3] > 0).any()
    none = score(hidden[:0], Head(weight, skip=1e-2), ids[:0])
    assert none.dropped is not None and none.dropped.shape == (0,)


def test_the_loss_reports_it():
    hidden, weight, ids = problem("power laws")
    old = score(hidden, weight, ids).logp[None]
    batch = tc.TokenBatch(old, old, torch.ones_like(old), torch.ones_like(old).bool())
    loss = tc.head.policy_loss("atr", hidden[None], Head(weight, skip=1e-2), ids[None], batch)
    assert loss.dropped is not None
    assert loss.dropped.shape == old.shape and 0 < loss.dropped.max() <= 1e-2
    total, count = loss.metrics["dropped"]
    assert total == loss.dropped.sum() and count == TOKENS
    plain = tc.head.policy_loss("atr", hidden[None], weight, ids[None], batch)
    assert plain.dropped is None and "dropped" not in plain.metrics


@pytest.mark.parametrize("skip", [0.0, 1e-3])
def test_fewer_rows_with_wider_tiles_have_room(skip, monkeypatch):
    """On a GPU, 4000 rows of 151,936 logits: two blocks of 2000, whose tiles are the larger."""
    monkeypatch.setattr(dispatch, "_kernels", lambda: None)
    monkeypatch.setitem(product._ROWS, "cuda", 9)
    monkeypatch.setitem(product.TILE_LOGITS, "cuda", 9 * 257)
    monkeypatch.setitem(product.KEPT, "cuda", 6 * 700)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=g).bfloat16().requires_grad_()
    weight = torch.randn(700, 5, generator=g).bfloat16().requires_grad_()
    ids = torch.arange(7)
    plan = Plan(foresee=lambda rows, *_: torch.ones(len(rows)))
    with OnCuda():
        scores = scored(Head(weight, skip=skip), hidden, ids, plan)
    want = (hidden.double() @ weight.double().T).log_softmax(1)[torch.arange(7), ids]
    assert (scores.logp - want).abs().max() < 1e-4
