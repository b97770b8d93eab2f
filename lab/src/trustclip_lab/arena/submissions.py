"""A submitted method: are its runs those of the plan, and could they be what they say they are?

Everything that the committed table determines is checked against it: tasks, depths and seeds, the
number of trials, the choice of the tested setting, and the score of every seed before training,
which no method can change. What a run came to can only be believed or made again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trustclip.support.names import some
from trustclip_lab.arena.analysis import CELL, Runs
from trustclip_lab.arena.tuning import TRIAL

#: Columns that a share of 1 stands in.
SHARES = ("start", "end", "best", "area", "passk", "gated")
#: Columns that are 0 or above.
SIZES = ("k3", "entropy", "seconds")
#: Offences of one kind that are listed before the rest is counted.
LISTED = 3
#: Rounding of stored numbers.
ROUNDING = 1e-6


def refusals(submitted: Runs, committed: Runs, margin: float) -> list[str]:
    """Why a submission is not accepted; empty if it is.

    Args:
      submitted: runs of one constraint.
      committed: the arena's own table.
      margin: fall from the best to the end that is a collapse, as in the plan.

    Returns:
      Sentences, the most basic ones first; later checks are left out where they would make no
      sense.
    """
    for check in (_columns, _labels):
        found = [*check(submitted, committed)]
        if found:
            return found
    design = committed.where(design="main")
    ours = submitted.where(design="main")
    return [
        *_listed(_ranges(submitted)),
        *_listed(_collapses(submitted, margin)),
        *_listed(_complete(ours, design, "test")),
        *_listed(_complete(ours, design, "tuning")),
        *_listed(_axes(submitted, committed)),
        *_listed(_budget(ours, design)),
        *_listed(_chosen(ours)),
        *_listed(_starts(submitted, committed)),
    ]


def _listed(found: Iterator[str]) -> Iterator[str]:
    """The first few of one kind, and the number of the others."""
    every = [*found]
    yield from every[:LISTED]
    if len(every) > LISTED:
        yield f"... and {len(every) - LISTED} more like the last."


def _columns(submitted: Runs, committed: Runs) -> Iterator[str]:
    missing = [name for name in committed.columns if name not in submitted.columns]
    if missing:
        yield f"the table lacks the columns {', '.join(missing)}."
    elif not len(submitted):
        yield "the table has no rows."
    for name, values in committed.columns.items():
        if name in submitted.columns and not missing:
            given = submitted[name]
            numbers = np.issubdtype(values.dtype, np.number)
            if numbers and not np.issubdtype(given.dtype, np.number):
                yield f"column {name!r} must hold numbers, and holds {given.dtype}."


def _labels(submitted: Runs, committed: Runs) -> Iterator[str]:
    labels = submitted.values("constraint")
    if len(labels) != 1:
        yield f"a submission is one constraint; the table has {', '.join(map(str, labels))}."
    for label in labels:
        if label in committed.values("constraint"):
            yield f"the label {label!r} is one of the arena's own; choose another."
    known = {"stage": ("tuning", "test"), "design": committed.values("design")}
    for name, allowed in known.items():
        for value in submitted.values(name):
            if value not in allowed:
                yield f"{name} {value!r} is not of the plan; it has {', '.join(allowed)}."


def _ranges(submitted: Runs) -> Iterator[str]:
    for name in (*SHARES, *SIZES):
        values = submitted[name]
        high = 1 if name in SHARES else np.inf
        wrong = ~((values >= -ROUNDING) & (values <= high + ROUNDING)) | np.isinf(values)
        for place in np.flatnonzero(wrong).tolist():
            allowed = "[0, 1]" if name in SHARES else "0 or more"
            yield f"{name} of {_named(submitted, place)} is {values[place]}; allowed: {allowed}."
    above = submitted["end"] > submitted["best"] + ROUNDING
    for place in np.flatnonzero(above).tolist():
        yield f"{_named(submitted, place)} ends above its own best."


def _collapses(submitted: Runs, margin: float) -> Iterator[str]:
    fall = submitted["best"] - submitted["end"]
    said = submitted["collapsed"]
    for place, (drop, flag) in enumerate(zip(fall.tolist(), said.tolist(), strict=True)):
        if flag not in (0, 1) or (abs(drop - margin) > ROUNDING and (drop > margin) != bool(flag)):
            yield (
                f"{_named(submitted, place)} fell by {drop:.3f} and says collapsed = {flag}; the "
                f"plan calls a fall of {margin:g} a collapse."
            )


def _complete(ours: Runs, design: Runs, stage: str) -> Iterator[str]:
    """Every seed of the plan once in every cell (and trial), and no other seed."""
    planned, given = design.where(stage=stage), ours.where(stage=stage)
    seeds = set(planned.values("seed"))
    others = set(design["seed"].tolist()) - seeds
    have = given.by(*CELL) if len(given) else {}
    for cell in planned.cells:
        where = f"{stage} runs of {_cell(cell)}"
        if cell not in have:
            yield f"there are no {where}."
            continue
        trials = have[cell].by(*TRIAL)
        if stage == "test" and len(trials) > 1:
            yield f"the {where} have {len(trials)} settings; one is tested."
        for setting, runs in trials.items():
            yield from _seeds(runs, seeds, others, f"{where} at {_setting(setting)}")
    for cell in have.keys() - set(planned.cells):
        yield f"{_cell(cell)} is not in the plan."


def _axes(submitted: Runs, committed: Runs) -> Iterator[str]:
    """The further designs, which have test runs only."""
    for design in committed.values("design"):
        if design != "main":
            given, planned = (runs.where(design=design) for runs in (submitted, committed))
            for sentence in _complete(given, planned, "test"):
                yield f"{design}: {sentence}"


def _seeds(runs: Runs, seeds: set[int], others: set[int], where: str) -> Iterator[str]:
    found = Counter(runs["seed"].tolist())
    foreign = sorted(set(found) - seeds)
    if set(foreign) & others:
        yield f"the {where} use seeds of the other stage: {_some(sorted(set(foreign) & others))}."
    elif foreign:
        yield f"the {where} use seeds that are not in the plan: {_some(foreign)}."
    lacking = sorted(seeds - set(found))
    if lacking:
        yield f"the {where} lack the seeds {_some(lacking)}."
    twice = sorted(seed for seed, times in found.items() if times > 1)
    if twice:
        yield f"the {where} have several runs of the seeds {_some(twice)}."


def _budget(ours: Runs, design: Runs) -> Iterator[str]:
    """No more trials in a cell than the arena's own constraints had at most."""
    allowed: dict[tuple[Any, ...], int] = {}
    for (_, *cell), runs in design.where(stage="tuning").by("constraint", *CELL).items():
        allowed[tuple(cell)] = max(allowed.get(tuple(cell), 0), len(runs.by(*TRIAL)))
    given = ours.where(stage="tuning")
    for cell, runs in given.by(*CELL).items() if len(given) else ():
        if len(runs.by(*TRIAL)) > allowed.get(cell, 0) > 0:
            yield (
                f"{len(runs.by(*TRIAL))} trials in {_cell(cell)}; every method has {allowed[cell]}."
            )


def _chosen(ours: Runs) -> Iterator[str]:
    """The setting that is tested must be the best trial of its cell."""
    tuning, test = ours.where(stage="tuning"), ours.where(stage="test")
    if not len(tuning) or not len(test):
        return
    tested = test.by(*CELL)
    for cell, runs in tuning.by(*CELL).items():
        scores = {key: own.mean("end") for key, own in runs.by(*TRIAL).items()}
        best = max(scores.values())
        for setting in tested[cell].by(*TRIAL) if cell in tested else ():
            if setting not in scores:
                yield f"{_cell(cell)} is tested at {_setting(setting)}, which is no trial of it."
            elif scores[setting] < best - ROUNDING:
                winner = next(key for key in scores if scores[key] == best)
                yield (
                    f"{_cell(cell)} is tested at {_setting(setting)}, and its best trial is "
                    f"{_setting(winner)}: the best on the tuning seeds is tested."
                )


def _starts(submitted: Runs, committed: Runs) -> Iterator[str]:
    """Before training every method has the same weights and problems, so the same score."""
    names = ("design", "task", "seed")
    expected: Mapping[tuple[Any, ...], float] = dict(
        zip(zip(*(committed[n].tolist() for n in names), strict=True),
            committed["start"].tolist(), strict=True)
    )  # fmt: skip
    keys = zip(*(submitted[n].tolist() for n in names), strict=True)
    for place, key in enumerate(keys):
        start = submitted["start"][place]
        if key in expected and abs(start - expected[key]) > ROUNDING:
            yield (
                f"{_named(submitted, place)} starts at {start:.6g}; with that seed's weights and "
                f"problems it is {expected[key]:.6g}."
            )


def _named(runs: Runs, place: int) -> str:
    cell = tuple(runs[name][place] for name in CELL)
    return f"seed {runs['seed'][place]} of {_cell(cell)}, {runs['stage'][place]},"


def _cell(cell: tuple[Any, ...]) -> str:
    task, depth = cell
    return f"{task} at depth {depth}"


def _setting(setting: tuple[Any, ...]) -> str:
    width, rate = setting
    return f"learning rate {rate:g}" + (f", width {width:g}" if width != "" else "")


def _some(values: list[int]) -> str:
    return some(values) + (f" ({len(values)} in all)" if len(values) > 5 else "")
