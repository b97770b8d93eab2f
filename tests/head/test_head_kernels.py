"""The Triton kernels against the plain functions: in Triton's interpreter, or on a GPU."""

import contextlib
import os
import subprocess
import sys
import types
from typing import Any

import pytest
import torch
from patience import NEVER

pytest.importorskip("triton", reason="Triton is not installed")

CHECK = """
import torch
from trustclip.head import kernels, softmax
from trustclip.head.softmax import Running

device = "cuda" if torch.cuda.is_available() else "cpu"
g = torch.Generator().manual_seed(0)


def near(a, b, dtype):
    within = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(a, b, rtol=within, atol=within)


def random(*shape, dtype, scale=1.0):
    return (scale * torch.randn(*shape, generator=g, dtype=torch.float64)).to(device, dtype)


for dtype in (torch.float64, torch.float32):
    for entropy in (True, False):
        for widths in ((1, 700), (700, 4097, 30)):
            runs = []
            tiles = [random(5, width, dtype=dtype, scale=9.0) for width in widths]
            ids = torch.tensor([0, sum(widths) - 1, widths[0], 3, 699], device=device)
            for module in (kernels, softmax):
                running = Running.start(torch.empty(5, dtype=dtype, device=device), entropy)
                running = running.of_tokens(rounded=True)
                made, start = [], 0
                for tile in tiles:
                    e, shrink = torch.empty_like(tile), torch.empty_like(running.max)
                    module.fold(tile.clone(), running, e, shrink, ids - start)
                    start += tile.shape[1]
                    made += [e, shrink]
                runs.append([running.max, running.sum, running.chosen, running.rounded_sum, *made])
                runs[-1] += [running.first_moment, running.entropy] if entropy else []
            for got, want in zip(*runs, strict=True):
                near(got, want, dtype)
            z = torch.cat(tiles, dim=1)
            near(running.log_partition, z.double().logsumexp(1), dtype)
            near(running.logp, z.log_softmax(1).gather(1, ids[:, None]).squeeze(1), dtype)
            near(running.rounded_sum, running.sum, dtype)

    for width in (1, 700, 4097):
        z = random(5, width, dtype=dtype, scale=3.0)
        rows = [z.logsumexp(1), *(random(5, dtype=dtype) for _ in range(3))]
        for grad_entropy in (rows[3], None):
            got, want = z.clone(), z.clone()
            local, own = torch.tensor([0, width - 1, width, -1, 9], device=device), 3 * rows[2]
            kernels.fold_gradient(got, *rows[:3], grad_entropy, local, own)
            softmax.fold_gradient(want, *rows[:3], grad_entropy, local, own)
            near(got, want, dtype)

    x, factor, before = random(5, 4097, dtype=dtype), random(5, dtype=dtype), torch.ones(5)
    factor[2] = 1
    for out in (x.clone(), torch.empty_like(x)):
        of = out if torch.equal(out, x) else x
        old = before.to(factor) if of is out else torch.full_like(factor, torch.nan)
        kernels.scale_rows(of, factor, old, out)
        near(out, x * factor[:, None], dtype)
    kept = x.clone()
    kernels.scale_rows(x, factor, factor, kept)
    assert torch.equal(kept, x)  # a factor that has not changed

# Weights in half precision, the factors of the product that follows.
e = torch.empty(5, 700, dtype=torch.bfloat16, device=device)
plain = e.clone()
z, shrink = random(5, 700, dtype=torch.float32), random(5, dtype=torch.float32)
for module, out in ((kernels, e), (softmax, plain)):
    running = Running.start(shrink.clone(), True).of_tokens(rounded=True)
    module.fold(z.clone(), running, out, shrink)
    near(running.rounded_sum, out.double().sum(1).float(), torch.float32)
    assert not torch.equal(running.rounded_sum, running.sum)
near(e, plain, torch.bfloat16)
print("equal on", device)
"""


def test_kernels_equal_the_plain_functions():
    # In a process of its own: Triton decides on import whether it interprets.
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=os.environ | interpret,
        capture_output=True,
        text=True,
        timeout=NEVER,
    )
    assert done.returncode == 0, done.stderr
    assert "equal on" in done.stdout


def test_every_twin_exists():
    from trustclip.head import kernels, softmax

    for function in (softmax.fold, softmax.fold_gradient, softmax.scale_rows):
        assert callable(getattr(kernels, function.__name__))


def test_the_head_through_the_kernels_equals_the_head_without():
    """The whole path on tensors of a CPU, with the kernels put in by hand."""
    code = """
import torch
from trustclip.head import foreseen, gradient, kernels, logprobs, selected_logprobs
from trustclip.head.logprobs import Plan, scored
from trustclip.head.product import Head
g = torch.Generator().manual_seed(0)
hidden, weight = torch.randn(9, 6, generator=g), torch.randn(700, 6, generator=g)
ids = torch.randint(0, 700, (9,), generator=g)
every = ids.clone()
ids[4] = -100
def run(trained, foresee=None):
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained)
    given = h.T.contiguous().T if foresee else h  # rows that do not lie one after the other
    found = scored(Head(w, None, 1.0), given, every if foresee else ids, Plan(foresee=foresee))
    (found.logp.sum() + (0.1 * found.entropy.sum() if trained and not foresee else 0)).backward()
    return [found.logp, found.entropy, h.grad] + ([w.grad] if trained else [])
cases = [(False,), (True,), (True, lambda rows, *_: torch.ones(len(rows)))]
plain = [run(*case) for case in cases]
calls = []
def use(function, tensor):
    calls.append(function.__name__)
    return getattr(kernels, function.__name__)
logprobs.kernel_for = gradient.kernel_for = foreseen.kernel_for = use
for case, want in zip(cases, plain, strict=True):
    for a, b in zip(run(*case), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
assert {*calls} == {"fold", "scale_rows", "fold_gradient"}
"""
    if torch.cuda.is_available():
        pytest.skip("on a GPU the head takes the kernels by itself")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=NEVER,
    )
    assert done.returncode == 0, done.stderr


def test_a_kernel_is_launched_on_the_device_of_its_memory(monkeypatch):
    """Which need not be the current one, where a process sees several GPUs."""
    from trustclip.head import dispatch, softmax

    current, launched = ["cuda:0"], []

    @contextlib.contextmanager
    def device_of(tensor):
        current.append(tensor.where)
        yield
        current.pop()

    kernels = types.SimpleNamespace(fold=lambda *given: launched.append((current[-1], given)))
    monkeypatch.setattr(dispatch, "_kernels", lambda: kernels)
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    there: Any = types.SimpleNamespace(is_cuda=True, where="cuda:1")
    dispatch.kernel_for(softmax.fold, there)(1, 2)
    assert launched == [("cuda:1", (1, 2))] and current == ["cuda:0"]
    here: Any = types.SimpleNamespace(is_cuda=False)
    assert dispatch.kernel_for(softmax.fold, here) is softmax.fold
