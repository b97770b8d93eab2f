"""The paper's printed numbers, for comparison with runs of its models and benchmarks."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from math import nan
from typing import Any

from trustclip import stats
from trustclip.constraints.base import Method
from trustclip.constraints.registry import as_method
from trustclip.report.reference import TITLES, Column, Reference
from trustclip.report.results import head_of
from trustclip.report.tables import Cell, Table, TableRow
from trustclip_lab.paper.cells import SAMPLES, printed_rows

#: A row as printed, percent: ``method`` and cells such as ``avg_mean8_final`` and
#: ``avg_mean8_best`` of one run, or ``avg_mean8_mean`` and ``avg_mean8_std`` of several.
Row = Mapping[str, str]

#: Benchmarks of the paper, by the names of their tasks, in its order.
TASKS = tuple(TITLES)

#: Methods of Table 2 with the hyper-parameters of their sources, and their rows.
SINGLE = {
    "clip": "Clip",
    "clip_higher": "Clip-Higher",
    "dual_clip": "Dual Clip",
    "dynamic_clip": "Dynamic Clipping",
    "clip_cov": "Clip-Cov",
    "soft_gate": "Soft Gate",
    "atr": "ATR-based Clipping",
}

#: Rows of Table 3, and the method of each.
REPEATED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Clip (ε = 0.2)", {"name": "clip", "epsilon": 0.2}),
    ("Clip (ε = 0.329)", {"name": "clip", "epsilon": 0.329}),
    ("Clip (ε = 0.422)", {"name": "clip", "epsilon": 0.422}),
    ("Clip-Higher (ε_l = 0.2, ε_u = 0.28)", {"name": "clip_higher", "low": 0.2, "high": 0.28}),
    ("Clip-Higher (ε_l = 0.329, ε_u = 0.5)", {"name": "clip_higher", "low": 0.329, "high": 0.5}),
    ("Clip-Higher (ε_l = 0.329, ε_u = 0.6)", {"name": "clip_higher", "low": 0.329, "high": 0.6}),
    ("KL1 (δ = 0.07)", {"name": "kl1", "delta": 0.07}),
    ("KL2 (δ = 0.07)", {"name": "kl2", "delta": 0.07}),
    ("Full KL-Guided Clipping (δ = 0.07)", {"name": "full_kl", "delta": 0.07}),
    ("IS-weighted KL3 (δ = 0.07)", {"name": "is_kl3", "delta": 0.07}),
    ("KL3 (δ = 0.07, ratio in [0.671, 1.422])", {"name": "atr", "delta": 0.07}),
)

#: Model of Table 3 and of Figure 4.
REPEATED_MODEL = "Qwen3-1.7B"
#: Runs behind each row of Table 3.
REPEATED_RUNS = 3

#: What Figure 4 prints, percent by K: ATR-GRPO, averaged over the benchmarks. The text gives
#: Mean@K as "around 0.23" for every K.
BUDGET_PASS = {1: 24.36, 128: 56.29}
BUDGET_MEAN = 23.0


@cache
def rows(table: str) -> tuple[Row, ...]:
    """Rows of ``"table2"`` or ``"table3"`` as printed, percent."""
    return tuple(printed_rows(f"paper_{table}.csv"))


def models() -> list[str]:
    """Models of Table 2."""
    return list(dict.fromkeys(row["model"] for row in rows("table2")))


def model_of(name: str) -> str | None:
    """The paper's model that matches a model's name, if any.

    Example:
      >>> model_of("Qwen/Qwen3-1.7B-Base"), model_of("tiny")
      ('Qwen3-1.7B', None)
    """
    return next((model for model in models() if model.lower() in name.lower()), None)


class Paper(Reference):
    """The paper's Tables 2 and 3 and its Figure 4.

    Example:
      >>> PAPER.score("Qwen3-1.7B", as_method("atr"), TASKS, "mean@8").value
      23.42
    """

    samples = SAMPLES

    def base(self, model: str, columns: Sequence[Column]) -> list[TableRow]:
        """The row of Table 2 of a model before training."""
        return _table_rows(_row("table2", "Base Model", model_of(model)), columns)

    def trained(
        self, model: str, method: Method | None, columns: Sequence[Column], *, repeated: bool
    ) -> list[TableRow]:
        """The row of Table 2 or, repeated, of Table 3."""
        return _table_rows((repeated_runs if repeated else single_run)(model, method), columns)

    def score(
        self, model: str, method: Method | None, tasks: Collection[str], metric: str
    ) -> stats.Interval | None:
        """Of Table 3 the mean with Student's interval over the three runs, else of Table 2."""
        row = repeated_runs(model, method) or single_run(model, method)
        comparable = set(tasks) == set(TASKS) or (len(tasks) == 1 and set(tasks) < {*TASKS})
        if row is None or not comparable:
            return None
        task = "avg" if len(tasks) > 1 else next(iter(tasks))
        cell = f"{task}_{metric.replace('@', '')}"
        if f"{cell}_mean" in row:
            mean, std = float(row[f"{cell}_mean"]), float(row[f"{cell}_std"])
            return stats.RunSummary.from_population_std(mean, std, REPEATED_RUNS).interval()
        final = row.get(f"{cell}_final")
        return None if final is None else stats.Interval(float(final), nan, nan)

    def over_samples(
        self, kind: str, model: str, tasks: Collection[str]
    ) -> float | Mapping[int, float] | None:
        """Figure 4, of runs of its model on its benchmarks."""
        if model_of(model) != REPEATED_MODEL or set(tasks) != set(TASKS):
            return None
        return BUDGET_MEAN if kind == "mean" else BUDGET_PASS

    def tables(self) -> list[Table]:
        """Table 2 by model, and Table 3."""
        columns: list[Column] = [
            (task, f"{kind}@{SAMPLES}") for task in [*TASKS, None] for kind in ("mean", "pass")
        ]
        single: list[TableRow] = []
        for model in models():
            single.append(TableRow(model, kind="section"))
            for row in rows("table2"):
                single += _table_rows(row, columns) if row["model"] == model else []
        repeated = [table_row for row in rows("table3") for table_row in _table_rows(row, columns)]
        title = f"The paper's Table 3: {REPEATED_MODEL}, mean ± population std of three runs"
        head = head_of(columns)
        return [
            Table(
                "paper2", "The paper's Table 2: one run each, final (best)", "method", head, single
            ),
            Table("paper3", title, "method", head, repeated),
        ]


def single_run(model: str, method: Method | None) -> Row | None:
    """The row of Table 2 with this model and this method at its source's hyper-parameters."""
    if method is None or method.name not in SINGLE or method != type(method)():
        return None
    return _row("table2", SINGLE[method.name], model_of(model))


def repeated_runs(model: str, method: Method | None) -> Row | None:
    """The row of Table 3 with this model, method and hyper-parameters."""
    if method is None or model_of(model) != REPEATED_MODEL:
        return None
    ours = method.to_dict()
    for title, spec in REPEATED:
        theirs = as_method(spec).to_dict()
        # The paper prints three digits of a bound.
        if ours.keys() == theirs.keys() and all(_alike(ours[k], theirs[k]) for k in ours):
            return _row("table3", title, None)
    return None


#: What `trustclip.report` finds by its entry point.
PAPER = Paper()


def _alike(a: Any, b: Any) -> bool:
    return abs(a - b) < 5e-4 if isinstance(a, float) and isinstance(b, float) else a == b


def _row(table: str, method: str, model: str | None) -> Row | None:
    return next(
        (row for row in rows(table) if row["method"] == method and row.get("model") == model), None
    )


def _table_rows(row: Row | None, columns: Sequence[Column]) -> list[TableRow]:
    """A row for some columns, if it has any of them."""
    if row is None:
        return []
    texts = []
    for task, metric in columns:
        name = "avg" if task is None else task
        cell = f"{name}_{metric.replace('@', '')}"
        present = any(key.startswith(f"{cell}_") for key in row)
        texts.append(_cell_text(row, cell) if present else "-")
    # An average over other tasks than the paper's has no counterpart in it.
    if {task for task, _ in columns if task is not None} != set(TASKS):
        texts = ["-" if col[0] is None else text for col, text in zip(columns, texts, strict=True)]
    if all(text == "-" for text in texts):
        return []
    return [TableRow(f"paper: {row['method']}", [Cell(text) for text in texts], "paper")]


def _cell_text(row: Row, name: str) -> str:
    if f"{name}_mean" in row:
        return f"{row[f'{name}_mean']} ± {row[f'{name}_std']}"
    best = row[f"{name}_best"]
    return row[f"{name}_final"] + (f" ({best})" if best else "")
