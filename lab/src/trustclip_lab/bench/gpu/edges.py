"""Stage (a), what one problem does not show: sizes beyond 2^31, streams, bits, every method."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import trustclip as tc
from trustclip import head
from trustclip.constraints.candidates import Candidates
from trustclip_lab.bench.gpu.cases import CannotRun, Place

_GIB = 2**30


def _problem(place: Place, tokens: int, width: int, vocabulary: int) -> tuple[Tensor, ...]:
    g = torch.Generator(place.device).manual_seed(1)
    dtype = torch.bfloat16 if place.cuda else torch.float32
    weight = torch.randn(vocabulary, width, generator=g, device=place.device).mul_(0.4).to(dtype)
    hidden = torch.randn(tokens, width, generator=g, device=place.device).to(dtype)
    ids = torch.randint(0, vocabulary, (tokens,), generator=g, device=place.device)
    return hidden, weight, ids


def _outputs(hidden: Tensor, weight: Tensor, ids: Tensor) -> list[Tensor]:
    """Log-probabilities, entropies, and the gradients of both factors."""
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    logp, entropy = head.selected_logprobs(hidden, weight, ids)
    assert entropy is not None
    (logp.mean() + 0.1 * entropy.mean()).backward()
    assert hidden.grad is not None and weight.grad is not None
    return [logp.detach(), entropy.detach(), hidden.grad, weight.grad]


def same_bits(place: Place) -> dict[str, Any]:
    """The same call twice, and once more after other work: the same bits."""
    sizes = (9, 8, 700) if place.tiny else (4096, 1024, 40_009)
    problem = _problem(place, *sizes)
    first = _outputs(*problem)
    _outputs(*_problem(place, *(size // 2 + 1 for size in sizes)))
    names = ("log-probability", "entropy", "gradient of h", "gradient of W")
    equal = [
        all(torch.equal(a, b) for b in again)
        for a, *again in zip(first, _outputs(*problem), _outputs(*problem), strict=True)
    ]
    return _as_errors(dict(zip(names, equal, strict=True)))


def two_streams(place: Place) -> dict[str, Any]:
    """Two problems at once on two streams: the bits of one after the other."""
    place.needs_cuda("a second stream")
    sizes = (9, 8, 700) if place.tiny else (2048, 512, 40_009)
    problems = [_problem(place, sizes[0] + more, *sizes[1:]) for more in (0, 77)]
    alone = [_outputs(*problem) for problem in problems]
    together: list[list[Tensor]] = []
    torch.cuda.synchronize()
    for problem, stream in zip(problems, (torch.cuda.Stream(), torch.cuda.Stream()), strict=True):
        with torch.cuda.stream(stream):
            together.append(_outputs(*problem))
    torch.cuda.synchronize()
    return _as_errors(
        {
            f"stream {number}": all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
            for number, (one, other) in enumerate(zip(alone, together, strict=True), start=1)
        }
    )


def many_logits(place: Place) -> dict[str, Any]:
    """More than 2^31 logits in one call; the first, a middle and the last rows in float64."""
    place.needs_cuda("2^31 logits")
    hidden, weight, ids = _problem(place, 16_384, 64, 151_936)
    logp, entropy = head.selected_logprobs(hidden, weight, ids)
    assert entropy is not None
    rows = torch.tensor([0, 1, 8191, 8192, 16_382, 16_383], device=place.device)
    expected = (hidden[rows].double() @ weight.double().T).log_softmax(dim=1)
    logp_expected = expected.gather(1, ids[rows, None]).squeeze(1)
    errors = {
        "log-probability": logp[rows].double() - logp_expected,
        "entropy": entropy[rows].double() - torch.special.entr(expected.exp()).sum(dim=1),
    }
    checks = {n: {"error": float(e.abs().max()), "allowed": 1e-4} for n, e in errors.items()}
    return {"errors": checks, "passes": all(f["error"] <= f["allowed"] for f in checks.values())}


def large_tile(place: Place) -> dict[str, Any]:
    """One tile of more than 2^31 logits through the kernels: offsets beyond 32 bits."""
    place.needs_cuda("a tile of 2^31 logits")
    free = torch.cuda.mem_get_info()[0]
    if free < 24 * _GIB:
        raise CannotRun(f"a tile of 2^31 logits needs 24 GiB, and {free / _GIB:.0f} are free")
    from trustclip.head.softmax import Running
    from trustclip_lab.bench.gpu import kernels

    rows, width = 16_400, 131_072
    g = torch.Generator(place.device).manual_seed(2)
    logits = torch.randn(rows, width, generator=g, device=place.device)
    ends = [0, 1, rows // 2, rows - 1]
    expected = torch.stack([logits[row].double().logsumexp(0) for row in ends])
    running = Running.start(logits.new_empty(rows), entropy=True)
    kernels.fold(logits, running, logits, torch.empty_like(running.max))
    error = float((running.log_partition[ends] - expected).abs().max())
    errors = {"log-partition": {"error": error, "allowed": 1e-5}}
    return {"errors": errors, "passes": error <= 1e-5}


def every_method(place: Place) -> dict[str, Any]:
    """Each method's coefficients on this device against a CPU's, in float64 and in float32."""
    fields = _fields(batch_of(8 if place.tiny else 64, 32 if place.tiny else 1024))
    errors = {}
    # A token at its bound may fall on either side of it in float32, so a few may differ.
    for dtype, gap, share in ((torch.float64, 1e-9, 0.0), (torch.float32, 1e-3, 2e-3)):
        here, there = (
            {k: _move(v, device, dtype) for k, v in fields.items()}
            for device in (place.device, "cpu")
        )
        for name in tc.methods():
            method = tc.method(name)
            result = tc.coefficient(method, tc.TokenBatch(**here)).double().cpu()
            expected = tc.coefficient(method, tc.TokenBatch(**there)).double()
            apart = (result - expected).abs() > gap * expected.abs().clamp(min=1)
            key = f"{name}, {str(dtype).partition('.')[2]}"
            errors[key] = {"error": float(apart.double().mean()), "allowed": share}
    return {"errors": errors, "passes": all(f["error"] <= f["allowed"] for f in errors.values())}


def batch_of(sequences: int, length: int) -> Any:
    """Tokens one update away from their old policy, with every field that a method may need."""
    g = torch.Generator().manual_seed(0)
    shape = (sequences, length)
    old = torch.nn.functional.logsigmoid(4 * torch.randn(shape, generator=g))
    drift = 0.1 * torch.randn(shape, generator=g)
    small = 0.02 * torch.rand(shape, generator=g)
    likely = torch.randn((*shape, 4), generator=g).log_softmax(dim=2)
    sure = -1e-6  # a float32 log-probability above it is rounding
    return tc.TokenBatch(
        (old + drift).clamp(max=sure),
        old,
        torch.randn(sequences, 1, generator=g).expand(shape).contiguous(),
        torch.ones(shape, dtype=torch.bool),
        entropy=torch.rand(shape, generator=g),
        entropy_old=torch.rand(shape, generator=g),
        logp_rollout=(old + 0.01 * torch.randn(shape, generator=g)).clamp(max=sure),
        groups=torch.arange(sequences)[:, None].expand(shape) // 8,
        keys=torch.arange(sequences * length).view(shape),
        kl_old_new=small,
        kl_new_old=small,
        top_k_kl=small,
        top_k_tv=small,
        candidates=Candidates(likely, likely, likely, partial=True),
    )


def _fields(batch: Any) -> dict[str, Any]:
    return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.init}


def _move(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, Candidates):
        return value.map(lambda x: _move(x, device, dtype))
    if not isinstance(value, Tensor):
        return value
    value = value.detach().to(device)
    return value.to(dtype) if value.is_floating_point() else value


def intervals(place: Place) -> dict[str, Any]:
    """Ratio bounds of the old probability on this device against float64 on a CPU."""
    logits = torch.linspace(-25, 16, 20_001, dtype=torch.float64)
    logp = torch.nn.functional.logsigmoid(logits)
    errors = {}
    for name, options in (("dynamic_clip", {}), ("trgppo", {})):
        expected: Any = tc.interval(name, p_old=logp.exp(), **options)
        result: Any = tc.interval(name, p_old=logp.exp().to(place.device), **options)
        for side, a, b in zip(("low", "high"), result, expected, strict=True):
            error = ((a.cpu() - b).abs() / b.abs().clamp(min=1)).nan_to_num(0).max()
            errors[f"{name}, {side}"] = {"error": float(error), "allowed": 1e-9}
    return {"errors": errors, "passes": all(f["error"] <= f["allowed"] for f in errors.values())}


def sanitizer(place: Place) -> dict[str, Any]:
    """The kernels under ``compute-sanitizer``: no access out of bounds."""
    place.needs_cuda("compute-sanitizer")
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        raise CannotRun("compute-sanitizer is not installed here")
    code = (
        "from pathlib import Path; from trustclip_lab.bench.gpu.cases import Place;"
        "from trustclip_lab.bench.gpu.edges import same_bits;"
        "from trustclip_lab.bench.gpu.kernels import in_head;"
        "in_head().__enter__(); print(same_bits(Place('cuda', True, Path('.'))))"
    )
    run = subprocess.run(
        [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if "ERROR SUMMARY" in line or "Error" in line]
    if run.returncode not in (0, 9):
        raise CannotRun(f"compute-sanitizer did not run: {' '.join(lines)[:200]}")
    return _as_errors({"memory access": run.returncode == 0}) | {"summary": lines[-1:]}


def _as_errors(holds: dict[str, bool]) -> dict[str, Any]:
    """Yes or no as errors of 0 or 1."""
    errors = {name: {"error": float(not true), "allowed": 0.0} for name, true in holds.items()}
    return {"errors": errors, "passes": all(holds.values())}


Edge = tuple[str, Callable[[Place], dict[str, Any]], float]

#: Name, what runs it, expected seconds.
EDGES: tuple[Edge, ...] = (
    ("the same bits twice", same_bits, 10.0),
    ("two streams", two_streams, 10.0),
    ("more than 2^31 logits", many_logits, 20.0),
    ("a tile of more than 2^31 logits", large_tile, 20.0),
    ("every method", every_method, 30.0),
    ("intervals", intervals, 10.0),
    ("compute-sanitizer", sanitizer, 120.0),
)
