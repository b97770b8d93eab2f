"""The Triton kernels against the plain functions."""

import os
import subprocess
import sys

import pytest
import torch
from patience import NEVER

pytest.importorskip("triton", reason="Triton is not installed")

CHECK = """
import torch
from trustclip.head import softmax
from trustclip.head.softmax import Running
from trustclip_lab.bench.gpu import kernels

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

    x, factor = random(5, 4097, dtype=dtype), random(5, dtype=dtype)
    factor[2] = 1
    got, want = x.clone(), x.clone()
    kernels.scale_rows(got, factor)
    softmax.scale_rows(want, factor)
    near(got, want, dtype)

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


def test_kernels_equal_the_plain_functions() -> None:
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
