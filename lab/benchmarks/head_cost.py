"""The loss head compared with bare matrix products, its lower bound, and other implementations.

python lab/benchmarks/head_cost.py --help
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from peaks import peak_memory
from printed import measured

from trustclip_lab.bench.counts import check_counts
from trustclip_lab.bench.measure import in_turn
from trustclip_lab.bench.table import Table
from trustclip_lab.bench.variants import MODELS

#: What a CPU can do in a minute of the same vocabulary: (tokens, hidden, vocabulary).
REDUCED = (1024, 256, 151_936)

HeadTraining = Literal["frozen", "trained", "both"]


@dataclass(frozen=True)
class HeadOptions:
    """What is measured."""

    tokens: int | None = None
    """Tokens N; 1024 on a CPU and 16384 on a GPU when unset."""
    hidden: int | None = None
    """Hidden size H; 256 on a CPU and that of the model on a GPU when unset."""
    vocabulary: int | None = None
    """Vocabulary V; 151936 (Qwen3) when unset."""
    model: Literal["qwen3-1.7b", "qwen3-8b"] | None = None
    """Take H and V of this model (the default on a GPU: qwen3-1.7b)."""
    head: HeadTraining = "both"
    """Whether the head's weight is trained."""
    repeats: int = 3
    """Repetitions; the median is reported."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device; float32 on a CPU, bfloat16 on a GPU."""
    others: bool = True
    """Also compare with naive logits, TRL and Liger, which take most of the time."""

    def __post_init__(self) -> None:
        check_counts(self, "tokens", "hidden", "vocabulary", "repeats")


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
    shape = _shape(options)
    tables = []
    for trained in (False, True):
        if options.head in ("both", "trained" if trained else "frozen"):
            tables.append(_compare(shape, entries(trained, options.others), options.repeats))
    return tables


def check_device(device: str) -> None:
    """Raise a ValueError where there is no such device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA device here. Allowed: cpu.")


def _shape(options: HeadOptions) -> Any:
    from trustclip_lab.bench.variants import Shape

    tokens, hidden, vocabulary = REDUCED
    if options.device == "cuda" or options.model is not None:
        hidden, vocabulary = MODELS[options.model or "qwen3-1.7b"]
        tokens = 16_384 if options.device == "cuda" else tokens
    return Shape(
        options.tokens or tokens,
        options.hidden or hidden,
        options.vocabulary or vocabulary,
        options.device,
    )


def entries(trained: bool, others: bool = True) -> list[Entry]:
    """Rows of the table; with others, TRL and Liger where they are installed."""
    rows = [
        Entry("bare products", "products", trained),
        Entry("trustclip", "ours", trained),
        Entry("trustclip, no entropy", "ours", trained, entropy=False),
        Entry("trustclip, 50 % zero rows", "ours", trained, zeros=0.5),
        Entry("trustclip, 75 % zero rows", "ours", trained, zeros=0.75),
        Entry("trustclip + exact KL", "with_exact_kl", trained),
    ]
    if not trained:  # the policies share the head
        rows.insert(5, Entry("trustclip + exact KL (Bregman)", "with_bregman_kl", trained))
    if not others:
        return rows
    rows.append(Entry("naive logits", "naive", trained))
    rows.append(Entry("naive logits + exact KL", "naive_with_kl", trained))
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


def build(entry: Entry, shape: Any) -> Callable[[], Any]:
    """The call that a row measures, with its inputs."""
    from trustclip_lab.bench import variants

    return _call(entry, variants.Problem.of(shape, entry.trained))


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
    del calls, problem
    floor, own = seconds["bare products"], seconds["trustclip"]
    memory = {e.label: peak_memory(build, e, shape, device=shape.device) for e in rows}
    return Table(
        f"Loss head, {'trained' if trained else 'frozen'}: {shape}, {_unit(shape)[1]}",
        ("variant", _unit(shape)[0], "× bare", "× trustclip", "peak MiB", "gradient differs"),
        [
            (
                e.label, seconds[e.label], seconds[e.label] / floor, seconds[e.label] / own,
                memory[e.label], errors.get(e.label),
            )
            for e in rows
        ],
        _notes(shape, repeats),
    )  # fmt: skip


def _unit(shape: Any) -> tuple[str, str]:
    if shape.device == "cuda":
        return "device s", "bfloat16, forward and backward"
    return "CPU s", "float32, forward and backward, entropy"


def _notes(shape: Any, repeats: int) -> list[str]:
    memory = (
        "PyTorch's allocator counts memory beyond the inputs"
        if shape.device == "cuda"
        else "peak: growth of the resident high-water mark in a separate process"
    )
    return [
        f"Median of {repeats}, variants alternating in one process; {memory}.",
        "Zero rows: trustclip skips rows without gradient; the others compute all of them.",
        "Difference: maximum over the gradient of the hidden states, relative to its maximum.",
    ]


def _disagreement(rows: Sequence[Entry], calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Difference of each variant's gradient from that of trustclip; these calls also warm up."""
    comparable = [e for e in rows if e.function != "products" and not e.zeros]
    reference = calls["trustclip"]().float()
    return {
        e.label: float((calls[e.label]().float() - reference).abs().max() / reference.abs().max())
        for e in comparable
        if e.label != "trustclip"
    }


if __name__ == "__main__":
    measured(HeadOptions, run)
