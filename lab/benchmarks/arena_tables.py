"""The arena's tables: leaderboard, contrasts, tasks, sensitivity, equal measured width.

In one file because every table writes a difference, a share and a trial by the same few helpers.
"""

from collections.abc import Mapping, Sequence
from math import isnan

from arena_analysis import (
    CELL,
    MARGIN,
    Answer,
    Question,
    Runs,
    Standing,
    at_equal_score,
    differences,
    identical,
    rate,
    seed_mean,
)
from arena_choice import Choice
from arena_tuning import NEAR, Sensitivity, at_equal, width_effects

from trustclip import stats
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.support.text import bracket, percent
from trustclip_lab.stats.equivalence import paired_runs

NOTHING = Cell("-")
Series = Mapping[str, int]
Links = Mapping[str, str]


def leaderboard(
    board: Sequence[Standing], reference: str, series: Series, links: Links, title: str
) -> Table:
    """Every constraint over all tasks and depths, the highest score first."""
    names = [
        "end", f"minus {reference}", "middle half", f"better than {reference}", "area",
        "collapsed", "end if not", "reached", "generations", "Pass@K", "CPU s",
    ]  # fmt: skip
    rows = [
        TableRow(
            one.constraint,
            [
                _share(one.end),
                NOTHING if one.minus is None else gap_cell(one.minus),
                _share(one.middle),
                NOTHING if one.better is None else _share(one.better),
                _share(one.area),
                _share(one.collapsed),
                Cell(percent(one.standing)),
                _share(one.reached),
                Cell(f"{one.time:.1f}"),
                _share(one.passk),
                Cell(f"{one.seconds:.2f}"),
            ],
            series=series.get(one.constraint),
            link=links.get(one.constraint, ""),
        )
        for one in board
    ]
    notes = [
        "Percent of answers that are right, mean over tasks and depths, with 95 % intervals over "
        "seeds; differences in points, paired by seed. Middle half: interquartile mean of all "
        "runs. Better: probability that a random run scores above a random one of "
        f"{reference}. Area: mean of all evaluations of a run. End if not: of the runs that did "
        "not collapse. Reached: share that came to their task's threshold, and mean generations "
        "until then, with those that never did counted to the end.",
    ]
    return Table(_key("leaderboard", title), f"Leaderboard{title}", "constraint", [("", names)],
                 rows, notes)  # fmt: skip


def contrast_table(by_scope: Mapping[str, Sequence[Answer]]) -> Table:
    """The fixed contrasts with their conclusions, and what else their runs show.

    Args:
      by_scope: answers by scope; those of the first scope were fixed before the runs.
    """
    (main_scope, first), *others = by_scope.items()
    by = {(scope, a.question): a for scope, answers in others for a in answers}
    rows = [
        TableRow(
            a.question.asks,
            [
                conclusion_cell(a),
                *(_gap(by.get((scope, a.question))) for scope, _ in others),
                *_extra(a),
            ],
            note=f"{a.question.ours} − {a.question.theirs}",
        )
        for a in first
    ]
    names = [scope for scope, _ in others] + FURTHER
    notes = [
        f"Points of the score at the end, paired by seed ({first[0].seeds} seeds), each with its "
        "own 95 % interval. Larger, smaller: different from 0; equivalent: surely less than "
        f"{_points(first[0].margin)} in either direction (two one-sided tests); each at 5 % after "
        "Holm's correction over the contrasts. Only these were fixed before the runs; the other "
        "columns describe. " + ABOUT_FURTHER,
    ]
    head = [("tested", [main_scope]), ("described", names)]
    return Table("contrasts", "Contrasts", "question", head, rows, notes)


def described_table(answers: Sequence[Answer], title: str) -> Table:
    """The contrasts in a design whose hypotheses were not fixed: differences, no conclusion."""
    rows = [
        TableRow(
            a.question.asks, [_gap(a), *_extra(a)], note=f"{a.question.ours} − {a.question.theirs}"
        )
        for a in answers
    ]
    notes = [
        f"Points of the score at the end, paired by seed ({answers[0].seeds} seeds), with 95 % "
        "intervals that are not corrected. No hypothesis was fixed here. " + ABOUT_FURTHER
    ]
    return Table(
        _key("contrasts", title), f"Contrasts{title}", "question",
        [("", [answers[0].scope, *FURTHER])], rows, notes,
    )  # fmt: skip


#: Columns of a contrast after the score at the end, and what they are.
FURTHER = ["area", "better", "collapsed"]
ABOUT_FURTHER = (
    "Area: of the mean of all evaluations. Better: probability that a random run of the first "
    "scores above a random one of the second, percent. Collapsed: difference of the rates, of "
    "pairs of the same seed."
)


def _extra(answer: Answer) -> list[Cell]:
    return [gap_cell(answer.area), _share(answer.better), gap_cell(answer.collapse)]


def _gap(answer: Answer | None) -> Cell:
    return NOTHING if answer is None else gap_cell(answer.contrast.difference)


def choice_table(choices: Sequence[Choice], tuning_seeds: int) -> Table:
    """The contrasts with the choice of their trials counted."""
    fewer = [*choices[0].fewer]
    rows = [
        TableRow(
            one.question.asks,
            [
                gap_cell(one.both),
                Cell(" / ".join(percent(share, 0) for share in one.again)),
                *(Cell(percent(one.fewer[seeds])) for seeds in fewer),
                Cell(percent(one.spread)),
            ],
            note=f"{one.question.ours} − {one.question.theirs}",
        )
        for one in choices
    ]
    notes = [
        "Points of the score at the end. All settings: each with a 95 % interval over test seeds "
        "and over what other tuning seeds would have chosen, not corrected. Chosen again: percent "
        "of tunings that choose the same trial in a setting, of the first and of the second. "
        "Spread: standard deviation of the contrast over tunings on so many seeds, drawn from the "
        f"{tuning_seeds} (with replacement for the last, without for the others).",
    ]
    of_seeds = [f"{seeds} seed{'s' * (seeds > 1)}" for seeds in (*fewer, tuning_seeds)]
    head = [("", ["all settings", "chosen again"]), ("spread of the choice", of_seeds)]
    return Table("choice", "With the choice of trials", "question", head, rows, notes)


def control_table(runs: Runs, controls: Sequence[Question], title: str) -> Table | None:
    """Pairs whose runs must be the same to the last digit."""
    by = runs.constraints
    rows = []
    for q in controls:
        if q.ours in by and q.theirs in by:
            same, every = identical(by[q.ours], by[q.theirs])
            cells = [Cell(str(every)), Cell(str(same)), Cell("yes" if same == every else "no")]
            rows.append(TableRow(q.asks, cells, note=f"{q.ours}, {q.theirs}"))
    head = [("", ["runs", "the same", "all"])]
    notes = ["Pairs of runs whose every column but the time is the same to the last digit."]
    if not rows:
        return None
    return Table(_key("controls", title), f"Negative controls{title}", "pair", head, rows, notes)


def task_table(runs: Runs, series: Series) -> Table:
    """Score at the end in every task and depth."""
    depths: dict[str, list[tuple[str, int]]] = {}
    for task, depth in sorted(runs.cells, key=lambda cell: cell[1]):
        depths.setdefault(task, []).append((task, depth))
    cells = [cell for own in depths.values() for cell in own]
    by = runs.by("constraint", *CELL)
    scores = {key: seed_mean(own, "end") for key, own in by.items()}
    top = {cell: max(v.value for k, v in scores.items() if k[1:] == cell) for cell in cells}
    rows = []
    for name in runs.values("constraint"):
        row_scores = [scores.get((name, *cell)) for cell in cells]
        row = [
            NOTHING if score is None else _share(score, strong=score.value == top[cell])
            for score, cell in zip(row_scores, cells, strict=True)
        ]
        rows.append(TableRow(name, row, series=series.get(name)))
    head = [(task, [f"depth {depth}" for _, depth in own]) for task, own in depths.items()]
    notes = ["Percent right at the end, with 95 % intervals over seeds. Bold: the highest."]
    return Table("tasks", "Tasks", "constraint", head, rows, notes)


def chosen_table(runs: Runs, trials: Runs, series: Series) -> Table:
    """The trial of each constraint that was tested in each setting."""
    cells = sorted(runs.cells, key=lambda cell: cell[1])
    by = runs.by("constraint", *CELL)
    order = {name: own.values("label") for name, own in trials.constraints.items()}
    rows = []
    for name in runs.values("constraint"):
        tests = [by.get((name, *cell)) for cell in cells]
        row = [NOTHING if own is None else _trial(own, order.get(name, [])) for own in tests]
        rows.append(TableRow(name, row, series=series.get(name)))
    head = [("", [f"{task} {depth}" for task, depth in cells])]
    notes = [
        "The best trial on the tuning seeds, by task and depth: number of the threshold in the "
        "plan, and learning rate. Constraints that are as wide as each other threshold by "
        "threshold were not always tested at the same one, nor at the same rate.",
    ]
    return Table("chosen", "Chosen trials", "constraint", head, rows, notes)


def _trial(runs: Runs, labels: Sequence[str]) -> Cell:
    label, rate, width = (runs[name][0] for name in ("label", "learning_rate", "width"))
    number = f"{labels.index(label) + 1} · " if width == width and label in labels else ""
    return Cell(f"{number}{rate:.2g}")


def collapse_table(runs: Runs, series: Series) -> Table:
    """Share of collapsed runs at each depth."""
    depths = sorted(runs.values("depth"))
    by = runs.by("constraint", "depth")
    rows = [
        TableRow(
            name,
            [
                _share(rate(by[name, depth], "collapsed")) if (name, depth) in by else NOTHING
                for depth in depths
            ],
            series=series.get(name),
        )
        for name in runs.values("constraint")
    ]
    notes = ["Percent of the runs that ended far below their best, with 95 % intervals by seed."]
    return Table(
        "collapse", "Collapsed", "constraint",
        [("", [f"depth {depth}" for depth in depths])], rows, notes,
    )  # fmt: skip


def sensitivity_table(ranking: Sequence[Sensitivity], reference: str, series: Series) -> Table:
    """How much the choice of threshold and rate matters."""
    rows = [
        TableRow(
            one.constraint,
            [
                Cell(percent(one.mean.value)),
                NOTHING if one.minus is None else gap_cell(one.minus),
                Cell(percent(one.best)),
                Cell(percent(one.near, 0)),
                Cell(percent(one.edge, 0)),
            ],
            series=series.get(one.constraint),
        )
        for one in ranking
    ]
    notes = [
        "Tuning seeds. Mean: of the score at the end over all trials, thresholds times rates; "
        "differences paired by seed, with 95 % intervals. Best: mean of each cell's best trial, so "
        f"a little too high. Near: percent of trials within {100 * NEAR:g} points of it. Edge: "
        "percent of cells whose best rate is the smallest or largest of the grid.",
    ]
    names = ["mean", f"minus {reference}", "best", "near", "edge"]
    return Table("sensitivity", "Sensitivity to tuning", "constraint", [("", names)], rows, notes)


def width_table(trials: Runs, series: Series) -> Table | None:
    """Every threshold of a constraint against its middle one."""
    effects = width_effects(trials)
    if not effects or len({len(row) for row in effects.values()}) > 1:
        return None
    count = len(effects["all"])
    rows = [
        TableRow(
            name,
            [NOTHING if i == count // 2 else gap_cell(one) for i, one in enumerate(row)],
            kind="base" if name == "all" else "ours",
            series=series.get(name),
        )
        for name, row in effects.items()
    ]
    names = [f"threshold {i + 1}" for i in range(count)]
    notes = [
        f"Tuning seeds. Points of the score at the end minus threshold {count // 2 + 1}, in the "
        "order of the plan, each threshold at the rate that is best on the other seeds; 95 % "
        "intervals over seeds, not corrected. Thresholds of different constraints are not "
        "comparable.",
    ]
    return Table("widths", "Thresholds", "constraint", [("", names)], rows, notes)


def equal_table(trials: Runs, questions: Sequence[Question]) -> Table | None:
    """Contrasts at equal measured gate share, and at equal measured distance, by depth."""
    depths = sorted(trials.values("depth"))
    by = trials.by("constraint", "depth")
    measured = {"equal share cut": "gated", "equal distance moved": "k3"}
    rows = []
    for q in questions:
        cells = [
            _at_equal(by.get((q.ours, depth)), by.get((q.theirs, depth)), column)
            for column in measured.values()
            for depth in depths
        ]
        if any(cell is not NOTHING for cell in cells):
            rows.append(TableRow(q.asks, cells, note=f"{q.ours} − {q.theirs}"))
    if not rows:
        return None
    head = [(name, [f"depth {depth}" for depth in depths]) for name in measured]
    notes = [
        "Tuning seeds, all trials. Points of the score at the end where both cut the same share of "
        "tokens, or moved equally far (k3 per token, measured), at equal rates: mean over the "
        "range that both cover, paired by seed, 95 % intervals, not corrected. None is chosen.",
    ]
    return Table("equal", "At equal measured width", "question", head, rows, notes)


def entropy_table(runs: Runs, questions: Sequence[Question]) -> Table | None:
    """Entropies of the contrasts' constraints: as they are, and at equal score."""
    by = runs.constraints
    rows = []
    for q in questions:
        if q.ours in by and q.theirs in by:
            ours, theirs = by[q.ours], by[q.theirs]
            means = [Cell(f"{own.mean('entropy'):.3f}") for own in (ours, theirs)]
            gaps = [paired_runs(differences(ours, theirs, "entropy")), at_equal_score(ours, theirs)]
            rows.append(
                TableRow(q.asks, [*means, *map(_nats, gaps)], note=f"{q.ours} − {q.theirs}")
            )
    if not rows:
        return None
    notes = [
        "Nats per token, mean over generations, tasks and depths; differences paired by seed, with "
        "95 % intervals that are not corrected. At equal score: where the line through the seeds' "
        "differences in entropy over those in the score at the end has no difference in score.",
    ]
    head = [("", ["first", "second", "difference", "at equal score"])]
    return Table("entropy", "Entropy", "question", head, rows, notes)


def _nats(gap: stats.Difference) -> Cell:
    text = [f"{x:+.3f}".replace("-", "−") for x in (gap.value, gap.low, gap.high)]
    return Cell(text[0], f"[{text[1]}, {text[2]}]")


def _at_equal(ours: Runs | None, theirs: Runs | None, column: str) -> Cell:
    gaps = None if ours is None or theirs is None else at_equal(ours, theirs, column)
    return NOTHING if gaps is None else gap_cell(paired_runs(gaps))


def _points(share: float) -> str:
    return f"{100 * share:g} point{'s' * (share != MARGIN)}"


def conclusion_cell(answer: Answer) -> Cell:
    """A contrast's difference with its interval and conclusion."""
    contrast = answer.contrast
    cell = gap_cell(contrast.difference)
    strong = contrast.conclusion in ("larger", "smaller")
    return Cell(cell.text, f"{cell.note} {in_words(answer)}", strong=strong)


def chance(p: float) -> str:
    """A p-value with one digit, or three after the point."""
    return f"{p:.0e}" if p < 1e-3 else f"{p:.3f}"


def in_words(answer: Answer) -> str:
    """The conclusion of a contrast; a mean within the margin of unlike settings says so."""
    if answer.contrast.conclusion == "equivalent" and not answer.one_number:
        return "equivalent in the mean alone"
    return answer.contrast.conclusion


def settings_table(answers: Sequence[Answer]) -> Table:
    """The contrasts in every task and depth, and whether they are the same in all of them."""
    cells = sorted(answers[0].settings, key=lambda cell: (cell[0], cell[1]))
    rows = []
    for a in answers:
        q = a.heterogeneity
        rows.append(
            TableRow(
                a.question.asks,
                [
                    *(gap_cell(paired_runs(a.settings[cell])) for cell in cells),
                    Cell(f"{q.q:.0f}"),
                    Cell(chance(q.p)),
                ],
                note=f"{a.question.ours} − {a.question.theirs}",
            )
        )
    depths: dict[str, list[str]] = {}
    for task, depth in cells:
        depths.setdefault(str(task), []).append(f"depth {depth}")
    head = [*depths.items(), ("the same in all", ["Q", "p"])]
    notes = [
        f"Points of the score at the end, paired by seed ({answers[0].seeds} seeds), with 95 % "
        "intervals that are not corrected. Q: Cochran's, of the same difference in all "
        f"{len(cells)} settings, which are taken as independent."
    ]
    return Table("settings-contrasts", "Contrasts by setting", "question", head, rows, notes)


def tasks_table(
    by_task: Mapping[str, Sequence[Answer]], choices: Mapping[str, Sequence[Choice]]
) -> Table:
    """The contrasts task by task, also with the choice of trials counted.

    Args:
      by_task: answers by task.
      choices: the same with the choice counted; empty where there are too few tuning seeds.
    """
    tasks = [*by_task]
    rows = []
    for place, first in enumerate(by_task[tasks[0]]):
        cells = []
        for task in tasks:
            cells.append(gap_cell(by_task[task][place].contrast.difference))
            cells += [gap_cell(choices[task][place].both)] if choices else []
        q = first.question
        rows.append(TableRow(q.asks, cells, note=f"{q.ours} − {q.theirs}"))
    names = ["these trials", *(["with the choice"] if choices else [])]
    notes = [
        "Points of the score at the end, mean of the depths, paired by seed, with 95 % intervals "
        "that are not corrected: over test seeds, and over what other tuning seeds would have "
        "chosen as well. Reading the contrasts by task was not planned.",
    ]
    head = [(task, names) for task in tasks]
    return Table("task-contrasts", "Contrasts by task", "question", head, rows, notes)


def gap_cell(difference: stats.Difference) -> Cell:
    """A difference in points with its sign and interval."""
    points = 100 * difference.value
    sign = "" if f"{abs(points):.1f}" == "0.0" else "+" if points > 0 else "−"
    return Cell(f"{sign}{abs(points):.1f}", _bracket(difference.low, difference.high))


def _share(interval: stats.Interval, *, strong: bool = False) -> Cell:
    return Cell(percent(interval.value), _bracket(interval.low, interval.high), strong=strong)


def _bracket(low: float, high: float) -> str:
    return "" if isnan(low + high) else bracket(low, high)


def _key(name: str, title: str) -> str:
    return name + "".join(c if c.isalnum() else "-" for c in title.lower())
