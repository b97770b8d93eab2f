"""The paper's printed numbers, where a report sets them beside ours."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import Spec, make_run, make_suite

from trustclip.report import reference
from trustclip.report.collect import collect
from trustclip.report.draw import budget
from trustclip_lab.paper import published

ATR = {"name": "atr", "delta": 0.07}
CLIP = {"name": "clip", "epsilon": 0.2}


def test_the_core_finds_it_by_its_entry_point():
    assert reference.published() is published.PAPER


def test_the_papers_rows_are_found_by_model_and_method(tmp_path):
    specs = {"atr": ATR, "clip": CLIP, "twin": {"name": "clip_higher", "low": 0.329, "high": 0.5}}
    tasks = {"amc23": 4, "aime24": 4, "aime25": 4}
    made = {k: Spec(m, k=8, tasks=tasks, steps=8, every=4) for k, m in specs.items()}
    tables = {t.key: t for t in collect([make_suite(tmp_path / "s", made)]).tables}
    single = {row.label: [cell.text for cell in row.cells] for row in tables["scores"].rows}
    assert single["paper: ATR-based Clipping"][-2:] == ["22.93 (23.07)", "42.18 (44.00)"]
    assert single["paper: Base Model"][0] == "28.61"
    assert "paper: Clip-Higher" not in single  # other hyper-parameters
    repeated = {row.label: [cell.text for cell in row.cells] for row in tables["seeds"].rows}
    assert repeated["paper: Clip (ε = 0.2)"][-2:] == ["19.75 ± 0.10", "36.78 ± 1.27"]
    assert repeated["paper: Clip-Higher (ε_l = 0.329, ε_u = 0.5)"][0] == "39.66 ± 0.61"


PAPERS = {"amc23": 83, "aime24": 30, "aime25": 30}


def of_the_papers_benchmarks(folder: Path, *methods: Any, **changes: Any):
    for number, method in enumerate(methods):
        given = Spec(method, steps=8, every=8, tasks=PAPERS, **changes)
        make_run(folder / str(number), given)
    return collect([*folder.iterdir()])


def test_figure_3_shows_the_papers_points_beside_ours(tmp_path):
    values = ({"name": "atr", "delta": delta} for delta in (0.05, 0.07))
    found = of_the_papers_benchmarks(tmp_path, *values, k=8)
    (figure,) = found["sweep"].figures
    assert "Open diamonds are the paper's printed numbers" in figure.caption
    (mark,) = (mark for mark in figure.panels[0].marks if mark.style == "printed")
    # Table 3: 23.42 ± 1.04 over three runs; the ± has the divisor 3, and t(2) is 4.3027.
    assert mark.y == [23.42] and mark.x == [pytest.approx(0.072)]
    half = 4.302653 * 1.04 * np.sqrt(3 / 2) / np.sqrt(3)
    assert [*mark.low, *mark.high] == pytest.approx([23.42 - half, 23.42 + half])


def test_the_papers_single_runs_have_no_interval_and_other_metrics_no_number(tmp_path):
    ours = {"name": "soft_gate"}
    found = of_the_papers_benchmarks(tmp_path, ours, k=8)
    (group,) = found.groups
    mark = budget.beside(group, "pass@8", 1.0)
    assert mark is not None and mark.y == [39.56] and mark.low == []
    assert budget.beside(group, "pass@4", 1.0) is None
