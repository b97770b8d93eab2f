"""The sampler in sentences and in a table: how far it is from the trainer, and on which tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

from trustclip.constraints.base import Method, Trait
from trustclip.report.groups import Group, names
from trustclip.report.rows import PREFIX, ends, mean, percent, values
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.runs.jsonl import Row, read_jsonl
from trustclip.runs.reader import Run
from trustclip.runs.thresholds import LARGE, ROUNDING

#: Effective sample size below which few completions carry an update.
FEW = 0.3
#: Growth of the distance over a run that is worth a sentence.
GROWN = 2.0
#: Tokens named in a sentence, and in a table of each run.
NAMED, LISTED = 3, 10


def sentences(run: Run, rows: Sequence[Row]) -> Iterator[str]:
    """What the run says of its sampler; nothing where that reported no log-probabilities.

    Args:
      run: the run.
      rows: its updates under a constraint.
    """
    for row in run.metrics.get("sampler", ()):
        yield f"Before the first update: {row.get('text')}"
    if not values(rows, "sampler/k3"):
        return
    yield _distance(rows)
    if mean(rows, "sampler/k3") <= ROUNDING:
        return
    sizes = values(rows, "sampler/current/sequence_ess")
    if sizes:
        yield (
            "Whole completions weighed against the sampler had an effective sample size of "
            f"{percent(min(sizes))} of their number at least, {percent(sum(sizes) / len(sizes))} "
            "on average."
        )
    old, rollout = (values(rows, f"sampler/gated_{name}") for name in ("old", "rollout"))
    if old and rollout:
        yield (
            f"Measured against the proximal policy the gate closes on {percent(_of(old))} of "
            f"tokens, measured against the sampler on {percent(_of(rollout))}."
        )
    yield from _lags(rows)
    yield from _worst(run)


def _of(found: Sequence[float]) -> float:
    return sum(found) / len(found)


def _distance(rows: Sequence[Row]) -> str:
    differs, moved = mean(rows, "sampler/k3"), mean(rows, "k3")
    identical = percent(mean(rows, "sampler/identical_share"))
    if differs <= ROUNDING:
        return (
            "The sampler is the trainer's policy but for rounding (sampler/k3 "
            f"{differs:.2g} nats; {identical} of tokens identical to the bit)."
        )
    first, last = ends(values(rows, "sampler/k3"))
    grown = f", from {first:.2g} at first to {last:.2g} at last" if last > GROWN * first else ""
    larger = "the sampler" if differs > moved else "the policy's own movement"
    return (
        f"Proximal policy and sampler differ by {differs:.2g} nats per token (k3){grown}, "
        f"{mean(rows, 'sampler/abs'):.2g} nats of log-probability on average, {identical} of "
        f"tokens identical; the policy moved by {moved:.2g} nats (k3), so the larger part is "
        f"{larger}."
    )


def _lags(rows: Sequence[Row]) -> Iterator[str]:
    """Both distances by lag, where completions of several ages were trained on."""
    prefix = f"{PREFIX}sampler/k3/"
    found = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
    lags = sorted((key.removeprefix(prefix) for key in found), key=_first_lag)
    if len(lags) < 2:
        return
    parts = [
        f"{in_words(lag)}: {mean(rows, f'k3/{lag}'):.2g} moved, "
        f"{mean(rows, f'sampler/k3/{lag}'):.2g} sampler"
        for lag in lags
    ]
    yield f"By updates since a completion was sampled, in nats (k3): {'; '.join(parts)}."


def _first_lag(name: str) -> int:
    return int(name.removeprefix("lag_").partition("_")[0])


def in_words(name: str) -> str:
    """Updates since sampling, from the name of a bucket.

    Example:
      >>> [in_words(name) for name in ("lag_0", "lag_3_4", "lag_17_inf")]
      ['0', '3 to 4', '17 and more']
    """
    low, _, high = name.removeprefix("lag_").partition("_")
    return f"{low} and more" if high == "inf" else f"{low} to {high}" if high else low


def _worst(run: Run) -> Iterator[str]:
    tokens = worst_tokens(run)[:NAMED]
    if tokens:
        listed = "; ".join(
            f"{token['text']!r} (place {token['position']} of completion {token['index']} sampled "
            f"after update {token['generated']}: trainer {token['logp_old']:.3g}, sampler "
            f"{token['logp_rollout']:.3g})"
            for token in tokens
        )
        yield f"They agree least on: {listed}."


def worst_tokens(run: Run) -> list[dict[str, Any]]:
    """The tokens of the run on which trainer and sampler agree least, each place once."""
    path = run.path / "gates.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    found = {
        (token["generated"], token["index"], token["position"]): token
        for row in rows
        for token in row.get("worst", ())
    }
    return sorted(found.values(), key=lambda t: -abs(t["logp_old"] - t["logp_rollout"]))[:LISTED]


def advice(method: Method, rows: Sequence[Row]) -> list[str]:
    """What to try next about the sampler; empty if it is close."""
    differs, sizes = mean(rows, "sampler/k3"), values(rows, "sampler/current/sequence_ess")
    corrects = Trait.CORRECTS_SAMPLER in method.traits
    if differs > LARGE and differs > mean(rows, "k3"):
        cure = (
            f", which {method.name} corrects for but does not mend."
            if corrects
            else "; what remains, correct for (tis, icepop, or anchor 'rollout')."
        )
        return [
            "the sampler is further from the proximal policy than that moved. Find out why: "
            f"trustclip doctor --sampler for another engine or precision, the lag for stale samples"
            f"{cure}"
        ]
    if differs > ROUNDING and sizes and min(sizes) < FEW:
        return [
            "few completions carried some updates: lower the policy lag or the learning rate, or "
            "mask sequences that are far off (icepop with level 'sequence', opsm, trm)."
        ]
    return []


def worst_table(groups: Sequence[Group]) -> Table | None:
    """The tokens on which trainer and sampler agree least, of every group's first such run."""
    rows: list[TableRow] = []
    for title, group in zip(names(groups), groups, strict=True):
        tokens = next((found for run in group.runs if (found := worst_tokens(run))), [])
        if tokens and abs(tokens[0]["logp_old"] - tokens[0]["logp_rollout"]) > ROUNDING**0.5:
            rows.append(TableRow(title, kind="section"))
            rows += [_row(token, group) for token in tokens]
    if not rows:
        return None
    return Table(
        key="worst-tokens",
        title="Tokens on which trainer and sampler agree least",
        corner="Token",
        head=[
            ("Log-probability, nats", ["trainer (old)", "sampler", "difference"]),
            ("Place", ["sampled after update", "completion", "position"]),
        ],
        rows=rows,
        notes=["Of the ten worst tokens of every update, the ten worst of the run."],
    )


def _row(token: dict[str, Any], group: Group) -> TableRow:
    old, rollout = token["logp_old"], token["logp_rollout"]
    cells = [f"{old:.4g}", f"{rollout:.4g}", f"{old - rollout:+.3g}"]
    cells += [str(token[name]) for name in ("generated", "index", "position")]
    return TableRow(repr(token["text"]), [Cell(text) for text in cells], series=group.series)
