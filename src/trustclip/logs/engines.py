"""Names of metrics in other trainers: ``names.toml``, and what these leave open."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustclip.support.jsonl import Row

_TABLE: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("names.toml").read_text(encoding="utf-8")
)


def _of_each(key: str) -> dict[str, str]:
    """The names that a list of each trainer has, and the trainer of each."""
    return {name: trainer for trainer, part in _TABLE.items() for name in part.get(key, ())}


#: Trainer -> its names -> ours.
NAMES: Mapping[str, Mapping[str, str]] = {t: part["names"] for t, part in _TABLE.items()}
#: The same, of the trainers that a tracker's log alone tells.
VALUES = {trainer: NAMES[trainer] for trainer in NAMES if "marks" in _TABLE[trainer]}
#: Logged as new minus old, where our estimates are old minus new.
NEGATIVE = _of_each("negative").keys()
#: Trainers whose ratio is to the sampler, with no third policy.
TWO_POLICIES = {trainer for trainer, part in _TABLE.items() if part.get("two_policies")}
#: Names that only one of them has; and those that are ours, too.
MARKS, SHARED = _of_each("marks"), _of_each("shared")


def trainer_of(plain: list[str]) -> str | None:
    """Which of these trainers logs such names, without ``train/`` and ``@sum``; None for none.

    Example:
      >>> trainer_of(["loss", "gen_kl_error"]), trainer_of(["actor/pg_clipfrac"])
      ('NeMo RL', None)
    """
    return next((MARKS[name] for name in plain if name in MARKS), None)


def missing(trainer: str, rows: Sequence[Row]) -> list[str]:
    """What the metrics of one of these trainers leave open."""

    def has(*names: str) -> bool:
        return any(name in row for row in rows for name in names)

    gaps = []
    if not has("trustclip/gated"):
        gaps.append(f"the share of clipped tokens ({trainer} logged none)")
    if not has("trustclip/k1", "trustclip/ratio"):
        gaps.append("how far the policy moved within a generation")
    if not has("trustclip/sampler/k3", "trustclip/sampler/k1", "trustclip/sampler/abs"):
        gaps.append("whether the sampler differs")
    return [*gaps, "the share of groups with equal rewards", "which tokens were clipped"]
