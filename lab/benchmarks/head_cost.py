"""The loss head compared with bare matrix products, its lower bound, and other implementations.

python lab/benchmarks/head_cost.py --help
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from peaks import peak_memory
from printed import measured

from trustclip.support.checked import Count
from trustclip_lab.bench.measure import in_turn
from trustclip_lab.bench.table import Table

#: Widths of models that people train, with their vocabularies: Qwen at 0.5B and at 1.7B, Llama 8B.
WIDTHS = {896: 151_936, 2048: 151_936, 4096: 128_256}

HeadTraining = Literal["frozen", "trained", "both"]


@dataclass(frozen=True)
class HeadOptions:
    """What is measured."""

    tokens: Count | None = None
    """Tokens N; 256 on a CPU and 16384 on a GPU when unset."""
    hidden: Count | None = None
    """Hidden size H; 896, 2048 and 4096 when unset, one after the other."""
    vocabulary: Count | None = None
    """Vocabulary V; that of a model of this width when unset, 151936 for another."""
    head: HeadTraining = "both"
    """Whether the head's weight is trained."""
    repeats: Count = 3
    """Repetitions; the median is reported."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of hidden states and weight; float32 on a CPU and bfloat16 on a GPU when unset."""
    rows: Literal["heads", "ours", "all"] = "heads"
    """Heads with log-probabilities and entropies; what else ours can do; or both."""


@dataclass(frozen=True)
class Entry:
    """One row: a function of `trustclip_lab.bench.variants` and its options."""

    label: str
    function: str
    trained: bool
    entropy: bool = True
    zeros: float = 0.0


def run(options: HeadOptions) -> list[Table]:
    """The tables."""
    check_device(options.device)
    kinds = [k for k in ("frozen", "trained") if options.head in ("both", k)]
    return [
        _compare(shape, entries(kind == "trained", options.rows), options.repeats)
        for shape in _shapes(options)
        for kind in kinds
    ]


def check_device(device: str) -> None:
    """Raise a ValueError where there is no such device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA device here. Allowed: cpu.")


def _shapes(options: HeadOptions) -> list[Any]:
    from trustclip_lab.bench.variants import Shape

    tokens = options.tokens or (16_384 if options.device == "cuda" else 256)
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    return [
        Shape(
            tokens, width, options.vocabulary or WIDTHS.get(width, 151_936), options.device, dtype
        )
        for width in ([options.hidden] if options.hidden else WIDTHS)
    ]


def entries(trained: bool, kind: str = "all") -> list[Entry]:
    """Rows of the table; other heads are whole logits, and TRL and Liger where installed."""
    rows = [
        Entry("bare products", "whole_products", trained),
        Entry("trustclip", "ours", trained),
    ]
    if kind == "heads":
        rows.append(Entry("whole logits", "naive", trained))
        return rows + [Entry(label, function, trained) for label, function in installed_peers()]
    rows += [
        Entry("trustclip, no entropy", "ours", trained, entropy=False),
        Entry("trustclip, 50 % zero rows", "ours", trained, zeros=0.5),
        Entry("trustclip, 75 % zero rows", "ours", trained, zeros=0.75),
        Entry("trustclip + exact KL", "with_exact_kl", trained),
    ]
    if not trained:  # the policies share the head
        rows.insert(5, Entry("trustclip + exact KL (Bregman)", "with_bregman_kl", trained))
    if kind == "ours":
        return rows
    rows.append(Entry("whole logits", "naive", trained))
    rows.append(Entry("whole logits + exact KL", "naive_with_kl", trained))
    for label, function in installed_peers():
        rows.append(Entry(label, function, trained))
        rows.append(Entry(f"{label}, 50 % zero rows", function, trained, zeros=0.5))
    return rows


def installed_peers() -> list[tuple[str, str]]:
    """Labels and functions of the installed packages to compare with."""
    packages = (("trl", "TRL", "trl"), ("liger_kernel", "Liger", "liger"))
    return [
        (f"{name} {_version(package)} chunked", function)
        for package, name, function in packages
        if importlib.util.find_spec(package) is not None
    ]


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package.replace("_", "-"))


def _call(entry: Entry, problem: Any) -> Callable[[], Any]:
    from trustclip_lab.bench import peers, variants

    module = variants if hasattr(variants, entry.function) else peers
    return getattr(module, entry.function)(problem.with_options(entry.entropy, entry.zeros))


def _compare(shape: Any, rows: Sequence[Entry], repeats: int) -> Table:
    from trustclip_lab.bench.variants import Problem

    trained = rows[0].trained
    problem = Problem.of(shape, trained)
    calls = {entry.label: _call(entry, problem) for entry in rows}
    errors = _disagreement(rows, calls)
    seconds = in_turn(calls, repeats, shape.device)
    floor, own = seconds["bare products"], seconds["trustclip"]
    memory = {label: peak_memory(call, shape.device) for label, call in calls.items()}
    return Table(
        f"Loss head, {'trained' if trained else 'frozen'}: {shape}, {_unit(shape)[1]}",
        ("variant", "× trustclip", "× bare", _unit(shape)[0], "peak MiB", "gradient differs"),
        [
            (
                e.label, seconds[e.label] / own, seconds[e.label] / floor, seconds[e.label],
                memory[e.label], errors.get(e.label),
            )
            for e in rows
        ],
        _notes(shape, repeats),
    )  # fmt: skip


def _unit(shape: Any) -> tuple[str, str]:
    unit = "device s" if shape.device == "cuda" else "CPU s"
    return unit, f"{shape.dtype}, forward and backward, entropy"


def _notes(shape: Any, repeats: int) -> list[str]:
    memory = (
        "PyTorch's allocator counts memory beyond the inputs"
        if shape.device == "cuda"
        else "peak: growth of the resident high-water mark in a forked process"
    )
    return [
        f"Median of {repeats}, variants alternating in one process; {memory}.",
        "Zero rows: trustclip skips rows without gradient; the others compute all of them.",
        "Difference: maximum over the gradient of the hidden states, relative to its maximum.",
    ]


def _disagreement(rows: Sequence[Entry], calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Difference of each variant's gradient from that of trustclip; these calls also warm up."""
    comparable = [e for e in rows if e.function != "whole_products" and not e.zeros]
    reference = calls["trustclip"]().float()
    return {
        e.label: float((calls[e.label]().float() - reference).abs().max() / reference.abs().max())
        for e in comparable
        if e.label != "trustclip"
    }


if __name__ == "__main__":
    measured(HeadOptions, run)
