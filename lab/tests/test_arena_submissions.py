"""Falsified submissions to the arena, each refused for what was falsified."""

from collections.abc import Callable

import numpy as np
import pytest
from arena_tables import DEPTHS, EFFECTS, table

from trustclip_lab.arena.analysis import Runs
from trustclip_lab.arena.submissions import refusals

COLLAPSE = 0.1


@pytest.fixture(scope="module")
def committed() -> Runs:
    return table(seeds=6, effects={"plain": 0.0, "none": EFFECTS["none"]}, tuning_seeds=3)


@pytest.fixture(scope="module")
def honest() -> Runs:
    found = table(seeds=6, effects={"mine": 0.01}, tuning_seeds=3)
    return found.where(constraint="mine")


def changed(runs: Runs, column: str, place: int, value: object) -> Runs:
    values = runs[column].copy()
    values[place] = value
    return Runs({**runs.columns, column: values})


def first(runs: Runs, stage: str) -> int:
    return int(np.flatnonzero(runs["stage"] == stage)[0])


def without(runs: Runs, kept: np.ndarray) -> Runs:
    return runs.at(kept)


def test_an_honest_submission_is_accepted(honest: Runs, committed: Runs) -> None:
    assert refusals(honest, committed, COLLAPSE) == []


Forgery = Callable[[Runs], Runs]
FORGERIES: dict[str, tuple[Forgery, str]] = {
    "a better start": (
        lambda runs: changed(runs, "start", first(runs, "test"), 0.3),
        "starts at 0.3; with that seed's weights and problems it is 0.2",
    ),
    "a lucky seed instead of a bad one": (
        lambda runs: changed(runs, "seed", first(runs, "test"), 7000),
        "use seeds that are not in the plan: 7000",
    ),
    "the bad seed left out": (
        lambda runs: runs.at(np.arange(len(runs)) != first(runs, "test")),
        "lack the seeds 100",
    ),
    "a seed twice": (
        lambda runs: runs.at([*range(len(runs)), first(runs, "test")]),
        "several runs of the seeds 100",
    ),
    "tuned on test seeds": (
        lambda runs: changed(runs, "seed", first(runs, "tuning"), 101),
        "use seeds of the other stage: 101",
    ),
    "a task left out": (
        lambda runs: runs.at(runs["task"] != "needle"),
        f"there are no test runs of needle at depth {DEPTHS[0]}",
    ),
    "more trials than the others": (
        lambda runs: with_trials(runs),
        "16 trials in chain at depth 4; every method has 15",
    ),
    "tested what was not best": (
        lambda runs: changed_where(runs, "learning_rate", 0.001),
        "is tested at learning rate 0.001, width 0.1, and its best trial is learning rate 0.002",
    ),
    "tested what was never tried": (
        lambda runs: changed_where(runs, "learning_rate", 0.5),
        "is tested at learning rate 0.5, width 0.1, which is no trial of it",
    ),
    "more than all right": (
        lambda runs: changed(changed(runs, "end", 3, 1.2), "best", 3, 1.2),
        "is 1.2; allowed: [0, 1]",
    ),
    "not a number": (lambda runs: changed(runs, "end", 3, np.nan), "is nan; allowed: [0, 1]"),
    "an end above the best": (
        lambda runs: changed(runs, "end", 3, float(runs["best"][3]) + 0.01),
        "ends above its own best",
    ),
    "a collapse denied": (
        lambda runs: changed(runs, "end", 3, float(runs["best"][3]) - 0.2),
        "fell by 0.200 and says collapsed = 0",
    ),
    "a label of the arena's own": (
        lambda runs: Runs({**runs.columns, "constraint": np.array(["plain"] * len(runs))}),
        "the label 'plain' is one of the arena's own",
    ),
    "two methods at once": (
        lambda runs: changed(runs, "constraint", 0, "none"),
        "a submission is one constraint",
    ),
    "another stage": (
        lambda runs: Runs({**runs.columns, "stage": np.array(["final"] * len(runs))}),
        "stage 'final' is not of the plan",
    ),
    "a column left out": (
        lambda runs: Runs({k: v for k, v in runs.columns.items() if k != "start"}),
        "lacks the columns start",
    ),
    "text for numbers": (
        lambda runs: Runs({**runs.columns, "end": runs["end"].astype(str)}),
        "column 'end' must hold numbers",
    ),
    "no rows": (lambda runs: runs.at([]), "the table has no rows"),
}


def with_trials(runs: Runs) -> Runs:
    """One more width, on all tuning seeds of the first cell."""
    kept = runs.where(stage="tuning", task="chain", depth=4, width=0.1, learning_rate=0.002)
    more = Runs({**kept.columns, "width": kept["width"] * 1.1})
    return Runs({k: np.concatenate([runs[k], more[k]]) for k in runs.columns})


def changed_where(runs: Runs, column: str, value: float) -> Runs:
    values = runs[column].copy()
    values[runs["stage"] == "test"] = value
    return Runs({**runs.columns, column: values})


@pytest.mark.parametrize("name", FORGERIES)
def test_a_falsified_submission_is_refused_for_it(name: str, honest: Runs, committed: Runs) -> None:
    forge, reason = FORGERIES[name]
    found = refusals(forge(honest), committed, COLLAPSE)
    assert any(reason in sentence for sentence in found), found
    assert all(sentence.endswith(".") for sentence in found)


def test_many_offences_are_counted(honest: Runs, committed: Runs) -> None:
    worse = Runs({**honest.columns, "start": honest["start"] + 0.1})
    found = refusals(worse, committed, COLLAPSE)
    assert len(found) == 4
    assert found[-1] == f"... and {len(honest) - 3} more like the last."
