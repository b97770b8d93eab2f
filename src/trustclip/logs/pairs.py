"""Recorded completions with two log-probabilities a token: the trainer's and the sampler's."""

from pathlib import Path
from typing import Any

import torch

from trustclip.constraints.sampler import WAYS, Pairs
from trustclip.support.jsonl import read_jsonl
from trustclip.support.schemas import conform, mapping

#: Keys of a line of recorded completions, one number per token: the two that are required, and
#: those that make the diagnosis finer.
REQUIRED = ("logp_old", "logp_rollout")
FLOOR = tuple(f"floor_{way}" for way in WAYS)
OPTIONAL = ("entropy", "tokens", "lag", *FLOOR)

_PLACE = ("position", "completion")
_LINE = mapping(
    "Line", dict.fromkeys((*REQUIRED, *OPTIONAL), list[float | None]), total=False, more=True
)


def read_pairs(path: Path) -> Pairs:
    """Log-probabilities that any trainer has written: a JSON object per completion.

    Each line holds ``logp_old`` and ``logp_rollout``, lists of one number per token, nats, and may
    hold ``entropy`` (of the trainer's policy), ``tokens`` (ids), ``lag`` (updates since sampling)
    and ``floor_batch``, ``floor_head``, ``floor_precision``: differences of the trainer from
    itself, null where not measured; see `trustclip.engines.trl.scoring.floor`.

    Raises:
      ValueError: a line without them, or with lists of different lengths.
    """
    columns: dict[str, list[Any]] = {name: [] for name in (*REQUIRED, *OPTIONAL, *_PLACE)}
    for number, row in enumerate(read_jsonl(path), start=1):
        conform(row, _LINE, f"{path}, line {number}")
        if missing := [name for name in REQUIRED if name not in row]:
            raise ValueError(
                f"{path}, line {number}: no {missing[0]!r}, got {', '.join(row)}; needed are "
                f"{' and '.join(REQUIRED)}, lists of one number per token, in nats."
            )
        names = [name for name in (*REQUIRED, *OPTIONAL) if name in row]
        lengths = {name: len(row[name]) for name in names}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{path}, line {number}: lists of different lengths, {lengths}.")
        for name in names:
            columns[name] += row[name]
        columns["position"] += range(lengths[REQUIRED[0]])
        columns["completion"] += [number - 1] * lengths[REQUIRED[0]]
    if not columns["position"]:
        raise ValueError(f"{path} holds no completions.")
    return _finite_pairs(columns)


def _finite_pairs(columns: dict[str, list[Any]]) -> Pairs:
    count = len(columns["position"])
    tensors = {
        name: torch.tensor([float("nan") if v is None else v for v in values]).double()
        for name, values in columns.items()
        if len(values) == count
    }
    finite = tensors["logp_old"].isfinite() & tensors["logp_rollout"].isfinite()
    kept = {name: tensor[finite] for name, tensor in tensors.items()}
    return Pairs(
        trainer=kept["logp_old"],
        sampler=kept["logp_rollout"],
        entropy=kept.get("entropy"),
        position=kept["position"].long(),
        token=kept["tokens"].long() if "tokens" in kept else None,
        completion=kept["completion"].long(),
        lag=kept.get("lag"),
        floor={way: kept[name] for way, name in zip(WAYS, FLOOR, strict=True) if name in kept}
        or None,
    )
