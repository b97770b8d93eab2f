"""What tests of heads on two ranks run under a launcher: ``head_processes.py FILE``.

The first rank writes the largest relative difference of each comparison as JSON.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from patience import NEVER
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import trustclip as tc
from trustclip.head import (
    Head,
    bregman_kl,
    exact_kl,
    gathered,
    product,
    score,
    selected_logprobs,
    topk,
    whole_sequences,
)
from trustclip.head.logprobs import Plan, scored
from trustclip.train.durable.ranks import leave

N, V, H, T, CAP = 13, 700, 6, 0.7, 2.5
#: Rows of the vocabulary that each rank has, where they are not shared out evenly.
UNEVEN = (450, 250)


def made() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=g, dtype=torch.float64)
    weight = torch.randn(V, H, generator=g, dtype=torch.float64)
    bias = torch.randn(V, generator=g, dtype=torch.float64)
    ids = torch.randint(0, V, (N,), generator=g)
    ids[4] = -100
    return hidden, weight, bias, ids


def apart(got: Tensor, want: Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


def results(head: Head, hidden: Tensor, ids: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Values, then gradients of a loss of log-probabilities, and of one with entropies."""
    c = torch.sin(torch.arange(N, dtype=hidden.dtype))
    c[2] = 0
    scores = scored(head, hidden, ids, Plan(collision=True))
    assert scores.entropy is not None and scores.collision is not None
    first = torch.autograd.grad(scores.logp @ c, leaves, retain_graph=True)
    both = torch.autograd.grad(scores.logp @ c + scores.entropy @ c.cos(), leaves)
    values = (scores.logp, scores.entropy, scores.log_partition, scores.collision)
    return [*(x.detach() for x in values), *first, *both]


def tensor_parallel(cap: float | None, frozen: bool) -> float:
    """A vocabulary that ranks share against the whole one."""
    hidden, weight, bias, ids = made()
    start = sum(UNEVEN[: dist.get_rank()])
    mine = slice(start, start + UNEVEN[dist.get_rank()])
    options: dict[str, Any] = {"temperature": T, "softcap": cap}

    def run(rows: slice, sharded: bool) -> list[Tensor]:
        h = hidden.clone().requires_grad_()
        w, b = weight[rows].clone(), bias[rows].clone()
        if not frozen:
            w.requires_grad_()
            b.requires_grad_()
        head = Head.of(w, b, **options)
        head = head.sharded(dist.group.WORLD) if sharded else head
        return results(head, h, ids, [h] if frozen else [h, w, b])

    def local(x: Tensor) -> Tensor:
        return x[mine] if len(x) == V else x

    got, want = run(mine, True), run(slice(None), False)
    return max(apart(a, local(b)) for a, b in zip(got, want, strict=True))


def divergences(cap: float | None) -> float:
    hidden, weight, bias, ids = made()
    old = hidden + 0.3 * hidden.sin()
    before = weight + 0.05 * weight.cos()
    start = sum(UNEVEN[: dist.get_rank()])
    mine = slice(start, start + UNEVEN[dist.get_rank()])
    whole = Head.of(weight, bias, temperature=T, softcap=cap)
    part = Head.of(weight[mine], bias[mine], temperature=T, softcap=cap).sharded(dist.group.WORLD)
    found = []
    for order in ("old_new", "new_old"):
        got = exact_kl(hidden, old, part, before[mine], order)
        found.append(apart(got, exact_kl(hidden, old, whole, before, order)))
    if cap is None:
        of_part = [score(h, part, ids.abs(), mean=True) for h in (hidden, old)]
        of_whole = [score(h, whole, ids.abs(), mean=True) for h in (hidden, old)]
        got, want = (
            bregman_kl(hidden, new, old, was, temperature=T) for new, was in (of_part, of_whole)
        )
        found.append(apart(got, want))
    return max(found)


def of_dtensors() -> dict[str, float]:
    """A tensor-parallel DTensor; one that FSDP2 shards, with other tokens on each rank."""
    hidden, weight, _, ids = made()
    mesh = init_device_mesh("cpu", (2,))
    sharded: Any = distribute_tensor(weight, mesh, [Shard(0)]).requires_grad_()
    ids = ids.abs()
    head = Head.of(sharded.to_local()).sharded(mesh.get_group())
    got: Any = torch.autograd.grad(score(hidden, head, ids).logp.sum(), sharded)[0]
    leaf = weight.clone().requires_grad_()
    (want,) = torch.autograd.grad(score(hidden, leaf, ids).logp.sum(), leaf)
    told = {"dtensor, tensor-parallel": apart(got.full_tensor(), want)}

    torch.manual_seed(0)
    linear = nn.Linear(H, V, bias=False, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(weight)
    fully_shard(linear, mesh=mesh)
    own = slice(0, 6) if dist.get_rank() == 0 else slice(6, None)
    score(hidden[own], gathered(linear.weight), ids[own]).logp.sum().backward()
    own_part: Any = linear.weight.grad
    told["dtensor, gathered"] = apart(own_part.full_tensor(), want / 2)
    for wrong in (linear.weight, sharded):
        try:
            Head.of(wrong)
        except ValueError as error:
            assert ".sharded(group)" in str(error) and "gathered" in str(error)
        else:
            raise AssertionError("a DTensor was taken for a whole weight")
    try:
        topk(hidden, head, 3)
    except ValueError as error:
        assert "not searched" in str(error)
    else:
        raise AssertionError("the likeliest tokens of one rank were taken for those of all")
    return told


#: Methods of every level, with aggregations that divide by what all ranks' tokens add up to.
SEQUENCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token": ({"name": "atr"}, {}),
    "prefix": ({"name": "atr", "level": "prefix"}, {"aggregation": "sequence_mean"}),
    "sequence": ({"name": "gspo"}, {"aggregation": "dr_grpo", "max_length": 20}),
    "geometric": ({"name": "gmpo"}, {"aggregation": "dapo", "total_tokens": 31}),
    "batch": ({"name": "clip_cov"}, {}),
}


def sequence_parallel(name: str) -> float:
    """Each rank with some tokens of every sequence, 7 and 5, against one that has them all."""
    g = torch.Generator().manual_seed(0)
    spec, by = SEQUENCES[name]
    hidden = torch.randn(3, 12, H, generator=g, dtype=torch.float64)
    weight = torch.randn(V, H, generator=g, dtype=torch.float64)
    ids = torch.randint(0, V, (3, 12), generator=g)
    ids[1, 9:] = ids[2, 4:] = -100  # one sequence has none on the second rank
    noise = 0.1 * torch.randn(3, 12, generator=g, dtype=torch.float64)
    advantages = torch.tensor([1.0, -0.7, 0.4], dtype=torch.float64)[:, None].expand(3, 12)
    own = slice(0, 7) if dist.get_rank() == 0 else slice(7, 12)

    def run(rows: slice, gather: bool) -> list[Tensor]:
        h, w = hidden[:, rows].clone().requires_grad_(), weight.clone().requires_grad_()
        logp, entropy = selected_logprobs(h.flatten(0, 1), w, ids[:, rows].flatten())
        assert entropy is not None
        logp, entropy = logp.view(3, -1), entropy.detach().view(3, -1)
        if gather:
            logp, entropy = (whole_sequences(x, dist.group.WORLD) for x in (logp, entropy))
        old = logp.detach() + noise
        keys = torch.arange(36).view(3, 12)
        batch = tc.TokenBatch(logp, old, advantages, ids >= 0, entropy=entropy, keys=keys)
        loss = tc.policy_loss(spec, batch, **by)
        loss.value.backward()
        assert h.grad is not None and w.grad is not None
        measured = [torch.stack([total, count]) for total, count in loss.metrics.values()]
        return [loss.value.detach(), *measured, h.grad, w.grad]

    got, want = run(own, True), run(slice(None), False)
    dist.all_reduce(got[-1])  # the mean over ranks, as DDP and FSDP2 have it
    got[-1], got[-2] = got[-1] / 2, got[-2] / 2
    want[-2] = want[-2][:, own]
    return max(
        apart(a, b) if b.any() else a.abs().max().item() for a, b in zip(got, want, strict=True)
    )


def main(file: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=NEVER))
    product._ROWS["cpu"], product.TILE_LOGITS["cpu"] = 5, 256
    told = of_dtensors()
    told |= {f"sequences, {name}": sequence_parallel(name) for name in SEQUENCES}
    for cap in (None, CAP):
        for frozen in (False, True):
            name = f"shared, {'frozen' if frozen else 'trained'}, cap {cap}"
            told[name] = tensor_parallel(cap, frozen)
        told[f"exact KL, cap {cap}"] = divergences(cap)
    if os.environ["RANK"] == "0":
        file.write_text(json.dumps(told))
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    leave()
