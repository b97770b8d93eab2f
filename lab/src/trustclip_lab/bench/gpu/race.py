"""Stage (b): the loss head against bare products and every other head that is installed."""

import gc
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trustclip_lab.bench import peers, variants
from trustclip_lab.bench.gpu.cases import Case, Place, Row, Stage, kernels_in_head
from trustclip_lab.bench.measure import device_peak, in_turn
from trustclip_lab.bench.table import Table
from trustclip_lab.bench.variants import MODELS, Problem, Shape

#: Rows whose gradient is compared with float64.
_SAMPLED = 64
_REPEATS = 7


@dataclass(frozen=True)
class Entrant:
    """One implementation under one condition.

    Args:
      label: of its line.
      function: of `variants` or `peers`.
      frozen: products of $2NHV$ operations that it makes with a frozen head.
      trained: with a trained one; None where it takes no part.
      package: that must be installed.
      entropy: whether entropies are computed as well.
      zeros: share of rows whose coefficient is 0.
      compared: whether its gradient is that of the problem.
      kernels: whether the head runs through the Triton kernels; on a GPU only.
    """

    label: str
    function: str
    frozen: float | None
    trained: float | None
    package: str | None = None
    entropy: bool = True
    zeros: float = 0.0
    compared: bool = True
    kernels: bool = False

    def products(self, trained: bool) -> float | None:
        """Its own number of products."""
        return self.trained if trained else self.frozen


#: The bare products come first: they are the floor.
ENTRANTS = (
    Entrant("bare products, whole", "whole_products", 2, 3, compared=False),
    Entrant("bare products, in our tiles", "products", 2, 3, compared=False),
    Entrant("trustclip", "ours", 2, 4),
    Entrant("trustclip, Triton kernels", "ours", 2, 4, kernels=True),
    Entrant("trustclip, no entropy", "ours", 2, 4, entropy=False),
    Entrant("trustclip + exact KL (Bregman)", "with_bregman_kl", 2, None),
    Entrant("trustclip + exact KL", "with_exact_kl", 4, 6),
    Entrant("trustclip, 50 % zero rows", "ours", 1, 2, zeros=0.5),
    Entrant("trustclip, 75 % zero rows", "ours", 0.5, 1, zeros=0.75),
    Entrant("TRL, chunked", "trl", 3, 4, "trl"),
    Entrant("TRL, chunked, 50 % zero rows", "trl", 3, 4, "trl", zeros=0.5),
    Entrant("Liger, scaled cross-entropy", "liger", 4, 4, "liger_kernel"),
    Entrant("Liger, 50 % zero rows", "liger", 4, 4, "liger_kernel", zeros=0.5),
    Entrant(
        "cut cross-entropy, no entropy", "cut_cross_entropy", 3, 4, "cut_cross_entropy",
        entropy=False,
    ),
    Entrant(
        "QuACK, mean loss, no entropy", "quack", 2, 3, "quack", entropy=False, compared=False
    ),
    Entrant("naive logits", "naive", 2, 3),
    Entrant("naive logits, compiled", "compiled", 2, 3),
    Entrant("naive logits + exact KL", "naive_with_kl", 3, 4),
)  # fmt: skip


def race(model: str, tokens: int, trained: bool, place: Place) -> dict[str, Any]:
    """All entrants at one shape, alternating in one process.

    Args:
      model: key of `MODELS`.
      tokens: N.
      trained: whether the head's weight is.
      place: where.
    """
    hidden, vocabulary = (8, 700) if place.tiny else MODELS[model]
    shape = Shape(24 if place.tiny else tokens, hidden, vocabulary, place.device)
    problem = Problem.of(shape, trained)
    reference = _reference(problem)
    lines, calls = [], {}
    for entrant in ENTRANTS:
        count = entrant.products(trained)
        if count is None:
            continue
        line: dict[str, Any] = {"label": entrant.label, "products": count}
        lines.append(line)
        try:
            call = _prepare(entrant, problem, place)
            gradient = call()
            if entrant.compared:
                line["error"] = _error(gradient, reference, entrant.zeros)
            if place.cuda:
                line["mib"] = device_peak(call)
            calls[entrant.label] = call
        except Exception as error:
            line["why"] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        _release(place)
    seconds = in_turn(calls, 1 if place.tiny else _REPEATS, place.device)
    product = 2.0 * shape.tokens * shape.hidden * shape.vocabulary
    floor = min(t for name, t in seconds.items() if name.startswith("bare"))
    for line in lines:
        if (duration := seconds.get(line["label"])) is not None:
            line["ms"] = 1e3 * duration
            line["tflops"] = line["products"] * product / duration / 1e12
            line["floor_share"] = floor / duration
    return {"shape": str(shape), "trained": trained, "tiny": place.tiny, "lines": lines}


def _prepare(entrant: Entrant, problem: Problem, place: Place) -> Callable[[], Tensor]:
    if entrant.package is not None and importlib.util.find_spec(entrant.package) is None:
        raise ModuleNotFoundError(f"{entrant.package} is not installed here")
    if entrant.function == "compiled" and place.tiny:
        raise RuntimeError("not compiled at tiny shapes")
    module = variants if hasattr(variants, entrant.function) else peers
    call = getattr(module, entrant.function)(problem.with_options(entrant.entropy, entrant.zeros))
    if not entrant.kernels:
        return call
    place.needs_cuda("a Triton kernel")

    def through_kernels() -> Tensor:
        with kernels_in_head():
            return call()

    return through_kernels


@torch.no_grad()
def _reference(problem: Problem) -> tuple[Tensor, Tensor]:
    """Sampled rows, the last of all first to be left out as zeros, and their gradients, float64."""
    rows = torch.arange(len(problem.ids), device=problem.ids.device)[-_SAMPLED:]
    weight = problem.weight.detach()
    z = torch.cat([(problem.hidden[rows].double() @ w.double().T) for w in weight.split(16_384)], 1)
    p = z.softmax(dim=1)
    mean = sum(
        (a @ w.double() for a, w in zip(p.split(16_384, 1), weight.split(16_384), strict=True)),
        start=torch.zeros((), dtype=torch.float64, device=rows.device),
    )
    slope = weight[problem.ids[rows]].double() - mean  # [rows, hidden]
    return rows, slope * problem.coefficients[rows, None].double()


def _error(gradient: Tensor, reference: tuple[Tensor, Tensor], zeros: float) -> float:
    """Largest error of the sampled rows' gradient, relative to its largest entry."""
    rows, expected = reference
    if zeros:  # the first rows are the zeros
        active = rows >= round(zeros * len(gradient))
        rows, expected = rows[active], expected[active]
    return float((gradient[rows].double() - expected).abs().max() / expected.abs().max())


def _release(place: Place) -> None:
    if place.cuda:
        gc.collect()
        torch.cuda.empty_cache()


def cases(place: Place) -> Sequence[Case]:
    """The smaller model first, and of the numbers of tokens the middle one."""
    all_cases = []
    for tokens in (16_384, 4096, 32_768):
        for model in MODELS:
            for trained in (False, True):
                kind = "trained" if trained else "frozen"
                key = f"tiny, {kind}" if place.tiny else f"{model}, {kind}, N = {tokens}"
                run = partial(race, model, tokens, trained)
                all_cases.append(Case(key, run, 45.0 * tokens / 16_384 + 15.0))
    return all_cases[:2] if place.tiny else all_cases


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table of each shape."""
    columns = (
        "variant", "ms", "products", "TFLOP/s", "share of the floor", "peak MiB", "largest error",
    )  # fmt: skip
    names = ("label", "ms", "products", "tflops", "floor_share", "mib", "error")
    result = []
    for row in rows:
        lines = (row.values or {}).get("lines", [])
        notes = [
            "Forward and backward. A product is 2NHV operations; TFLOP/s count each variant's own "
            "products, the floor is the faster of the bare ones. Median of turns.",
            "Error: gradient of the hidden states of some rows against float64, relative to its "
            "largest entry. Peak: beyond the inputs.",
            *(f"{line['label']}: not measured, {line['why']}." for line in lines if "why" in line),
        ]
        cells = [tuple(line.get(n) for n in names) for line in lines if "ms" in line]
        result.append(Table(f"{row.key}: {(row.values or {}).get('shape')}", columns, cells, notes))
    return result


STAGE = Stage("The loss head", 2.5, cases, tables, timed=True)
