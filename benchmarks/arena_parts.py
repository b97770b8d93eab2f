"""What stands beside the arena: its first time, asymmetry at one trial, and two further depths.

Each part has a table of runs of its own in ``benchmarks/arena-*``; `arena_report.py` writes what is
made here into the page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trustclip.arena.analysis import Answer, Runs, answers, by_depth
from trustclip.arena.entry import Entry, read_entry
from trustclip.arena.figures import contrasts_figure
from trustclip.arena.tables import chosen_table, concluded, contrast_table, signed, task_table
from trustclip.report.draw.marks import Figure
from trustclip.report.tables import Cell, Table, TableRow

ROOT = Path(__file__).parent
FIRST, SAME, DEPTHS = (ROOT / f"arena-{name}" for name in ("first", "same-trial", "depths"))


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
        if choices(self.first.main)["atr"] != choices(same.main)["atr"]:
            raise ValueError("the same tuning seeds have chosen another trial for atr")
        return same

    @cached_property
    def depths(self) -> Entry:
        """Depths 4 and 256."""
        return read_entry(DEPTHS)

    def said(self) -> dict[str, str]:
        """What was run, by block of the page."""
        same = self.same.main
        return {
            "first-settings": counted(self.first),
            "same-settings": f"{len(same):,} test runs on {len(same.values('seed'))} seeds in "
            f"{len(same.cells)} settings; the trials of `atr` are those of the first time.",
            "depths-settings": counted(self.depths),
        }

    def tables(self) -> dict[str, Table]:
        """Tables, by block of the page."""
        first, same = self.first, self.same
        return {
            "held": held_table(first, self.arena),
            "first-contrasts": contrast_table(by_depth(first.main, first.questions)),
            "first-chosen": chosen_table(first.main, first.trials, {}),
            "same-contrasts": contrast_table(by_depth(same.main, same.questions)),
            "same-tasks": task_table(same.main, {}),
            "depths": self.depths_table(),
            "depths-tasks": task_table(self.depths.main, {}),
        }

    def figures(self) -> dict[Path, Figure]:
        """Folder -> the contrasts of its runs."""
        return {DEPTHS: contrasts_figure(self.at_depths)}

    @cached_property
    def at_depths(self) -> dict[str, list[Answer]]:
        """The contrasts at every depth, on the test seeds that all have."""
        seeds = self.depths.main.values("seed")
        found = {
            depth: answers(own, entry.questions, f"depth {depth}")
            for entry in (self.arena, self.depths)
            for (depth,), own in entry.main.where(seed=seeds).by("depth").items()
        }
        return {f"depth {depth}": found[depth] for depth in sorted(found)}

    def depths_table(self) -> Table:
        """A column of differences for every depth."""
        every = self.at_depths
        rows = [
            TableRow(
                of_one[0].question.asks,
                [signed(answer.contrast.difference) for answer in of_one],
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


def counted(entry: Entry) -> str:
    """Which settings are complete, and how many runs they have."""
    main, trials = entry.main, entry.trials
    cells = ", ".join(f"`{task}` at depth {depth}" for task, depth in main.cells)
    return (
        f"{len(main.values('constraint'))} constraints in {len(main.cells)} settings ({cells}): "
        f"{len(trials):,} tuning runs on {len(trials.values('seed'))} seeds, {len(main):,} test "
        f"runs on {len(main.values('seed'))} fresh ones."
    )


def held_table(first: Entry, again: Entry) -> Table:
    """Whether what the first runs said came back, by the rule that was written before."""
    before = {a.question: a for a in answers(first.main, first.questions)}
    rows = []
    for now in answers(again.main, again.questions):
        then = before[now.question]
        rows.append(
            TableRow(
                now.question.asks,
                [concluded(then), concluded(now), Cell(verdict(then, now))],
                note=f"{now.question.ours} − {now.question.theirs}",
            )
        )
    notes = [
        "Points of the score at the end. Holds: told apart again in the same direction, with an "
        "interval that includes the first estimate."
    ]
    names = [f"first, {seeds(first)}", f"again, {seeds(again)}", "so"]
    return Table("held", "Held", "question", [("", names)], rows, notes)


def verdict(then: Answer, now: Answer) -> str:
    """What became of a conclusion."""
    old, new = then.contrast, now.contrast
    if old.conclusion not in ("larger", "smaller"):
        return "open as before" if new.conclusion == old.conclusion else "now concluded"
    if new.conclusion != old.conclusion:
        return "does not hold"
    inside = new.difference.low <= old.difference.value <= new.difference.high
    return "holds" if inside else "the sign holds, the size does not"


def seeds(entry: Entry) -> str:
    """How many seeds it was tuned and tested on."""
    return f"{entry.settings.tuning.count} tuning and {entry.settings.test.count} test seeds"


def choices(runs: Runs) -> Mapping[str, dict[tuple[str, int], str]]:
    """Constraint -> setting -> the trial that was tested."""
    return {
        name: {
            cell: f"{one['label'][0]} {one['learning_rate'][0]:.4g}"
            for cell, one in own.by("task", "depth").items()
        }
        for name, own in runs.constraints.items()
    }  # type: ignore[misc]
