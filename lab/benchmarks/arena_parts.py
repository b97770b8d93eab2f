"""The parts beside the arena: its first time, asymmetry at one trial, depths 4 and 256, and a
policy of 0.4 million parameters.

Each part has its own table of runs in ``arena-*`` beside this file; `arena_report.py` writes
what is made here into the page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from arena_analysis import Answer, Question, Runs, answers, answers_by
from arena_choice import Choice, choices
from arena_entry import Entry, combine, read_entry
from arena_figures import contrasts_figure
from arena_tables import (
    choice_table,
    chosen_table,
    conclusion_cell,
    contrast_table,
    gap_cell,
    task_table,
)

from trustclip.report.draw.marks import Figure
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.stats import Difference

ROOT = Path(__file__).parent
FIRST, SAME, DEPTHS, FEW, MANY, LARGER = (
    ROOT / f"arena-{name}"
    for name in ("first", "same-trial", "depths", "depth-4", "depth-256", "transformer")
)


@dataclass(frozen=True)
class Parts:
    """The parts beside the arena.

    Args:
      arena: the arena itself.
    """

    arena: Entry

    @cached_property
    def first(self) -> Entry:
        """The same plan as it was run first, with fewer seeds."""
        return read_entry(FIRST)

    @cached_property
    def same(self) -> Entry:
        """Asymmetry at the trials that the first time chose for `atr`."""
        same = read_entry(SAME)
        if tested_trials(self.first.main)["atr"] != tested_trials(same.main)["atr"]:
            raise ValueError("the same tuning seeds have chosen another trial for atr")
        return same

    @cached_property
    def depths(self) -> Entry:
        """A first look at depths 4 and 256, tuned on few seeds."""
        return read_entry(DEPTHS)

    @cached_property
    def ends(self) -> Entry:
        """Depths 4 and 256, tuned on as many seeds as the arena."""
        return combine(read_entry(FEW), [read_entry(MANY)])

    @cached_property
    def larger(self) -> Entry:
        """A transformer of 0.4 million parameters at depth 16."""
        return read_entry(LARGER)

    @cached_property
    def at_ends(self) -> dict[int, list[Answer]]:
        """The contrasts that were fixed for depths 4 and 256, each depth its own family."""
        return {
            depth: answers(main, self.ends.questions, f"depth {depth}")
            for (depth,), main in sorted(self.ends.main.by("depth").items())
        }

    @cached_property
    def chosen_at_ends(self) -> dict[tuple[int, Question], Choice]:
        """The same with the choice of trials counted."""
        main, trials = self.ends.main, self.ends.trials
        return {
            (depth, one.question): one
            for depth in self.at_ends
            for one in choices(
                trials.where(depth=depth), main.where(depth=depth), self.ends.questions
            )
        }

    def descriptions(self) -> dict[str, str]:
        """The runs in words, by block of the page."""
        same = self.same.main
        return {
            "first-settings": count_runs(self.first),
            "same-settings": f"{len(same):,} test runs on {len(same.values('seed'))} seeds in "
            f"{len(same.cells)} settings; the trials of `atr` are those of the first time.",
            "depths-settings": count_runs(self.depths),
            "ends-settings": count_runs(self.ends),
            "larger-settings": count_runs(self.larger),
        }

    def tables(self) -> dict[str, Table]:
        """Tables, by block of the page."""
        first, same, larger = self.first, self.same, self.larger
        return {
            "held": held_table(first, self.arena),
            "first-contrasts": contrast_table(answers_by("depth", first.main, first.questions)),
            "first-chosen": chosen_table(first.main, first.trials, {}),
            "same-contrasts": contrast_table(answers_by("depth", same.main, same.questions)),
            "same-tasks": task_table(same.main, {}),
            "depths": self.depths_table(),
            "depths-tasks": task_table(self.depths.main, {}),
            "ends": self.ends_table(),
            "ends-tasks": task_table(self.ends.main, {}),
            "ends-chosen": chosen_table(self.ends.main, self.ends.trials, {}),
            "larger-contrasts": contrast_table(answers_by("task", larger.main, larger.questions)),
            "larger-tasks": task_table(larger.main, {}),
            "larger-chosen": chosen_table(larger.main, larger.trials, {}),
            "larger-choice": choice_table(larger.choices, larger.settings.tuning.count),
        }

    def figures(self) -> dict[Path, Figure]:
        """Folder -> the contrasts of its runs."""
        return {DEPTHS: contrasts_figure(self.at_depths)}

    @cached_property
    def at_depths(self) -> dict[str, list[Answer]]:
        """The contrasts at every depth, on the test seeds that all have."""
        seeds = self.depths.main.values("seed")
        by_depth = {
            depth: answers(own, entry.questions, f"depth {depth}")
            for entry in (self.arena, self.depths)
            for (depth,), own in entry.main.where(seed=seeds).by("depth").items()
        }
        return {f"depth {depth}": by_depth[depth] for depth in sorted(by_depth)}

    def depths_table(self) -> Table:
        """A column of differences for every depth."""
        every = self.at_depths
        rows = [
            TableRow(
                of_one[0].question.asks,
                [gap_cell(answer.contrast.difference) for answer in of_one],
                note=f"{of_one[0].question.ours} − {of_one[0].question.theirs}",
            )
            for of_one in zip(*every.values(), strict=True)
        ]
        notes = [
            "Points of the score at the end, mean of the tasks, paired by seed "
            f"({self.depths.settings.test.count} seeds), with 95 % intervals that are not "
            "corrected. No hypothesis was fixed here. Depths 4 and 256 were tuned on "
            f"{self.depths.settings.tuning.count} seeds, the others on "
            f"{self.arena.settings.tuning.count}."
        ]
        return Table("depths", "Depths", "question", [("", list(every))], rows, notes)

    def ends_table(self) -> Table:
        """Depths 4 and 256: the first look, what was tested, and with the choice counted."""
        first = {
            (depth, a.question): a
            for depth in self.at_ends
            for a in answers(
                self.depths.main.where(depth=depth, task=self.ends.main.values("task")),
                self.depths.questions,
            )
        }
        rows = []
        for of_one in zip(*self.at_ends.values(), strict=True):
            q, cells = of_one[0].question, []
            for depth, now in zip(self.at_ends, of_one, strict=True):
                then = first[depth, q].contrast.difference
                both = self.chosen_at_ends[depth, q].both
                so = Cell(outcome(then, side_of(then), now))
                cells += [gap_cell(then), conclusion_cell(now), gap_cell(both), so]
            rows.append(TableRow(q.asks, cells, note=f"{q.ours} − {q.theirs}"))
        names = ["first look", "tested", "with the choice", "so"]
        notes = [
            "Points of the score at the end, mean of the tasks, paired by seed. First look: "
            f"{seeds(self.depths)}, with an interval that is not corrected. Tested: "
            f"{seeds(self.ends)}, none of them the same; Holm's correction over the contrasts of a "
            "depth. With the choice: the same with an interval over test seeds and over what other "
            "tuning seeds would have chosen. Holds: different in the direction that the first "
            "interval had, with an interval that includes the first estimate.",
        ]
        head = [(f"{depth} updates", names) for depth in self.at_ends]
        return Table("ends", "Depths 4 and 256", "question", head, rows, notes)


def count_runs(entry: Entry) -> str:
    """Which settings are complete, and how many runs they have."""
    main, trials = entry.main, entry.trials
    cells = ", ".join(f"`{task}` at depth {depth}" for task, depth in main.cells)
    return (
        f"{len(main.values('constraint'))} constraints in {len(main.cells)} settings ({cells}): "
        f"{len(trials):,} tuning runs on {len(trials.values('seed'))} seeds, {len(main):,} test "
        f"runs on {len(main.values('seed'))} fresh ones."
    )


def held_table(first: Entry, again: Entry) -> Table:
    """Whether the first runs' conclusions hold again, by the rule that was fixed before."""
    before = {a.question: a for a in answers(first.main, first.questions)}
    rows = []
    for now in answers(again.main, again.questions):
        then = before[now.question]
        rows.append(
            TableRow(
                now.question.asks,
                [conclusion_cell(then), conclusion_cell(now), Cell(verdict(then, now))],
                note=f"{now.question.ours} − {now.question.theirs}",
            )
        )
    notes = [
        "Points of the score at the end. Holds: different again in the same direction, with an "
        "interval that includes the first estimate."
    ]
    names = [f"first, {seeds(first)}", f"again, {seeds(again)}", "so"]
    return Table("held", "Held", "question", [("", names)], rows, notes)


def verdict(then: Answer, now: Answer) -> str:
    """What became of a conclusion."""
    return outcome(then.contrast.difference, then.contrast.conclusion, now)


def outcome(then: Difference, conclusion: str, now: Answer) -> str:
    """What became of a difference and its conclusion."""
    new = now.contrast
    if conclusion not in ("larger", "smaller"):
        return "open as before" if new.conclusion == conclusion else "now concluded"
    if new.conclusion != conclusion:
        return "does not hold"
    inside = new.difference.low <= then.value <= new.difference.high
    return "holds" if inside else "the sign holds, the size does not"


def side_of(interval: Difference) -> str:
    """On which side of 0 an interval lies."""
    if interval.low > 0:
        return "larger"
    return "smaller" if interval.high < 0 else "inconclusive"


def seeds(entry: Entry) -> str:
    """How many seeds it was tuned and tested on."""
    return f"{entry.settings.tuning.count} tuning and {entry.settings.test.count} test seeds"


def tested_trials(runs: Runs) -> Mapping[str, dict[tuple[str, int], str]]:
    """Constraint -> setting -> the trial that was tested."""
    return {
        name: {
            cell: f"{one['label'][0]} {one['learning_rate'][0]:.4g}"
            for cell, one in own.by("task", "depth").items()
        }
        for name, own in runs.constraints.items()
    }  # type: ignore[misc]
