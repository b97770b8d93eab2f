"""What the head, the library and the TRL engine ask of a GPU, on fake tensors: one line of JSON.

For `test_fake_cuda.py`, in a process of its own. Every case reports the devices and dtypes that
came out, and what the GPU would have been waited for.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import fake_cuda
import torch
from torch import Tensor

import trustclip as tc
from trustclip import head
from trustclip.constraints import diagnostics
from trustclip.constraints.candidates import Candidates

ROWS, WIDTH, VOCABULARY, BATCH, TIME = 10, 8, 300, 4, 6


def cuda(*shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype, **options)


def heads() -> Iterator[tuple[str, Callable[[], Any]]]:
    for dtype in (torch.bfloat16, torch.float32):
        hidden = cuda(ROWS, WIDTH, dtype=dtype, requires_grad=True)
        bias = cuda(VOCABULARY, dtype=dtype)
        ids = cuda(ROWS, dtype=torch.int64)
        grads = (cuda(ROWS), cuda(ROWS), None, None)
        for trained in (False, True):
            weight = cuda(VOCABULARY, WIDTH, dtype=dtype, requires_grad=trained)
            name = f"{str(dtype).partition('.')[2]} {'trained' if trained else 'frozen'}"
            scores = head.score(hidden, weight, ids, bias=bias, mean=True)
            node: Any = scores.logp.grad_fn
            yield (
                f"score, {name}",
                lambda h=hidden, w=weight, b=bias, i=ids: head.score(h, w, i, bias=b),
            )
            yield f"backward, {name}", lambda node=node, g=grads: node.apply(*g)[:2]
        weight = weight.detach()
        yield "exact_kl", lambda h=hidden, w=weight, b=bias: head.exact_kl(h, h, w, bias=b)
        yield "bregman_kl", lambda h=hidden, s=scores: head.bregman_kl(h, s, h, s)
        yield "topk", lambda h=hidden, w=weight: head.topk(h, w, 5)


def batch() -> tc.TokenBatch:
    """Tokens with every field that a method may need."""
    value, number = cuda(BATCH, TIME), cuda(BATCH, TIME, dtype=torch.int64)
    of_each = cuda(BATCH, TIME, 4)
    names = ("entropy", "entropy_old", "logp_rollout", "kl_old_new", "kl_new_old")
    return tc.TokenBatch(
        cuda(BATCH, TIME, requires_grad=True),
        value,
        value,
        cuda(BATCH, TIME, dtype=torch.bool),
        groups=number,
        keys=number,
        lag=number,
        candidates=Candidates(of_each, of_each, of_each),
        **dict.fromkeys((*names, "top_k_kl", "top_k_tv"), value),
    )


def methods() -> Iterator[tuple[str, Callable[[], Any]]]:
    given = batch()
    for name in tc.methods():
        method = tc.method(name)
        yield f"coefficient, {name}", lambda m=method: tc.coefficient(m, given)
    atr = tc.method("atr")
    yield (
        "policy_loss",
        lambda: tc.policy_loss(atr, given, aggregation="dr_grpo", max_length=8).value,
    )
    yield "metrics", lambda: diagnostics.Window().add(given, atr.surrogate(given))


def engine() -> Iterator[tuple[str, Callable[[], Any]]]:
    from trustclip.engines.trl import inputs as trl_inputs
    from trustclip.engines.trl.recording import mismatch, shares
    from trustclip.engines.trl.scoring import skipping

    value, number = cuda(BATCH, TIME), cuda(BATCH, TIME, dtype=torch.int64)
    given = {
        "completion_ids": number,
        "completion_mask": number,
        "advantages": cuda(BATCH),
        "old_per_token_logps": value,
        "sample_index": cuda(BATCH, dtype=torch.int64),
        "generated": cuda(BATCH, dtype=torch.int64),
    }

    def injected() -> Any:
        atr, tokens = tc.method("atr"), trl_inputs.token_batch(dict(given), value, value, 0)
        return trl_inputs.inject(
            dict(given), tokens, tc.coefficient(atr, tokens), atr.surrogate(tokens)
        )

    yield "inject", injected
    yield "rows_that_matter", lambda: skipping.rows_that_matter(given)
    tokens = trl_inputs.token_batch(
        given | {"sampling_per_token_logps": value}, value, value, 0, entropy=value
    )
    yield "clip_ratios", lambda: shares.clip_ratios(tokens, tc.method("atr").surrogate(tokens))
    yield "mismatch", lambda: mismatch.Mismatch().add(given, tokens)
    rows = cuda(2, dtype=torch.int64)
    yield "widened", lambda: skipping.widen(dict(given), rows, value[:2], value[:2])


def broken(fake: fake_cuda.FakeCuda) -> dict[str, Any]:
    """What the probe says to three mistakes."""
    x = cuda(5)
    seen: dict[str, Any] = {}
    try:
        x.add(torch.ones(5))
    except Exception as error:
        seen["broken: a tensor of the CPU"] = type(error).__name__
    for name, mistake in (
        ("broken: a number is read", lambda: x.sum().item()),
        ("broken: a mask is applied", lambda: x[x > 0]),
    ):
        fake.waits.clear()
        mistake()
        seen[name] = list(fake.waits)
    return {
        name: {"seen": what, "devices": [], "dtypes": [], "waits": []}
        for name, what in seen.items()
    }


def main() -> None:
    try:
        fake = fake_cuda.enter()
    except (OSError, AttributeError, ValueError) as error:
        sys.stderr.write(f"this build of PyTorch takes no fake CUDA device: {error}")
        sys.exit(3)
    found: dict[str, Any] = broken(fake)
    for cases in (heads, methods, engine):
        for name, call in cases():
            fake.waits.clear()
            try:
                made = call()
            except Exception:
                found[name] = {"error": traceback.format_exc()}
                continue
            tensors = [
                x for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor)
            ]
            found[name] = {
                "devices": sorted({str(x.device) for x in tensors}),
                "dtypes": [str(x.dtype).partition(".")[2] for x in tensors],
                "waits": list(fake.waits),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
