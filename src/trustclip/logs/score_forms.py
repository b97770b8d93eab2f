"""How programs write their scores: a program is one entry of `FORMS`.

It says what the program's rows have, and in which columns it says what.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trustclip.logs.choice import PARTS
from trustclip.support.names import unknown

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """How a program writes its scores.

    Args:
      needs: columns that its rows have, all of them.
      columns: of each part: names, of which the first that is there counts.
      once: whether a problem has one row: a second one is a copy.
      lost: column that holds an error where there was no answer.
      score: the score of a row, where no column holds it alone.
      path: a pattern of its files' names; its group is the task.
      flat: makes a row of what it writes; None of what is left out.
    """

    name: str
    needs: frozenset[str]
    columns: Mapping[str, Sequence[str]]
    once: bool = False
    lost: str = ""
    score: Callable[[Row, str], object] | None = None
    path: str = ""
    flat: Callable[[Row], Row | None] = lambda row: row


def _named(values: Any, wanted: str, what: str = "metric") -> object:
    """The score that is named, or the first one."""
    values = dict(values) if isinstance(values, Mapping | list) else {}
    name = wanted or next(iter(values), "")
    if name not in values:
        raise ValueError(unknown(what, name, values))
    return values[name]


def _of_episode(row: Row) -> Row | None:
    """An episode of verifiers: the mean of its traces' weighted rewards; none of training."""
    work, env, task = ((row.get(part) or {}) for part in ("run", "env", "task"))
    work = work.get("work") or {}
    if work.get("type") == "train":
        return None
    rewards = [
        sum(one["score"] * one.get("weight", 1.0) for one in trace["rewards"].values() if one)
        for trace in row["traces"]
    ]
    return {
        "task": env.get("name") or env.get("id") or "scores",
        "problem": task.get("key") or task.get("hash"),
        "sample": row["id"],
        "score": fmean(rewards) if row["ok"] and rewards else None,
        "step": work.get("step"),
    }


FORMS = (
    Form("verifiers", frozenset({"id", "env", "task", "traces", "ok"}),
         {part: (part,) for part in ("task", "problem", "sample", "score", "step")},
         flat=_of_episode),
    Form("lm-eval", frozenset({"doc_id", "metrics", "filter"}), {"problem": ("doc_id",)},
         once=True, path=r"samples_(.+)_\d{4}-\d\d-\d\dT.*",
         score=lambda row, wanted: _named({n: row[n] for n in row["metrics"] if n in row}, wanted)),
    Form("lighteval", frozenset({"doc", "metric", "model_response"}), {"problem": ("doc",)},
         once=True, score=lambda row, wanted: _named(row["metric"], wanted),
         path=r"details_(.+)_\d{4}-\d\d-\d\dT.*"),
    Form("verl", frozenset({"input", "output", "gts", "score", "step"}),
         {"problem": ("input",), "score": ("acc", "score"), "step": ("step",),
          "task": ("data_source",)}),
    Form("tinker-cookbook", frozenset({"benchmark", "example_id", "reward", "turns"}),
         {"task": ("benchmark",), "problem": ("example_id",), "score": ("reward",)}, lost="error"),
    Form("tinker-cookbook", frozenset({"split", "iteration", "group_idx", "traj_idx"}),
         {"task": ("split",), "problem": ("group_idx",), "sample": ("traj_idx",),
          "score": ("total_reward",), "step": ("iteration",)}),
    Form("prime-rl", frozenset({"example_id", "reward", "completion"}),
         {"task": ("env_name", "task"), "problem": ("example_id",), "score": ("reward",)},
         lost="error"),
    Form("Inspect", frozenset({"sample_id", "epoch", "scores"}),
         {"task": ("task",), "problem": ("sample_id",), "sample": ("epoch",)}, lost="error",
         score=lambda row, wanted: _named(row["scores"], wanted, "scorer")),
)  # fmt: skip
#: A table in its own words.
PLAIN = Form("table", frozenset({"score"}), {part: (part,) for part in PARTS})
