"""Test problems in the training data: which, and whether a run was trained on them."""

from collections.abc import Mapping

from trustclip.findings.groups import Group
from trustclip.logs.answers import overlapping


def overlapping_problems(group: Group) -> dict[str, set[str]]:
    """Ids of the test problems that the training data of any of its runs hold, by task."""
    overlap: dict[str, set[str]] = {}
    for run in group.runs:
        for task, ids in overlapping(run.summary.get("overlap") or {}).items():
            overlap.setdefault(task, set()).update(ids)
    return overlap


def trained_on(group: Group) -> int:
    """How many training problems that are test problems a run of the group was trained on."""
    return max(
        sum(
            stage["problems"]
            for stage in (run.summary.get("overlap") or {}).values()
            if isinstance(stage, Mapping) and stage.get("excluded") is False
        )
        for run in group.runs
    )
