"""Files of tokens under methods: batches of them, and what each method would have kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.loss import gradient
from trustclip.constraints.selection import only_what_matters
from trustclip.constraints.shadow import Shadows, label, refusal
from trustclip.logs.recognise import token_rows
from trustclip.logs.tokens import TokenRow, padded, token_batch

#: Completions that are in memory at once.
ROWS = 64
#: Optional fields of `TokenBatch` that a file of tokens may have.
_OPTIONAL = ("entropy", "logp_rollout")


def chunks(paths: Sequence[Path]) -> Iterator[tuple[tuple[TokenRow, ...], TokenBatch]]:
    """Rows of files of tokens or run directories, `ROWS` together, and the batch that they make.

    Completions without an advantage are masked: no constraint acts on them, and the metrics of a
    run leave them out, too.
    """
    rows = chain.from_iterable(map(token_rows, paths))
    while some := tuple(islice(rows, ROWS)):
        yield some, only_what_matters(token_batch(some))


def supplied(paths: Sequence[Path]) -> set[str]:
    """Optional fields of `TokenBatch` that files of tokens have, by their first rows."""
    for _, batch in chunks(paths):
        return {name for name in _OPTIONAL if getattr(batch, name) is not None}
    raise ValueError(f"{', '.join(map(str, paths))}: there are no tokens.")


@dataclass(frozen=True)
class ShadowResult:
    """What methods would have kept of the tokens in files."""

    acting: str  # name of what the others are compared with
    labels: Sequence[str]
    #: Those of `trustclip.constraints.shadow.Shadows`, and ``gated`` of the acting method.
    metrics: dict[str, float]
    completions: int  # with an advantage
    tokens: int  # of these completions


def watch(paths: Sequence[Path], methods: Sequence[Method], acting: Method) -> ShadowResult:
    """Compare methods on files of tokens with what the run recorded of its own method.

    Where a row lacks ``coefficient`` or ``kept``, the acting method supplies it. The files
    are read once, in bounded memory.
    """
    shadows, recorded = Shadows(methods), True
    cut = tokens = completions = 0
    for rows, batch in chunks(paths):
        if all(row.coefficient is not None and row.kept is not None for row in rows):
            own = padded(rows, "coefficient"), padded(rows, "kept")
        else:
            c, surrogate = gradient(acting, batch)
            own, recorded = (c, surrogate.kept), False
        shadows.add(batch, *own)
        finite = batch.finite
        cut += int((finite & ~own[1]).sum())
        tokens += int(finite.sum())
        completions += int(finite.any(dim=1).sum())
    if not tokens:
        raise ValueError(f"{', '.join(map(str, paths))}: no token has an advantage.")
    name = "the recorded method" if recorded else label(acting)
    metrics = {"gated": cut / tokens, **shadows.read()}
    return ShadowResult(name, shadows.labels, metrics, completions, tokens)


def able(methods: Sequence[Method], fields: set[str]) -> tuple[list[Method], dict[str, str]]:
    """The methods that can be shadows of a log, and the reason why each of the others cannot."""
    reasons = {method.name: refusal(method, fields, "this log") for method in methods}
    why = {name: reason for name, reason in reasons.items() if reason is not None}
    return [method for method in methods if method.name not in why], why
