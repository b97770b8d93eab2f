"""What a run of the lab came to: one row for each seed, and the same rows in a file."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trustclip.support.jsonl import write_text

#: Columns that name a row of a results file, after those of what was swept.
SEED, GENERATION, SCORE = "seed", "generation", "score"


@dataclass(frozen=True)
class Curve:
    """One run: its score after every generation, and what was measured in it.

    Args:
      seed: of the run.
      scores: before the first generation and after each. [generations + 1]
      rows: numbers of each generation, by name. [generations]
    """

    seed: int
    scores: Sequence[float]
    rows: Sequence[Mapping[str, float]]

    def tail_means(self, tail: int) -> list[float]:
        """Means of ``tail`` scores in a row: of fewer at the beginning."""
        windows = [self.scores[max(i - tail + 1, 0) : i + 1] for i in range(len(self.scores))]
        return [sum(few) / len(few) for few in windows]

    def fell(self, tail: int, margin: float) -> int | None:
        """First generation after which the run stays ``margin`` or more below its best till the
        end; None where it has not collapsed.

        Example:
          >>> Curve(0, [0.1, 0.5, 0.2, 0.45, 0.2, 0.2], []).fell(1, 0.2)
          4
          >>> Curve(0, [0.1, 0.5, 0.2, 0.45], []).fell(1, 0.2) is None
          True
        """
        means = self.tail_means(tail)
        best, fallen = means[0], None
        for generation, value in enumerate(means):
            best = max(best, value)
            if best - value < margin:
                fallen = None
            elif fallen is None:
                fallen = generation
        return fallen


def summary(curve: Curve, tail: int, margin: float) -> dict[str, float]:
    """A run in one row: scores, collapse, and the mean over generations of all that was measured.

    ``end`` and ``best`` are means of ``tail`` evaluations; ``area`` is the mean of all; ``fell``
    the generation of a collapse, else empty (nan).

    Example:
      >>> row = summary(Curve(0, [0.1, 0.5, 0.3], [{"k3": 0.1}, {"k3": 0.3}]), 1, 0.1)
      >>> row["end"], row["best"], row["collapsed"], row["fell"], row["k3"]
      (0.3, 0.5, 1, 2, 0.2)
    """
    tail_means, fell = curve.tail_means(tail), curve.fell(tail, margin)
    names = curve.rows[0] if curve.rows else {}
    means = {name: sum(row[name] for row in curve.rows) / len(curve.rows) for name in names}
    return {
        "start": curve.scores[0],
        "end": tail_means[-1],
        "best": max(tail_means),
        "area": sum(curve.scores) / len(curve.scores),
        "collapsed": int(fell is not None),
        "fell": float("nan") if fell is None else fell,
        **means,
    }


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV, whole or not at all; numbers with six significant digits, nan empty.

    A file that ends in ``.parquet`` gets the same text, compressed.
    """
    texts = [{name: _text(value) for name, value in row.items()} for row in rows]
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(texts), path, compression="zstd")
        return
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(texts[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(texts)
    write_text(path, file.getvalue())


def _text(value: object) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.6g}"
    return str(value)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a file of `write_rows`, as text."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    """A cell's number; nan where it is empty."""
    return float(text) if text else float("nan")


def curves(rows: Sequence[Mapping[str, str]]) -> list[Curve]:
    """Runs from the rows of a cell's file, which `rows_of` made."""
    seeds = dict.fromkeys(row[SEED] for row in rows)
    names = [name for name in rows[0] if name not in (SEED, GENERATION, SCORE)]
    runs = []
    for seed in seeds:
        own = [row for row in rows if row[SEED] == seed]
        generations = [{name: number(row[name]) for name in names} for row in own[1:]]
        runs.append(Curve(int(seed), [number(row[SCORE]) for row in own], generations))
    return runs


def rows_of(curve: Curve) -> list[dict[str, object]]:
    """A run as rows: the score before training, then a row for each generation."""
    first = dict.fromkeys(curve.rows[0] if curve.rows else {}, float("nan"))
    generations = [first, *curve.rows]
    return [
        {SEED: curve.seed, GENERATION: i, SCORE: score, **row}
        for i, (score, row) in enumerate(zip(curve.scores, generations, strict=True))
    ]
