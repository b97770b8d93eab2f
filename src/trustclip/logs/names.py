"""Names of metrics in other trainers, and ours: ``names.toml``.

Where another trainer's metric is the same quantity as one of ours, it gets our name; all others
keep theirs. Ours are those of `trustclip.constraints.diagnostics` (``trustclip/...``), the
sampler's among them, and, for what every trainer measures, TRL's.
"""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from trustclip.support.jsonl import Row

#: Metrics of our own, also in verl and in what a tracker holds of Transformers' Trainer.
_OURS = ("trustclip/", "actor/trustclip/", "train/trustclip/")

#: Of each trainer: its names, and what else the file says of it.
TABLE: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


def _of_each(key: str) -> dict[str, str]:
    """The names that a list of each trainer has, and the trainer of each."""
    return {name: trainer for trainer, part in TABLE.items() for name in part.get(key, ())}


TRL, VERL = TABLE["TRL"]["names"], TABLE["verl"]["names"]
#: Trainer -> its names -> ours, of the trainers that a tracker's log alone tells.
VALUES = {trainer: part["names"] for trainer, part in TABLE.items() if "marks" in part}
#: These are logged as new minus old; our estimates are old minus new.
_NEGATIVE = _of_each("negative").keys()
#: These are logged as the share of the other tokens, 1 minus ours.
_COMPLEMENT = _of_each("complement").keys()
#: Only one trainer has these names; and these are ours, too.
_MARKS, _SHARED = _of_each("marks"), _of_each("shared")

#: Shares of 1.
SHARES = {
    *("trustclip/gated", "trustclip/gated/positive_above", "trustclip/gated/negative_below"),
    *("trustclip/gated/negative_above", "frac_reward_zero_std", "completions/clipped_ratio"),
}
#: What answers a question of `trustclip explain`: a log needs at least one of these.
ANSWERS = {
    *SHARES,
    *("trustclip/k1", "trustclip/k3", "trustclip/off_policy", "trustclip/ratio"),
    *("trustclip/sampler/abs", "trustclip/sampler/k1", "trustclip/sampler/k3"),
    *("trustclip/sampler/current/k3", "trustclip/sampler/exp_abs"),
    *("entropy", "reward", "kl", "weight_capped", "completions/mean_length"),
}


def translate(values: Mapping[str, Any], trainer: str | None = None) -> Row:
    """Values of one update under our names; evaluations are left out.

    ``trustclip/gated`` of verl is the sum of both of its shares: the tokens of its dual clip are
    others than those of its clip.

    Example:
      >>> translate({"train/clip_ratio/region_mean": 0.1, "train/loss": 0.2, "eval/loss": 0.3})
      {'trustclip/gated': 0.1, 'loss': 0.2}
      >>> translate({"actor/pg_clipfrac": 0.25, "actor/pg_clipfrac_lower": 0.5})
      {'trustclip/gated': 0.75, 'trustclip/gated/negative_above': 0.5}
      >>> translate({"actor/pg_clipfrac": 0.25, "actor/trustclip/gated": 0.5})  # our loss, in verl
      {'trustclip/gated': 0.5}
      >>> translate({"train/ppo_kl": 0.1, "train/pg_clipfrac": 0.2}, "slime")
      {'trustclip/k1': 0.1, 'trustclip/gated': 0.2}
    """
    own_table = VALUES.get(trainer or "", {})
    ours = {name: value for name, value in values.items() if name.startswith(_OURS)}
    row: Row = {name[name.index("trustclip/") :]: value for name, value in ours.items()}
    own = "trustclip/gated" in row
    for key, value in values.items():
        name = key.removeprefix("train/")
        if name.startswith((*_OURS, "eval_", "eval/", "val-", "val/")):
            continue
        plain = name.removesuffix("@sum") if own_table else name
        if plain in _NEGATIVE:
            value = -value
        elif plain in _COMPLEMENT:
            value = 1 - value
        row.setdefault(own_table.get(plain) or TRL.get(name) or VERL.get(name) or name, value)
    lower = values.get("actor/pg_clipfrac_lower")
    if lower and not own and "trustclip/gated" in row:
        row["trustclip/gated"] += lower
    above, below = (f"trustclip/gated/{part}" for part in ("positive_above", "negative_below"))
    if own_table and "trustclip/gated" not in row and above in row and below in row:
        row["trustclip/gated"] = row[above] + row[below]
    return row


def trainer_of(names: Sequence[str]) -> str | None:
    """The trainer that logs these names; None for one we do not know.

    Example:
      >>> trainer_of(["actor/pg_clipfrac"]), trainer_of(["train/clip_ratio/low_mean", "loss"])
      ('verl', 'TRL')
      >>> trainer_of(["policy/ppo_clip_ratio"])
      'SkyRL'
    """
    plain = [name.removeprefix("train/") for name in names]
    if alone := [_MARKS[name] for each in plain if (name := each.removesuffix("@sum")) in _MARKS]:
        return alone[0]
    for trainer, table in (("TRL", TRL), ("verl", VERL)):
        if any(name in table or _SHARED.get(name) == trainer for name in plain):
            return trainer
    return None


def nothing_of(names: Sequence[str]) -> str:
    """Predicate about a log in which no name is known: what was looked for, what is there."""
    examples = ("clip_ratio/region_mean", "actor/pg_clipfrac", "entropy", "actor/entropy", "reward")
    listing = ", ".join(sorted(names)[:8]) or "nothing"
    choices = [*TRL, *VERL, *_MARKS, *ANSWERS]
    near = [(name, match) for name in names if (match := get_close_matches(name, choices, 1, 0.8))]
    hint = f" {near[0][0]!r} is like {near[0][1][0]!r}." if near else ""
    return (
        f"has no metric of reinforcement learning: looked for {', '.join(examples)} and others of "
        f"TRL, verl, {', '.join(VALUES)}, found {listing}"
        f"{', ...' if len(names) > 8 else ''}.{hint}"
    )


#: The entropy over all completions of a generation; TRL's own key is over those that it scored.
SAMPLING_ENTROPY = "trustclip/sampling_entropy"
