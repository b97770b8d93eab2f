"""Which cells of a printed results table are possible, and which runs can produce them.

A Mean@8 over 83 problems is a whole number of 664 answers, so a printed percentage is possible or
not; and a mean and a std over three runs all but name the three runs.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import permutations, product
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

BENCHMARKS = {"amc23": 83, "aime24": 30, "aime25": 30}
METRICS = {"mean8": "Mean@8", "pass8": "Pass@8"}
SAMPLES = 8
RUNS = 3
HALF_DIGIT = 0.005 + 1e-9

Row = Mapping[str, str]
Runs = NDArray[np.int64]
Floats = NDArray[np.float64]


def printed_rows(name: str) -> list[Row]:
    """Rows of one of the tables in ``data``, as printed.

    Args:
      name: of the file, e.g. ``"paper_table2.csv"``.
    """
    text = files("trustclip_lab.paper").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def answers_of(benchmark: str, metric: str) -> int:
    """Denominator of a cell: sampled answers for Mean@8, problems for Pass@8."""
    return BENCHMARKS[benchmark] * (SAMPLES if metric == "mean8" else 1)


def count_of(percentage: float, answers: int) -> int | None:
    """The whole number of right answers that prints as this percentage, or None.

    Args:
      percentage: as printed, with two decimals.
      answers: denominator.

    Example:
      >>> count_of(41.72, 664), count_of(41.75, 664)
      (277, None)
    """
    nearest = round(percentage * answers / 100)
    return nearest if abs(100 * nearest / answers - percentage) <= HALF_DIGIT else None


def run_counts(mean: float, std: float, answers: int, ddof: int) -> Runs:
    """Right-answer counts of three runs, ascending, whose percentages print as mean ± std.

    Args:
      mean: printed mean, percent.
      std: printed standard deviation, percentage points.
      answers: denominator of one run.
      ddof: 0 for the population std, 1 for the sample std.

    Returns:
      int [candidates, 3].

    Example:
      >>> run_counts(43.17, 1.17, 664, ddof=0)
      array([[277, 287, 296]])
      >>> len(run_counts(40.18, 1.60, 664, ddof=0))
      0
    """
    centre, reach = round(mean * answers / 100), ceil((std * sqrt(2) + 0.1) * answers / 100)
    near = np.arange(max(centre - reach, 0), min(centre + reach, answers) + 1)
    runs = np.stack(np.meshgrid(near, near, near, indexing="ij"), axis=-1).reshape(-1, RUNS)
    runs = runs[(runs[:, 0] <= runs[:, 1]) & (runs[:, 1] <= runs[:, 2])]
    return runs[_prints_as(100 * runs / answers, mean, std, ddof)]


def _prints_as(runs: Floats, mean: float, std: float, ddof: int) -> NDArray[np.bool_]:
    """True for rows of percentages [rows, 3] that round to the printed mean and std."""
    same_mean = np.abs(runs.mean(axis=-1) - mean) <= HALF_DIGIT
    return same_mean & (np.abs(runs.std(axis=-1, ddof=ddof) - std) <= HALF_DIGIT)


def single_run_faults(row: Row) -> list[str]:
    """Descriptions of all inconsistencies in a row "final (best)" of one run.

    Checked: each cell is a whole number of answers; at the final checkpoint p problems are solved
    by p to 8p right answers and the average is that of the benchmarks; the best is not below the
    final value, and the best average not above the average of the bests (0.01 allowed).
    """
    faults = _impossible_cells(row, "final")
    for metric in METRICS:
        gap = _average_gap(row, metric, "final")
        if abs(gap) > 0.01 + 1e-9:
            faults.append(f"average {metric} is off by {gap:+.2f}")
    if row["avg_mean8_best"]:
        faults += _impossible_cells(row, "best") + _best_faults(row)
    return [f"{row['model']} {row['method']}: {fault}" for fault in faults]


def _impossible_cells(row: Row, at: str) -> list[str]:
    faults = []
    for benchmark in BENCHMARKS:
        texts = {metric: row[f"{benchmark}_{metric}_{at}"] for metric in METRICS}
        right, solved = (
            count_of(float(text), answers_of(benchmark, metric)) for metric, text in texts.items()
        )
        if right is None or solved is None:
            faults.append(f"{benchmark} {at} {texts} is not a whole number of answers")
        elif at == "final" and not solved <= right <= SAMPLES * solved:
            faults.append(f"{benchmark}: {right} right answers cannot solve {solved} problems")
    return faults


def _best_faults(row: Row) -> list[str]:
    faults = []
    for metric in METRICS:
        if _average_gap(row, metric, "best") > 0.01 + 1e-9:
            faults.append(f"best average {metric} is above the average of the bests")
        for benchmark in (*BENCHMARKS, "avg"):
            final, best = (float(row[f"{benchmark}_{metric}_{at}"]) for at in ("final", "best"))
            if best < final:
                faults.append(f"{benchmark} {metric}: best {best} is below final {final}")
    return faults


def _average_gap(row: Row, metric: str, at: str) -> float:
    cells = [float(row[f"{benchmark}_{metric}_{at}"]) for benchmark in BENCHMARKS]
    return float(row[f"avg_{metric}_{at}"]) - sum(cells) / len(cells)


@dataclass(frozen=True)
class Spread:
    """A cell "mean ± std" over three runs, and the runs that print as it.

    `population` and `sample` are int [candidates, 3], for a std of divisor 3 and of divisor 2.
    `repair`: of an impossible cell, the nearest mean that the std and the row's average admit.
    """

    method: str
    benchmark: str
    metric: str
    mean: float
    std: float
    population: Runs
    sample: Runs
    repair: float | None = None

    @property
    def answers(self) -> int:
        return answers_of(self.benchmark, self.metric)

    @property
    def possible(self) -> bool:
        return bool(len(self.population) or len(self.sample))

    @property
    def runs(self) -> Runs:
        """Candidates under the population std, of the repaired mean if there is one."""
        if self.repair is None:
            return self.population
        return run_counts(self.repair, self.std, self.answers, ddof=0)


def spreads_of(row: Row, metric: str) -> list[Spread]:
    """The benchmark cells of a row "mean ± std", a lone impossible one with its repair."""
    cells = []
    for benchmark in BENCHMARKS:
        mean, std = (float(row[f"{benchmark}_{metric}_{part}"]) for part in ("mean", "std"))
        answers = answers_of(benchmark, metric)
        population, sample = (run_counts(mean, std, answers, ddof) for ddof in (0, 1))
        cells.append(Spread(row["method"], benchmark, metric, mean, std, population, sample))
    impossible = [index for index, cell in enumerate(cells) if not cell.possible]
    if len(impossible) == 1:
        cells[impossible[0]] = _repair(row, cells, impossible[0])
    return cells


def _repair(row: Row, cells: Sequence[Spread], index: int) -> Spread:
    cell = cells[index]
    total = round(cell.mean * RUNS * cell.answers / 100)
    for step in sorted(range(-10, 11), key=abs):
        mean = round(100 * (total + step) / (RUNS * cell.answers), 2)
        repaired = replace(cell, repair=mean)
        if average_of(row, [*cells[:index], repaired, *cells[index + 1 :]]).fits[0]:
            return repaired
    return cell


@dataclass(frozen=True)
class Average:
    """An Average cell "mean ± std", and the nearest std that its runs can have.

    `population` and `sample`: over every pairing of the runs behind the benchmark cells whose
    average prints as `mean`, the std of divisor 3 and of divisor 2 nearest to `std`; inf if none.
    """

    method: str
    metric: str
    mean: float
    std: float
    population: float
    sample: float

    @property
    def fits(self) -> tuple[bool, bool]:
        """Whether the printed std is a population std, and whether it is a sample std."""
        return (
            abs(self.population - self.std) <= HALF_DIGIT,
            abs(self.sample - self.std) <= HALF_DIGIT,
        )


def average_of(row: Row, cells: Sequence[Spread]) -> Average:
    """The Average cell of a row of Table 3, given its benchmark cells of one metric."""
    metric = cells[0].metric
    mean, std = (float(row[f"avg_{metric}_{part}"]) for part in ("mean", "std"))
    orders = np.array(list(permutations(range(RUNS))))
    first, *others = (100 * cell.runs / cell.answers for cell in cells)
    paired = [first, *(shares[:, orders].reshape(-1, RUNS) for shares in others)]
    averages = np.array([np.mean(runs, axis=0) for runs in product(*paired)]).reshape(-1, RUNS)
    averages = averages[np.abs(averages.mean(axis=1) - mean) <= HALF_DIGIT]
    nearest = (
        min(averages.std(axis=1, ddof=d).tolist(), key=lambda s: abs(s - std), default=inf)
        for d in (0, 1)
    )
    return Average(row["method"], metric, mean, std, *nearest)
