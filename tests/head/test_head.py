"""Log-probabilities and entropies from hidden states against a dense softmax."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trustclip.head import Head, exact, exact_kl, product, score, selected_logprobs, topk


@pytest.fixture
def small_tiles(monkeypatch):
    """Blocks of 5 rows, tiles of 256 columns: a vocabulary of 700 ends within a tile."""
    monkeypatch.setitem(product._ROWS, "cpu", 5)
    monkeypatch.setitem(product.TILE_LOGITS, "cpu", 256)


def dense(hidden, weight, ids, bias=None, temperature=1.0):
    logits = hidden @ weight.T
    logp = ((logits if bias is None else logits + bias) / temperature).log_softmax(-1)
    return logp.gather(1, ids[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)


def both(*args, **options) -> tuple[torch.Tensor, torch.Tensor]:
    logp, entropy = selected_logprobs(*args, **options)
    assert entropy is not None
    return logp, entropy


def inputs(tokens=13, vocabulary=700, width=6, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=g, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=g, dtype=dtype)
    bias = torch.randn(vocabulary, generator=g, dtype=dtype)
    return hidden, weight, torch.randint(0, vocabulary, (tokens,), generator=g), bias


def results(function, leaves, ids, coefficients, **options):
    """Values, and the gradients of each leaf that requires one."""
    hidden, weight, bias = leaves = [x if x is None else x.detach().clone() for x in leaves]
    for leaf, trained in zip(leaves, options.pop("trained"), strict=True):
        if leaf is not None:
            leaf.requires_grad_(trained)
    logp, entropy = function(hidden, weight, ids, bias=bias, **options)
    g, h = coefficients
    (logp @ g + (0 if h is None else entropy @ h)).backward()
    grads = [x.grad for x in leaves if x is not None and x.requires_grad]
    return [logp.detach(), entropy.detach(), *grads]


@pytest.mark.parametrize(
    "trained", [(True, False, False), (True, True, True), (False, True, False)]
)
@pytest.mark.parametrize("of_entropy", [False, True])
@pytest.mark.parametrize(("biased", "temperature"), [(False, 1.0), (True, 0.7)])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 4e-6)])
def test_values_and_gradients(
    trained, of_entropy, biased, temperature, dtype, within, small_tiles
):  # fmt: skip
    hidden, weight, ids, bias = inputs()
    g = torch.Generator().manual_seed(1)
    of_logp, of_h = (torch.randn(13, generator=g, dtype=torch.float64) for _ in range(2))
    of_logp[3:6] = 0
    of_h[4:7] = 0
    coefficients = [of_logp, of_h if of_entropy else None]
    options = {"trained": trained, "temperature": temperature}

    def run(function, dtype):
        leaves = [x.to(dtype) for x in (hidden, weight)] + [bias.to(dtype) if biased else None]
        return results(
            function,
            leaves,
            ids,
            [x if x is None else x.to(dtype) for x in coefficients],
            **options,
        )

    for got, want in zip(run(selected_logprobs, dtype), run(dense, torch.float64), strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).abs().max() <= within * want.abs().max()


def test_rows_with_a_negative_id_are_zero_and_cost_no_gradient(small_tiles):
    hidden, weight, ids, _ = inputs()
    skipped = torch.tensor([0, 4, 12])
    masked = ids.index_fill(0, skipped, -100)
    hidden[skipped] = torch.nan  # padding may hold anything
    for trained in (False, True):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained)
        logp, entropy = both(h, w, masked)
        (logp.sum() + entropy.sum()).backward()
        assert not logp[skipped].any() and not entropy[skipped].any()
        assert h.grad is not None and not h.grad[skipped].any()
        kept = masked >= 0
        want = dense(hidden[kept], weight, ids[kept])
        torch.testing.assert_close((logp[kept], entropy[kept]), want, rtol=1e-12, atol=1e-12)
        assert w.grad is None or w.grad.isfinite().all()


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("trained", [False, True])
def test_no_token_and_one(tokens, trained):
    hidden, weight, ids, bias = inputs(tokens)
    hidden.requires_grad_()
    weight.requires_grad_(trained)
    logp, entropy = both(hidden, weight, ids, bias=bias)
    assert logp.shape == entropy.shape == (tokens,)
    (logp.sum() + entropy.sum()).backward()
    assert hidden.grad is not None and hidden.grad.shape == (tokens, 6)
    assert not trained or (weight.grad != 0).any() == bool(tokens)


def test_without_entropy_and_without_gradient():
    hidden, weight, ids, _ = inputs()
    logp, entropy = selected_logprobs(hidden, weight, ids, entropy=False)
    assert entropy is None and not logp.requires_grad
    torch.testing.assert_close(logp, dense(hidden, weight, ids)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trained", [False, True])
def test_bfloat16_adds_in_float32(trained, small_tiles):
    hidden, weight, ids, _ = inputs(dtype=torch.bfloat16)
    leaves = [hidden, weight, None]
    coefficients = torch.ones(13), None
    got = results(selected_logprobs, leaves, ids, coefficients, trained=(True, trained, False))
    wide = [hidden.float(), weight.float(), None]
    want = results(dense, wide, ids, coefficients, trained=(True, trained, False))
    assert got[0].dtype == got[1].dtype == torch.float32
    for x, y in zip(got[:2], want[:2], strict=True):
        assert (x - y).abs().max() <= 1e-6 * y.abs().max()
    for x, y in zip(got[2:], want[2:], strict=True):  # rounded once, at the end
        assert x.dtype == torch.bfloat16 and (x - y).abs().max() <= 2**-8 * y.abs().max()


@pytest.mark.parametrize("trained", [False, True])
def test_under_autocast_a_cpu_rounds_factors_alone(trained):
    """Sums are those of float32, so errors are far below those of logits in bfloat16."""
    hidden, weight, ids, _ = inputs(64, 2048, 128, torch.float32)
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    leaves, before = [hidden / 8, weight, None], matmul.fp32_precision
    call = (ids, (torch.linspace(-1, 1, 64), None))
    with torch.autocast("cpu", torch.bfloat16):
        got = results(selected_logprobs, leaves, *call, trained=(True, trained, False))
    assert matmul.fp32_precision == before
    rounded = [hidden.div(8).bfloat16().float(), weight.bfloat16().float(), None]
    for factors in (rounded, leaves):  # a processor without bfloat16 rounds nothing
        want = results(dense, factors, *call, trained=(True, trained, False))
        if (got[0] - want[0]).abs().max() < 1e-5:
            break
    assert (got[0] - want[0]).abs().max() < 1e-5 and got[0].dtype == torch.float32
    for x, y in zip(got[1:], want[1:], strict=True):
        assert (x - y).abs().max() <= 2**-7 * y.abs().max()


def test_large_logits_and_sure_tokens():
    weight = torch.eye(3)
    hidden = torch.tensor([[1e4, 0.0, 0.0], [-1e4, 0.0, 0.0], [20.0, 0.0, 0.0]])
    logp, entropy = both(hidden, weight, torch.tensor([0, 0, 0]))
    assert logp[:2].tolist() == [0, -10000.693359375]
    want_logp, want_entropy = dense(hidden[2:].double(), weight.double(), torch.tensor([0]))
    assert logp[2].item() == pytest.approx(want_logp.item(), abs=1e-7)
    assert entropy[2].item() == pytest.approx(want_entropy.item(), abs=1e-8)
    assert entropy[:2].tolist() == pytest.approx([0, 0.6931472], rel=1e-6)
    assert (logp <= 0).all() and (entropy >= 0).all()


def test_is_deterministic():
    hidden, weight, ids, _ = inputs(tokens=300, vocabulary=3000, dtype=torch.float32)
    runs = [
        results(
            selected_logprobs, [hidden, weight, None], ids, [torch.ones(300)] * 2,
            trained=(True, True, False),
        )
        for _ in range(2)
    ]  # fmt: skip
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


def test_second_derivatives_are_refused():
    hidden, weight, ids, _ = inputs()
    logp, _ = selected_logprobs(hidden.requires_grad_(), weight, ids)
    (grad,) = torch.autograd.grad(logp.exp().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.full((13,), 700)}, "below the vocabulary's size, 700"),
        ({"ids": torch.zeros(13)}, "int64 of shape"),
        ({"ids": torch.zeros(12).long()}, "int64 of shape"),
        ({"hidden": torch.zeros(13, 5).double()}, r"must be \[tokens, 6\]"),
        ({"weight": torch.zeros(6)}, r"must be \[vocabulary, hidden\]"),
        ({"bias": torch.zeros(6)}, r"must be \[700\]"),
        ({"temperature": 0.0}, "must be positive"),
    ],
)
def test_bad_input(change, message):
    hidden, weight, ids, _ = inputs()
    arguments = {"hidden": hidden, "weight": weight, "ids": ids} | change
    with pytest.raises(ValueError, match=message):
        selected_logprobs(**arguments)


def test_a_weight_that_ranks_share_is_refused(tmp_path):
    """A rank's own rows would make another distribution of it."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        sharded = distribute_tensor(torch.zeros(6, 4), init_device_mesh("cpu", (1,)), [Shard(0)])
        with pytest.raises(
            ValueError, match=r"is a DTensor\. Score inside of the module's forward"
        ):
            Head(sharded)
    finally:
        dist.destroy_process_group()


class Largest(TorchDispatchMode):
    """Size of the largest tensor that any operation makes or writes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return made


@pytest.mark.parametrize("trained", [False, True])
def test_memory_is_flat_in_the_vocabulary(trained, monkeypatch):
    """No logits of all tokens: the largest tensor is one tile, whatever N and V."""
    tile, tokens, vocabulary = 1 << 17, 1100, 600
    monkeypatch.setitem(product.TILE_LOGITS, "cpu", tile)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 4, generator=g).requires_grad_()
    weight = torch.randn(vocabulary, 4, generator=g).requires_grad_(trained)
    ids = torch.randint(0, vocabulary, (tokens,), generator=g)

    def largest(function):
        with Largest() as found:
            logp, _ = function(hidden, weight, ids)
            logp.sum().backward()
        return found.numel

    tiled = max(tile, 256 * product._ROWS["cpu"])  # no tile is narrower than 256 columns
    assert largest(dense) >= tokens * vocabulary > 2 * tiled
    assert largest(selected_logprobs) <= tiled
    with Largest() as found:
        topk(hidden.detach(), weight.detach(), 3)
        score(hidden.detach(), weight.detach(), ids, mean=True)
    assert found.numel <= tiled


def test_exact_kl_holds_a_chunk_of_logits(monkeypatch):
    monkeypatch.setitem(exact.CHUNK_LOGITS, "cpu", 60_000)
    hidden, weight, _, _ = inputs(tokens=100, vocabulary=6000, dtype=torch.float32)
    with Largest() as found:
        exact_kl(hidden, hidden + 0.1, weight)
    assert found.numel == 60_000
