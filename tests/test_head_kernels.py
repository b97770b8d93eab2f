"""The Triton kernels against the plain functions: in Triton's interpreter, or on a GPU."""

import os
import subprocess
import sys

import pytest
import torch

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
            for module in (kernels, softmax):
                running = Running.start(torch.empty(5, dtype=dtype, device=device), entropy)
                made = []
                for tile in tiles:
                    e, shrink = torch.empty_like(tile), torch.empty_like(running.max)
                    module.fold(tile.clone(), running, e, shrink)
                    made += [e, shrink]
                runs.append([running.max, running.sum, *made])
                runs[-1] += [running.first_moment, running.entropy] if entropy else []
            for got, want in zip(*runs, strict=True):
                near(got, want, dtype)
            z = torch.cat(tiles, dim=1)
            near(running.log_partition, z.double().logsumexp(1), dtype)

    for width in (1, 700, 4097):
        z = random(5, width, dtype=dtype, scale=3.0)
        rows = [z.logsumexp(1), *(random(5, dtype=dtype) for _ in range(3))]
        for grad_entropy in (rows[3], None):
            got, want = z.clone(), z.clone()
            kernels.fold_gradient(got, *rows[:3], grad_entropy)
            softmax.fold_gradient(want, *rows[:3], grad_entropy)
            near(got, want, dtype)

# Weights in half precision, the factors of the product that follows.
e = torch.empty(5, 700, dtype=torch.bfloat16, device=device)
plain = e.clone()
z, shrink = random(5, 700, dtype=torch.float32), random(5, dtype=torch.float32)
for module, out in ((kernels, e), (softmax, plain)):
    module.fold(z.clone(), Running.start(shrink.clone(), True), out, shrink)
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
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "equal on" in done.stdout


def test_every_twin_exists():
    from trustclip.head import kernels, softmax

    for function in (softmax.fold, softmax.fold_gradient):
        assert callable(getattr(kernels, function.__name__))


def test_the_head_through_the_kernels_equals_the_head_without():
    """The whole path on tensors of a CPU, with the kernels put in by hand."""
    code = """
import torch
from trustclip.head import gradient, kernels, logprobs, selected_logprobs
g = torch.Generator().manual_seed(0)
hidden, weight = torch.randn(9, 6, generator=g), torch.randn(700, 6, generator=g)
ids = torch.randint(0, 700, (9,), generator=g)
ids[4] = -100
def run(trained):
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained)
    logp, entropy = selected_logprobs(h, w, ids)
    (logp.sum() + (0.1 * entropy.sum() if trained else 0)).backward()
    return [logp, entropy, h.grad] + ([w.grad] if trained else [])
plain = [run(t) for t in (False, True)]
use = lambda function, tensor: getattr(kernels, function.__name__)
logprobs.twin = gradient.twin = use
for trained in (False, True):
    for a, b in zip(run(trained), plain[trained], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
"""
    if torch.cuda.is_available():
        pytest.skip("on a GPU the head takes the kernels by itself")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
