"""Shadow gates: what other methods would have kept of the tokens that a run trains on.

A shadow sees the batches of a run under another method, the acting one, and changes nothing. What
it reports is about these batches alone: had it acted, the policy would have gone elsewhere, and
later batches would have been others.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.adaptive import adapts
from trustclip.constraints.base import Method, Trait, moves_candidates
from trustclip.constraints.batch import SUPPLIERS, Surrogate, TokenBatch
from trustclip.constraints.diagnostics import (
    P_OLD_EDGES,
    QUADRANTS,
    Window,
    quadrants,
    ranges,
)
from trustclip.constraints.gradients import gradients
from trustclip.constraints.masked import zero_masked
from trustclip.constraints.registry import as_method

#: Kinds of tokens by which gated shares are split, in the columns of the sums.
_P_OLD = tuple(ranges("p_old", P_OLD_EDGES))
_KINDS = ("all", *QUADRANTS, *_P_OLD)


def label(method: Method) -> str:
    """Name of a method and its settings that are not the defaults, as in the names of metrics.

    Example:
      >>> import trustclip as tc
      >>> label(tc.method("clip", epsilon=0.1)), label(tc.method("atr"))
      ('clip(epsilon=0.1)', 'atr')
    """
    values = {key: value for key, value in method.to_dict().items() if key != "name"}
    defaults = {f.name: f.default for f in fields(_plain(method))}  # type: ignore[arg-type]
    changed = [f"{k}={_short(v)}" for k, v in values.items() if _short(v) != _short(defaults[k])]
    return f"{method.name}({','.join(changed)})" if changed else method.name


def _plain(method: Method) -> Method:
    """The method whose fields a mapping names: for thresholds with controllers, the inner one."""
    parts = getattr(method, "parts", ())
    return parts[0] if parts and parts[0].name == method.name else method


def _short(value: Any) -> str:
    if isinstance(value, Method):
        return label(value)
    if isinstance(value, Mapping):
        return label(as_method(value)) if "name" in value else str(dict(value)).replace(" ", "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def shadow_methods(specs: Iterable[Any], supplied: Collection[str], engine: str) -> list[Method]:
    """Methods to watch with, checked against the optional fields of `TokenBatch` that are supplied.

    Raises:
      ValueError: an unknown method, one listed twice, or one that cannot be a shadow there.

    Example:
      >>> shadow_methods(["atr", {"name": "clip", "epsilon": 0.1}], (), "TRL")[1]
      Clip(epsilon=0.1, side='outward', level='token')
    """
    if isinstance(specs, str | Mapping | Method):
        raise ValueError(f"shadows must be a list of methods, got {specs!r}.")
    methods = [as_method(spec) for spec in specs]
    names = [label(method) for method in methods]
    for method, name in zip(methods, names, strict=True):
        if names.count(name) > 1:
            raise ValueError(f"the shadow {name!r} is listed twice.")
        if problem := refusal(method, supplied, engine):
            raise ValueError(problem)
    return methods


def refusal(method: Method, supplied: Collection[str], engine: str) -> str | None:
    """The reason why a method cannot be a shadow in an engine; None if it can.

    Example:
      >>> import trustclip as tc
      >>> print(refusal(tc.method("trpo"), (), "verl"))
      'trpo' cannot be a shadow: it decides by statistics over all ranks, and a shadow sees one \
micro-batch.
    """
    start = f"{method.name!r} cannot be a shadow"
    for name in method.requires:
        if name not in supplied:
            return (
                f"{start} in {engine}: it needs `{name}`, which comes from {SUPPLIERS[name]} and "
                "is missing."
            )
    if method.statistics_over is not None:
        return (
            f"{start}: it decides by statistics over all ranks, and a shadow sees one micro-batch."
        )
    if adapts(method):
        return (
            f"{start}: its threshold adapts to what its own gate did, and a shadow's gate does "
            "nothing; give the threshold as a number."
        )
    if Trait.NEEDS_KL_GRADIENT in method.traits or moves_candidates(method):
        return f"{start}: its update is not a weight on each sampled token alone."
    return None


class Shadows:
    r"""What a list of methods would have kept, next to the acting one, as sums that add up.

    With $g_i$ the tokens that method $i$ gates and $c_i$ its coefficients (see
    `trustclip.coefficient`), the sums are $|g_i \cap g_j|$, $\sum_t c_{it} c_{jt}$ and the size of
    $g_i$ within each kind of token, over the tokens with finite numbers. Counts are exact however
    the tokens are split into batches. Method 0 is the acting one.

    Args:
      methods: the shadows; see `shadow_methods`.

    Example:
      >>> import trustclip as tc
      >>> from trustclip.constraints.loss import gradient
      >>> old = torch.full((1, 4), -1.0)
      >>> batch = TokenBatch(old + torch.tensor([[0.0, 0.15, 0.3, 0.6]]), old, torch.ones(1, 4),
      ...                    torch.ones(1, 4, dtype=torch.bool))
      >>> shadows = Shadows([tc.method("clip", epsilon=0.1), tc.method("atr")])
      >>> c, surrogate = gradient(tc.method("clip"), batch)
      >>> shadows.add(batch, c, surrogate.kept)
      >>> metrics = shadows.read()
      >>> [metrics[f"shadow/{name}/gated"] for name in shadows.labels]
      [0.75, 0.25]
      >>> round(metrics["shadow/clip(epsilon=0.1)/precision"], 4), metrics["shadow/atr/precision"]
      (0.6667, 1.0)
    """

    def __init__(self, methods: Iterable[Method]) -> None:
        self.methods = list(methods)
        self.labels = [label(method) for method in self.methods]
        self._sums: tuple[Tensor, ...] | None = None

    def add(self, batch: TokenBatch, coefficient: Tensor, kept: Tensor) -> None:
        """Add one batch, with the acting method's coefficients, and where it kept the gradient."""
        if not self.methods:
            return
        # Statistics in the batch are those of the acting method.
        pairs = gradients(self.methods, batch.having(statistics=None))
        outcomes = [(coefficient, kept), *((c, surrogate.kept) for c, surrogate in pairs)]
        sums = _sums(batch, outcomes)
        before = self._sums
        self._sums = sums if before is None else tuple(map(torch.add, before, sums))

    def state_dict(self) -> dict[str, Any]:
        """The accumulated sums, for a checkpoint."""
        return {"labels": self.labels, "sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; sums of other shadows are dropped."""
        self._sums = state["sums"] if state["labels"] == self.labels else None

    def read(self, reduce: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, float]:
        """Shares and agreements of all batches added; empty if they held no token.

        For each shadow, ``shadow/LABEL/`` with: ``gated``, the share of tokens that it would have
        gated; ``both``, the share of tokens that the acting method gated as well; ``precision``,
        ``both`` over ``gated``; ``recall``, ``both`` over what the acting method gated;
        ``jaccard``, ``both`` over what either gated; ``cosine`` between the two updates as vectors
        of coefficients; ``gated/QUADRANT``, of all tokens; ``gated/p_old_LOW_HIGH``, of the tokens
        of that kind; ``both/OTHER`` and ``cosine/OTHER`` with the shadows after it. A share of
        nothing is left out. ``reduce`` sums a tensor over ranks, once on every rank.
        """
        if self._sums is None:
            return {}
        packed = reduce(torch.cat([part.flatten() for part in self._sums])).cpu()
        flat = packed.split([part.numel() for part in self._sums])
        both, dots, kinds = map(Tensor.view_as, flat, self._sums)
        metrics = {
            f"shadow/{name}/{key}": value
            for i, name in enumerate(self.labels, start=1)
            for key, value in self._of(i, both, dots, kinds)
        }
        return {name: value for name, value in metrics.items() if not math.isnan(value)}

    def _of(self, i: int, both: Tensor, dots: Tensor, kinds: Tensor) -> Iterator[tuple[str, float]]:
        """Names and values of the ``i``-th method; NaN for a share of nothing."""
        tokens = kinds[-1]  # [kinds]
        yield "gated", _ratio(kinds[i, 0], tokens[0])
        yield "jaccard", _ratio(both[i, 0], both[i, i] + both[0, 0] - both[i, 0])
        yield "precision", _ratio(both[0, i], both[i, i])
        yield "recall", _ratio(both[0, i], both[0, 0])
        for j in (0, *range(i + 1, len(both))):
            other = f"/{self.labels[j - 1]}" if j else ""
            yield f"both{other}", _ratio(both[i, j], tokens[0])
            yield f"cosine{other}", _ratio(dots[i, j], (dots[i, i] * dots[j, j]).sqrt())
        for k, kind in enumerate(_KINDS[1:], start=1):
            yield f"gated/{kind}", _ratio(kinds[i, k], tokens[k if kind in _P_OLD else 0])


class WatchedWindow(Window):
    """A `Window` whose metrics include those of shadows; with none, it is a plain `Window`."""

    def __init__(self, methods: Iterable[Method] = ()) -> None:
        super().__init__()
        self._shadows = Shadows(methods)

    def add(
        self,
        batch: TokenBatch,
        surrogate: Surrogate,
        method: Method | None = None,
        kinds: bool = True,
        coefficient: Tensor | None = None,
    ) -> None:
        """Add one batch, the acting method's surrogate of it and its coefficients."""
        super().add(batch, surrogate, method, kinds)
        if coefficient is not None:
            self._shadows.add(batch, coefficient, surrogate.kept)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "shadows": self._shadows.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._shadows.load_state_dict(state["shadows"])

    def read(self, reduce: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, float]:
        """The metrics of `Window.read` and of `Shadows.read`."""
        return super().read(reduce) | self._shadows.read(reduce)


def _ratio(part: Tensor, whole: Tensor) -> float:
    return (part / whole).item()  # 0 / 0 is NaN


@torch.no_grad()
def _sums(batch: TokenBatch, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Gated by both, products of coefficients, and gated by kind with the tokens as last row.

    Shapes [methods, methods], the same, [methods + 1, kinds]; float64.
    """
    finite = batch.finite
    dtype = batch.logp_old.dtype
    gated = torch.stack([finite & ~kept for _, kept in pairs]).flatten(1).to(dtype)  # [methods, N]
    c = torch.stack([zero_masked(c, finite) for c, _ in pairs]).flatten(1)  # [methods, N]
    # A comparison for each edge: `bucketize` takes ten times as long where edges are few.
    beyond = [batch.p_old.flatten() > edge for edge in P_OLD_EDGES[1:-1]]
    place = torch.stack(beyond).sum(dim=0)  # bucket of each token. [N]
    of_kind = [finite, *quadrants(batch).values()]
    of_kind = [kind.flatten() for kind in of_kind] + [place == k for k in range(len(_P_OLD))]
    members = torch.stack(of_kind, dim=1).to(dtype)  # [N, kinds]
    rows = torch.cat([gated, finite.flatten()[None].to(dtype)])  # [methods + 1, N]
    # Products of zeros and ones: exact in float32 below 2^24 tokens a batch.
    return (gated @ gated.T).double(), (c @ c.T).double(), (rows @ members).double()
