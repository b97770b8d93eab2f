"""A folder that the arena has written: its plan and its table; several of them as one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from arena_analysis import Question, Runs, complete_runs, within
from arena_choice import Choice, choices

from trustclip_lab.arena.run import PLAN, TABLE, read_plan
from trustclip_lab.arena.settings import MAIN, ArenaSettings
from trustclip_lab.arena.table import COLUMNS, read_runs

#: Settings that runs side by side share.
SHARED = ("lab", "tasks", "depths", "learning_rates", "tuning", "test", "axes")


@dataclass(frozen=True)
class Entry:
    """Runs with their plan."""

    settings: ArenaSettings
    runs: Runs

    @cached_property
    def main(self) -> Runs:
        """Test runs of the main design, of the settings in which every constraint has all seeds."""
        test = self.runs.where(stage="test", design=MAIN)
        return complete_runs(test, self.settings.constraints, self.settings.test.count)

    @cached_property
    def trials(self) -> Runs:
        """Tuning runs of the same settings."""
        return within(self.runs.where(stage="tuning", design=MAIN), self.main.cells)

    @property
    def questions(self) -> list[Question]:
        """Contrasts that were fixed before the runs."""
        return [Question(asks, *pair) for asks, pair in self.settings.contrasts.items()]

    @cached_property
    def choices(self) -> list[Choice]:
        """The same with the choice of trials counted."""
        return choices(self.trials, self.main, self.questions)

    @cached_property
    def choices_by_task(self) -> dict[str, list[Choice]]:
        """The same task by task; empty with too few tuning seeds."""
        tasks = sorted(self.main.values("task")) if self.choices else []
        return {
            task: choices(self.trials.where(task=task), self.main.where(task=task), self.questions)
            for task in tasks
        }

    @property
    def controls(self) -> list[Question]:
        """Pairs that must be the same to the last digit."""
        return [Question(asks, *pair) for asks, pair in self.settings.controls.items()]

    def links(self, page: str) -> dict[str, str]:
        """Constraint -> address of its method's page, by a pattern such as ``methods/{}.html``."""
        methods = {
            label: str(spec.get("name", "clip_higher"))
            for label, spec in self.settings.constraints.items()
        }
        return {label: page.format(name) for label, name in methods.items() if ":" not in name}


def read_entry(folder: Path) -> Entry:
    """Plan and table of a folder.

    Raises:
      ValueError: it has none, or one that cannot be read.
    """
    for name in (PLAN, TABLE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a folder of the arena: it has no {name}.")
    settings = read_plan(folder / PLAN, {})
    rows = read_runs(folder / TABLE)
    return Entry(settings, Runs({name: [row[name] for row in rows] for name in COLUMNS}))


def plan_differences(entry: Entry, arena: Entry) -> list[str]:
    """How the plan of other runs differs from the arena's: they cannot stand side by side."""
    pairs = {
        name: (getattr(entry.settings, name), getattr(arena.settings, name)) for name in SHARED
    }
    return [
        f"`{name}` of arena.yaml is {theirs}; the arena's is {ours}."
        for name, (theirs, ours) in pairs.items()
        if theirs != ours
    ]


def combine(arena: Entry, others: Sequence[Entry]) -> Entry:
    """The arena with other constraints, run by the same plan, beside its own."""
    every = [arena, *others]
    columns = {name: np.concatenate([one.runs[name] for one in every]) for name in COLUMNS}
    constraints = {k: v for one in every for k, v in one.settings.constraints.items()}
    return Entry(replace(arena.settings, constraints=constraints), Runs(columns))
