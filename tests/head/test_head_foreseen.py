"""Gradients of a trained head made in the forward pass, for coefficients foreseen there."""

from typing import Any

import pytest
import torch
from on_cuda import OnCuda
from test_head import Largest, dense, inputs

from trustclip.head import dispatch, product
from trustclip.head.gradient import gradients
from trustclip.head.logprobs import Plan, scored
from trustclip.head.product import Head


@pytest.fixture
def small_tiles(monkeypatch):
    """Blocks of up to 5 rows, tiles of 256 columns: a vocabulary of 700 ends within a tile."""
    monkeypatch.setitem(product._ROWS, "cpu", 5)
    monkeypatch.setitem(product.TILE_LOGITS, "cpu", 256)


@pytest.fixture
def again(monkeypatch):
    """What backward makes again: for hidden states, weight and bias, each time."""
    from trustclip.head import logprobs

    made: list[list[bool]] = []

    def spy(head, rows, needs):
        made.append(list(needs))
        return gradients(head, rows, needs)

    monkeypatch.setattr(logprobs, "gradients", spy)
    return made


def leaves_of(dtype=torch.float64, biased=True, trained=(True, True, True)):
    hidden, weight, ids, bias = inputs()
    leaves = [hidden.to(dtype), weight.to(dtype), bias.to(dtype) if biased else None]
    for leaf, needs in zip(leaves, trained, strict=True):
        if leaf is not None:
            leaf.requires_grad_(needs)
    return leaves, ids


def run(leaves, ids, foresee, arriving, temperature=1.0, of_entropy=None) -> list[Any]:
    for leaf in leaves:
        if leaf is not None:
            leaf.grad = None
    hidden, weight, bias = leaves
    scores = scored(Head(weight, bias, temperature), hidden, ids, Plan(foresee=foresee))
    assert scores.entropy is not None
    loss = scores.logp @ arriving.to(scores.logp)
    if of_entropy is not None:
        loss = loss + scores.entropy @ of_entropy.to(scores.logp)
    loss.backward()
    return [scores.logp.detach(), *(None if x is None else x.grad for x in leaves)]


def wanted(leaves, ids, arriving, temperature=1.0, of_entropy=None) -> list[Any]:
    wide = [None if x is None else x.detach().double().requires_grad_() for x in leaves]
    logp, entropy = dense(wide[0], wide[1], ids, wide[2], temperature)
    (logp @ arriving + (0 if of_entropy is None else entropy @ of_entropy)).backward()
    return [logp.detach(), *(None if x is None else x.grad for x in wide)]


def assert_near(got, want, within):
    for x, y in zip(got, want, strict=True):
        if x is not None:
            assert (x.double() - y).abs().max() <= within * y.abs().max()


def some_coefficients():
    g = torch.Generator().manual_seed(1)
    c = torch.randn(13, generator=g, dtype=torch.float64)
    c[[2, 7]] = 0
    return c


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 4e-6)])
@pytest.mark.parametrize("scale", [1.0, -3.5])
def test_a_multiple_of_what_was_foreseen_needs_no_second_tile(
    biased, temperature, dtype, within, scale, small_tiles, again
):
    c = some_coefficients()
    leaves, ids = leaves_of(dtype, biased)
    got = run(leaves, ids, lambda rows, logp, entropy: c[rows], scale * c, temperature)
    assert again == []
    assert_near(got, wanted(leaves, ids, scale * c, temperature), within)


def test_what_is_foreseen_may_depend_on_the_token(small_tiles, again):
    leaves, ids = leaves_of()
    plain = scored(Head(leaves[1], leaves[2], 1.0), leaves[0], ids, Plan())
    assert plain.entropy is not None
    c = plain.logp.detach().exp() + plain.entropy.detach()
    got = run(leaves, ids, lambda rows, logp, entropy: logp.exp() + entropy, c)
    assert again == []
    assert_near(got, wanted(leaves, ids, c), 1e-12)


@pytest.mark.parametrize("wrong", ["one", "sign", "zero", "nothing", "slightly"])
def test_what_was_not_foreseen_is_made_again(wrong, small_tiles, again):
    c, arriving = some_coefficients(), some_coefficients()
    match wrong:
        case "one":
            arriving[4] *= 1.5
        case "sign":
            arriving[5] *= -1
        case "zero":
            arriving[2] = 0.3  # foreseen as 0
        case "nothing":
            arriving[6] = 0.0
        case "slightly":
            arriving[1] *= 1 + 1e-4
    leaves, ids = leaves_of()
    got = run(leaves, ids, lambda rows, logp, entropy: c[rows], arriving)
    assert again == [[False, True, True]]  # the hidden states' gradient needs no coefficient
    assert_near(got, wanted(leaves, ids, arriving), 1e-12)


def test_a_gradient_of_the_entropy_makes_all_again(small_tiles, again):
    c = some_coefficients()
    leaves, ids = leaves_of()
    got = run(leaves, ids, lambda rows, logp, entropy: c[rows], c, of_entropy=0.1 * c)
    assert again == [[True, True, True]]
    assert_near(got, wanted(leaves, ids, c, of_entropy=0.1 * c), 1e-12)


@pytest.mark.parametrize(
    "trained", [(False, True, False), (False, True, True), (True, True, False)]
)
def test_only_what_is_trained_gets_a_gradient(trained, small_tiles, again):
    c = some_coefficients()
    leaves, ids = leaves_of(trained=trained)
    got = run(leaves, ids, lambda rows, logp, entropy: c[rows], c)
    assert [x is not None for x in got[1:]] == list(trained) and again == []
    assert_near(got, wanted(leaves, ids, c), 1e-12)


def test_a_frozen_head_foresees_nothing(small_tiles, again):
    c = some_coefficients()
    leaves, ids = leaves_of(trained=(True, False, False))
    got = run(leaves, ids, lambda *given: pytest.fail("asked"), c)
    assert again == []
    assert_near(got, wanted(leaves, ids, c), 1e-12)


def test_skipped_rows_are_not_foreseen(small_tiles, again):
    c = some_coefficients()
    leaves, ids = leaves_of()
    masked = ids.index_fill(0, torch.tensor([0, 4, 12]), -100)
    asked = []

    def foresee(rows, logp, entropy):
        asked.extend(rows.tolist())
        return c[rows]

    got = run(leaves, masked, foresee, c)
    assert asked == [i for i in range(13) if i not in (0, 4, 12)] and again == []
    assert_near(got[1:], wanted(leaves, ids, torch.where(masked >= 0, c, 0.0))[1:], 1e-12)


def test_a_second_backward_pass_is_right_too(small_tiles, again):
    c = some_coefficients()
    (hidden, weight, bias), ids = leaves_of()
    head = Head(weight, bias, 1.0)
    logp = scored(head, hidden, ids, Plan(foresee=lambda rows, *_: c[rows])).logp
    once = torch.autograd.grad(logp @ c, (hidden, weight, bias), retain_graph=True)
    twice = torch.autograd.grad(logp @ c, (hidden, weight, bias))
    assert again == [[False, True, True]]
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_number_that_is_not_finite_is_not_swallowed(small_tiles):
    c = some_coefficients()
    c[3] = torch.nan
    leaves, ids = leaves_of()
    got = run(leaves, ids, lambda rows, *_: c[rows], c)
    assert got[1][3].isnan().all() and got[2].isnan().any() and not got[1][4].isnan().any()


def test_a_token_far_below_the_others_and_a_sure_one(small_tiles, again):
    """Its tile's largest logit is e^-200 of the row's; and a probability of 1 - 1e-12."""
    weight = torch.zeros(700, 2, dtype=torch.float64)
    weight[:256, 0], weight[300, 1], weight[600, 0] = -1.0, 1.0, 1.0
    hidden = torch.tensor([[100.0, 0.0], [0.0, 34.0], [0.0, 34.0]], dtype=torch.float64)
    ids, c = torch.tensor([7, 300, 650]), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for dtype, within in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight)] + [None]
        got = run(leaves, ids, lambda rows, *_: c[rows], c)
        assert_near(got, wanted(leaves, ids, c), within)
    assert again == []


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_token_and_one(tokens, again):
    hidden, weight, ids, _ = inputs(tokens)
    hidden.requires_grad_()
    weight.requires_grad_()
    plan = Plan(foresee=lambda rows, *_: torch.ones(len(rows)).double())
    scored(Head(weight, None, 1.0), hidden, ids, plan).logp.sum().backward()
    assert again == [] and weight.grad is not None and weight.grad.any() == bool(tokens)


def test_memory_is_flat_in_the_vocabulary(monkeypatch):
    """Beyond the weight's gradient: a block of weights, however large V is."""
    monkeypatch.setitem(product.KEPT, "cpu", 60_000)
    g = torch.Generator().manual_seed(0)
    for vocabulary in (3_000, 12_000, 48_000):
        hidden = torch.randn(400, 1, generator=g).requires_grad_()
        weight = torch.randn(vocabulary, 1, generator=g).requires_grad_()
        ids = torch.randint(0, vocabulary, (400,), generator=g)
        with Largest() as found:
            plan = Plan(foresee=lambda rows, *_: torch.ones(len(rows)))
            scored(Head(weight, None, 1.0), hidden, ids, plan).logp.sum().backward()
        assert found.numel <= 60_000


def test_bfloat16_adds_in_float32(small_tiles, again):
    c = some_coefficients()
    leaves, ids = leaves_of(torch.bfloat16, biased=False)
    got = run(leaves, ids, lambda rows, *_: c[rows].float(), c)
    assert again == [] and got[0].dtype == torch.float32
    want = wanted(leaves, ids, c)
    assert_near(got[:1], want[:1], 1e-6)
    assert_near(got[1:], want[1:], 2**-8)


def test_is_deterministic():
    hidden, weight, ids, _ = inputs(tokens=300, vocabulary=3000, dtype=torch.float32)
    c = torch.linspace(-1, 1, 300)
    runs = []
    for _ in range(2):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_(), None]
        runs.append(run(leaves, ids, lambda rows, *_: c[rows], c))
    assert all(torch.equal(x, y) for x, y in zip(*(r[:3] for r in runs), strict=True))


def test_float16_foresees_nothing(small_tiles, again, monkeypatch):
    """Before loss scaling a coefficient of 1e-8 is no number of float16; after it, it is one."""
    monkeypatch.setattr(dispatch, "_kernels", lambda: None)
    monkeypatch.setattr(product, "_ROWS", {"cuda": 5})
    c, scale = 1e-8 * some_coefficients(), 2.0**16
    leaves, ids = leaves_of(torch.float16, biased=False)
    with OnCuda():
        got = run(leaves, ids, lambda rows, *_: c[rows].float(), scale * c)
    assert again == [[True, True, False]]
    assert_near(got[1:], wanted(leaves, ids, scale * c)[1:], 2**-6)


@pytest.mark.parametrize(("device", "kept"), [("cpu", 220), ("cuda", 3533)])
@pytest.mark.parametrize("tokens", [0, 1, 1000, 1024, 16_384])
def test_products_are_of_even_sizes(device, kept, tokens, monkeypatch):
    """What a product's speed depends on: rows that start at multiples of its units."""
    monkeypatch.setattr(Head, "_device", device)
    monkeypatch.setitem(product.KEPT, device, kept * 151_936)
    head = Head(torch.empty(151_936, 1))
    rows, columns = product._EVEN[device]
    blocks = [b.stop - b.start for b in head.chunks(tokens)]
    assert sum(blocks) == tokens and max(blocks, default=0) <= kept
    assert all(size % rows == 0 for size in blocks[:-1])
    for size in blocks:
        tiles = [c.stop - c.start for c in head.columns(size)]
        assert sum(tiles) == 151_936 and all(width % columns == 0 for width in tiles[:-1])


def test_a_gradient_that_fits_as_it_is_is_not_rewritten(small_tiles, again):
    c = some_coefficients()
    leaves, ids = leaves_of(torch.float32)
    scores = scored(Head(leaves[1], leaves[2]), leaves[0], ids, Plan(foresee=lambda r, *_: c[r]))
    assert scores.logp.grad_fn is not None
    foreseen = scores.logp.grad_fn.foreseen  # type: ignore[attr-defined]
    assert foreseen.scale(c.float()) == 1 and foreseen.scale(-3.5 * c.float()) == -3.5
    assert foreseen.scale((c + 1).float()) is None
    before = foreseen.weight.clone()
    assert torch.equal(foreseen.times(1.0)[0], before)
    assert torch.equal(foreseen.times(2.0)[0], 2 * before)
