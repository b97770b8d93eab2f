"""The report: what it reads, how it counts, what it writes."""

import base64
import hashlib
import json
import math
import re
import shutil
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from synthetic_runs import HOSTILE, Spec, final_of, make_run, make_suite, undrawn

import trustclip as tc
from trustclip import stats
from trustclip.findings.groups import group_runs
from trustclip.logs import samples
from trustclip.logs.reader import find, read_run
from trustclip.report.collect import collect
from trustclip.report.console import explain
from trustclip.report.draw import plots, swept
from trustclip.report.draw.curves import bucket_figure, lines_of
from trustclip.report.draw.figures import draw, save
from trustclip.report.draw.marks import Figure, Mark, Panel
from trustclip.report.page import build, write_page
from trustclip.report.tables import Cell, Table, TableRow, latex, markdown
from trustclip.support.consent import consent
from trustclip.support.jsonl import append_jsonl, write_json

ATR = {"name": "atr", "delta": 0.07}
CLIP = {"name": "clip", "epsilon": 0.2}
DUAL = {"name": "dual_clip", "low": 0.2, "high": 0.2, "ceiling": 3.0}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite") / "made-up"
    methods = {
        "clip": Spec(CLIP, gain=0.1, gated=0.03),
        "atr": Spec(ATR, gain=2.5),
        "dual": Spec(DUAL, gain=2.4, gated=0.0),
    }
    return make_suite(folder, methods, reference="atr")


@pytest.fixture(scope="module")
def report(suite):
    return collect([suite])


@pytest.fixture(scope="module")
def built(suite, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return out, build([suite], out)


def texts(report) -> list[str]:
    return [finding.text for finding in report.findings]


def tiny(path: Path, answers: dict[str, dict[str, list[int]]], **config: object) -> Path:
    """A run with nothing in it but the answers of its final evaluation."""
    path.mkdir(parents=True)
    rl = {"method": {"name": "atr"}}
    content = {"command": "run", "model": "tiny", "seed": 0, "rl": rl, **config}
    (path / "config.yaml").write_text(yaml.safe_dump(content))
    append_jsonl(
        path / "samples.jsonl",
        [
            {"stage": "eval", "step": 9, "task": task, "id": identity, "k": k, "correct": right,
             "tokens": 5, "response": "x"}
            for task, problems in answers.items()
            for identity, given in problems.items()
            for k, right in enumerate(given)
        ],
    )  # fmt: skip
    append_jsonl(
        path / "metrics.jsonl",
        [{"stage": "eval", "step": 9, "task": task, "mean@2": 0.5} for task in answers],
    )
    write_json(path / "summary.json", {"command": "run", "finished": True})
    return path


# Reading


def test_scores_are_counted_from_the_answers(tmp_path):
    answers = {"a": {"1": [1, 1], "2": [1, 0]}, "b": {"1": [0, 0]}}
    run = read_run(tiny(tmp_path / "run", answers))
    assert run.final is not None and run.final.step == 9
    assert final_of(run).score("a", "mean@2")["value"] == 0.75
    assert final_of(run).score("b", "pass@2")["value"] == 0
    # Of the tasks, not of the problems.
    assert final_of(run).score(None, "mean@2")["value"] == 0.375
    assert final_of(run).score("c", "mean@2") is None


def test_an_answer_written_again_after_a_resume_counts_once(tmp_path):
    path = tiny(tmp_path / "run", {"a": {"1": [0, 0], "2": [0, 0]}})
    append_jsonl(
        path / "samples.jsonl",
        [{"stage": "eval", "step": 9, "task": "a", "id": "1", "k": 0, "correct": 1, "tokens": 5}],
    )
    run = read_run(path)
    assert final_of(run).answers == {"a": {"1": [1, 0], "2": [0, 0]}}
    assert len(run.samples.places) == 4 and "1 answer was written twice" in run.remarks[0]


def test_an_evaluation_that_was_cut_short_is_not_scored(tmp_path):
    path = tiny(tmp_path / "run", {"a": {"1": [1, 1], "2": [1, 0]}})
    row = {"stage": "eval", "step": 20, "task": "a", "id": "1", "k": 0, "correct": 1, "tokens": 5}
    append_jsonl(path / "samples.jsonl", [row])
    run = read_run(path)
    assert [e.step for e in run.evaluations] == [9]
    few = "it has 1 answers and is not scored"
    assert run.remarks == [f"the evaluation at step 20 is incomplete: {few}"]


def test_logged_scores_stand_in_where_samples_are_gone(tmp_path):
    path = make_run(tmp_path / "run", Spec(ATR))
    before = read_run(path)
    (path / "samples.jsonl").unlink()
    run = read_run(path)
    assert final_of(run).answers == {}
    for task in ("amc23", None):
        assert final_of(run).score(task, "mean@4") == final_of(before).score(task, "mean@4")
    (path / "metrics.jsonl").unlink()
    assert final_of(read_run(path)).score(None, "pass@4") == final_of(before).score(None, "pass@4")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "atr", r"there is no file or folder .*atr\. Did you mean .*atr-1\?"),
        (lambda p: p, r"neither a run directory .* It contains run directories: atr-1"),
        (lambda p: p / "empty", r"empty is neither a run directory \(no config.yaml\) nor a suite"),
        (lambda p: p / "suite", r"the suite .*suite has no runs yet"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(tmp_path, make, message):
    (tmp_path / "atr-1").mkdir()
    (tmp_path / "atr-1" / "config.yaml").write_text("command: run\n")
    for name in ("empty", "suite"):
        (tmp_path / name).mkdir()
    (tmp_path / "suite" / "suite.yaml").write_text("name: x\n")
    with pytest.raises(ValueError, match=message):
        list(find([make(tmp_path)]))


def test_a_suite_is_all_its_runs_in_its_own_order(suite):
    names = [path.name.partition("-")[0] for path in find([suite])]
    assert names == ["clip", "clip", "atr", "atr", "dual", "dual"]  # and not the SFT before them


# Grouping and comparing


def test_seeds_are_one_group_and_other_settings_another(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", Spec(ATR, seed=seed, steps=8, every=8))
    make_run(tmp_path / "longer", Spec(ATR, steps=12, every=12))
    make_run(tmp_path / "clip", Spec(CLIP, steps=8, every=8))
    runs = [read_run(tmp_path / name) for name in ("a0", "a1", "longer", "clip")]
    groups = group_runs(runs)
    assert [(g.label, g.seeds, g.is_reference) for g in groups] == [
        ("atr δ=0.07 (max_steps 8, every 8)", [0, 1], True),
        ("atr δ=0.07 (max_steps 12, every 12)", [0], False),
        ("clip ε=0.2", [0], False),
    ]


def test_a_folder_names_no_code_to_run(tmp_path):
    method = {"method": {"name": "antigravity:Method"}}
    path = tiny(tmp_path / "run", {"a": {"1": [1, 0], "2": [0, 0]}}, rl=method)
    (group,) = group_runs([read_run(path)])
    assert group.method is None and group.label == "antigravity:Method"
    assert "antigravity" not in sys.modules


def test_intervals_over_seeds_are_those_of_the_statistics(report):
    groups = {g.label: g for g in report.groups}
    runs = [final_of(run).answers for run in groups["clip"].runs]
    nested = [[a for p in answers.values() for a in p.values()] for answers in runs]
    strata = [task for task, problems in runs[0].items() for _ in problems]
    for metric, expected in (
        ("mean@4", stats.mean_interval(nested, strata)),
        ("pass@4", stats.pass_interval(nested, 4, strata)),
    ):
        found = groups["clip"].estimate(None, metric)
        assert (found.value, found.low, found.high) == (expected.value, expected.low, expected.high)
    one = [final_of(run).score(None, "mean@4")["value"] for run in groups["clip"].runs]
    assert groups["clip"].estimate(None, "mean@4").std == pytest.approx(np.std(one, ddof=1))
    best = [max(e.score(None, "mean@4")["value"] for e in r.trained) for r in groups["clip"].runs]
    assert groups["clip"].estimate(None, "mean@4").best == pytest.approx(np.mean(best))


def test_an_unfinished_run_is_compared_where_both_have_been(tmp_path):
    make_run(tmp_path / "a", Spec(ATR, gain=2.5))
    make_run(tmp_path / "b", Spec(CLIP, gain=0.1), until=33)
    report = collect([tmp_path / "a", tmp_path / "b"])
    (c,) = report.compared
    assert c.step == 20
    (first, second) = (read_run(tmp_path / name).evaluations[1] for name in "ab")
    mine, other = ([a for p in e.answers.values() for a in p.values()] for e in (second, first))
    expected = stats.paired_difference(mine, other, ["amc23"] * 20 + ["aime24"] * 10)
    assert c.difference is not None and math.isnan(c.difference.p)  # one run each has no p-value
    assert replace(c.difference, p=expected.p) == expected
    assert report.headline.endswith("Not all runs are finished.")
    assert "1 of 2 runs is not finished; the results below are preliminary." in texts(report)


def test_runs_that_cannot_be_compared_say_why(tmp_path):
    tiny(tmp_path / "a", {"t": {"1": [1, 0], "2": [1, 1]}})
    tiny(tmp_path / "b", {"t": {"1": [1, 0], "3": [1, 1]}}, rl={"method": {"name": "clip"}})
    tiny(tmp_path / "c", {"t": {"1": [1, 0], "2": [0, 1]}}, rl={"method": {"name": "kl2"}})
    report = collect([tmp_path / name for name in "abc"])
    by_label = {c.group.label: c for c in report.compared}
    assert by_label["clip ε=0.2"].difference is None
    why = "not compared: the problems differ, or the answers are missing"
    assert by_label["clip ε=0.2"].verdict == why
    kl2 = by_label["kl2 δ=0.07"]
    assert kl2.difference is not None and math.isnan(kl2.p_holm)  # one run each


# Tables


def test_scores_stand_beside_the_papers(report):
    tables = {table.key: table for table in report.tables}
    rows = {row.label: row for row in tables["seeds"].rows}
    columns = ["AMC2023 Mean@4", "AMC2023 Pass@4", "AIME2024 Mean@4"]
    assert tables["seeds"].columns[:3] == columns
    assert "paper: KL3 (δ = 0.07, ratio in [0.671, 1.422])" not in rows  # Mean@8, not Mean@4


def test_other_tasks_and_other_k_leave_a_dash(tmp_path):
    tiny(tmp_path / "a", {"t": {"1": [1, 0], "2": [1, 1]}, "u": {"1": [1, 1], "2": [0, 1]}})
    tiny(tmp_path / "b", {"t": {"1": [1, 0, 1], "2": [1, 1, 1]}}, rl={"method": {"name": "clip"}})
    (table, *_) = collect([tmp_path / "a", tmp_path / "b"]).tables
    assert table.columns == [
        f"{task} {metric}" for task in ("t", "u", "Average")
        for metric in ("Mean@2", "Pass@2", "Mean@3", "Pass@3")
    ]  # fmt: skip
    cells = {row.label: [cell.text for cell in row.cells] for row in table.rows}
    assert cells["atr δ=0.07"] == ["75.00", "100.00", "-", "-"] * 3
    assert cells["clip ε=0.2"] == ["-", "-", "83.33", "100.00", *["-"] * 8]


def test_tables_are_escaped():
    rows = [TableRow("a|b_c & 50%", [Cell("1 ± 2", "[0, 3]", strong=True), Cell("<p> $x$")])]
    table = Table("t", "T_1", "method", [("A", ["x"]), ("B", ["y"])], rows, ["δ ≠ {1}"])
    assert r"| a\|b_c & 50% | **1 ± 2** [0, 3] | &lt;p&gt; \$x\$ |" in markdown(table)
    tex = latex(table)
    assert r"a\textbar{}b\_c \& 50\% & \textbf{1 $\pm$ 2} {\scriptsize [0, 3]} &" in tex
    assert r"\textless{}p\textgreater{} \$x\$ \\" in tex and r"\caption{T\_1. $\delta$" in tex
    assert tex.count("{") == tex.count("}")
    assert r"\cmidrule(lr){2-2}\cmidrule(lr){3-3}" in tex


# Figures


def test_figure_1_jumps_where_the_interval_ends(report):
    figure = plots.constraint_figure(report.groups)
    assert figure is not None
    above, below, _ = figure.panels
    for method, panel, bound in ((ATR, above, 1), (ATR, below, 0), (CLIP, above, 1)):
        mark = next(m for m in panel.marks if m.name == method["name"])
        edge = float(tc.interval(tc.as_method(method))[bound])
        weights: dict[Any, Any] = dict(zip(mark.x, mark.y, strict=True))
        near = [x for x in weights if abs(x / edge - 1) < 2e-3]
        assert min(near) < edge < max(near)
        for x in (min(near), max(near)):
            kept = (x < edge) if bound else (x > edge)
            assert weights[x] == pytest.approx(x if kept else 0)


def test_figure_1_says_who_is_missing_and_why(tmp_path, monkeypatch):
    """A method from a file is drawn with consent only; one that goes below 0 is seen."""
    monkeypatch.setattr("trustclip.report.draw.figures.draw", undrawn)  # other figures
    own = {"name": "wrong_methods:Negated"}
    paths = [make_run(tmp_path / "own", Spec(own)), make_run(tmp_path / "atr", Spec(ATR))]
    with consent():
        figure = plots.constraint_figure(group_runs([*map(read_run, paths)]))
        build(paths[:1], tmp_path / "report")  # with nothing to draw, the sentence remains
    assert figure is not None and {m.name for m in figure.panels[0].marks} == {"atr δ=0.07"}
    words = "wrong_methods:Negated is not drawn: 'wrong_methods:Negated' would import the Python"
    assert words in figure.caption and figure.caption.endswith("allow it with --allow-code.")
    assert "Negated is not drawn: " in (tmp_path / "report/index.html").read_text()
    with consent("wrong_methods:Negated"):
        figure = plots.constraint_figure(group_runs([*map(read_run, paths)]))
    assert figure is not None and "not drawn" not in figure.caption
    assert figure.panels[0].y_range == (-3.5, 3.4)


def test_curves_are_means_of_the_window_and_of_the_seeds(tmp_path):
    for seed in (0, 1):
        path = tiny(tmp_path / str(seed), {"t": {"1": [1, 0], "2": [1, 1]}}, seed=seed)
        rows = [{"stage": "rl", "step": s, "reward": s + 10 * seed} for s in range(1, 41)]
        append_jsonl(path / "metrics.jsonl", rows)
    (group,) = group_runs([read_run(tmp_path / str(seed)) for seed in (0, 1)])
    *faint, strong = lines_of(group, "reward")
    assert [m.style for m in (*faint, strong)] == ["faint", "faint", "line"]
    assert strong.x == list(range(3, 41))  # a window of 4: the first means are of too few
    assert strong.y[-1] == pytest.approx(38.5 + 5)
    assert strong.y[0] == pytest.approx(2 + 5)


def test_shares_of_the_kinds_of_tokens(tmp_path):
    """Of the updates that had any of a kind, in the order of the buckets."""
    path = tiny(tmp_path / "0", {"t": {"1": [1, 0]}}, seed=0)
    kinds = {"p_old_0.1_0.5": 0.2, "position_2": 0.5, "entropy_1_inf": 0.1, "p_old_0_0.01": 0.4}
    rows = [{f"trustclip/gated/{name}": share for name, share in kinds.items()}, {}]
    rows[1]["trustclip/gated/p_old_0_0.01"] = 0.2
    append_jsonl(
        path / "metrics.jsonl", [{"stage": "rl", "step": s, **r} for s, r in enumerate(rows)]
    )
    figure = bucket_figure(group_runs([read_run(path)]))
    assert figure is not None
    marks = {panel.title: panel.marks[0] for panel in figure.panels}
    assert [*marks] == ["By old probability", "By quarter of the completion", "By entropy"]
    assert marks["By old probability"].x == ["≤ 0.01", "≤ 0.5"]
    assert marks["By old probability"].y == pytest.approx([30, 20])
    assert [marks[name].x for name in [*marks][1:]] == [["2"], ["> 1"]]


def test_charts_and_tables_are_of_what_they_say(report):
    """Curves of seeds around their mean, areas within their panel, Pass@K under its name."""
    charts = {figure.key: figure for figure in report.figures}
    curves = [m for p in charts["figure2"].panels for m in p.marks if p.title.startswith("Mean@4")]
    for group in report.groups:
        own = [mark for mark in curves if mark.name == group.label]
        (line,), seeds = ([m.y for m in own if m.style == s] for s in ("line", "faint"))
        assert len(seeds) == 2 and np.mean(seeds, axis=0) == pytest.approx(line)
    for panel in charts["quadrants"].panels:
        assert np.sum([m.y for m in panel.marks], axis=0).max() <= panel.y_range[1]
    titles = {table.key: table.title.partition(" ")[0] for table in report.tables}
    assert [titles[f"{k}-differences"] for k in ("mean", "pass")] == ["Mean@4", "Pass@4"]


def test_a_sweep_is_found_where_one_threshold_differs(tmp_path):
    for delta in (0.09, 0.05, 0.07):
        make_run(tmp_path / str(delta), Spec({"name": "atr", "delta": delta}, steps=8, every=8))
    make_run(tmp_path / "clip", Spec(CLIP, steps=8, every=8))
    groups = group_runs([read_run(path) for path in sorted(tmp_path.iterdir())])
    ((key, members),) = swept.sweeps(groups).items()
    assert key == ("Qwen3-1.7B-Base", "atr", "delta")
    methods: list[Any] = [g.method for g in members]
    assert [method.delta for method in methods] == [0.05, 0.07, 0.09]
    (figure,) = swept.sweep_figures(groups)
    assert figure.key == "figure3-atr-delta"
    assert [panel.title for panel in figure.panels] == ["Mean@4", "Pass@4", "Gated tokens"]
    assert list(figure.panels[0].marks[0].x) == [0.05, 0.07, 0.09]


def test_budgets_end_at_the_scores_and_their_intervals(report):
    for panel, metric in zip(report["budget"].figures[0].panels, ("mean@4", "pass@4"), strict=True):
        for group in report.groups:
            e = group.estimate(None, metric)
            line, band = (
                next(m for m in panel.marks if m.style == style and m.name == group.label)
                for style in ("line", "band")
            )
            assert list(line.x) == [1, 2, 3, 4] and list(band.x) == [1, 2, 4]
            ends = line.y[-1], band.low[-1], band.high[-1]
            assert ends == pytest.approx([100 * end for end in (e.value, e.low, e.high)])


def test_a_panel_says_its_values_and_its_names_are_no_markup():
    mark = Mark("points", [1.0, 2.0], [41.75, None], "<a href='x'>atr</a>", 0)
    (panel,) = draw(Figure("f", "t", "c", [Panel("t", "x", "y", [mark])])).panels
    name = "&lt;a href=&#39;x&#39;&gt;atr&lt;/a&gt;"
    assert f"<title>{name}</title>" in panel and f"<title>{name}: 41.75 at 1</title>" in panel
    assert "<a" not in panel and "var(--series-0)" in panel and "#0072b2" not in panel
    assert panel.count("<g") == panel.count("</g>") and 'data-group="0"' in panel


def test_dollars_in_a_name_are_no_formula_in_a_figure(tmp_path):
    name = r"$\href{a}{x}$ and $5"
    for across in (False, True):
        marks = [Mark("points", ["a$_$", name], [1.0, 2.0], name, 0)]
        marks = marks if not across else [Mark("points", [1.0], [0.0], name, 0)]
        panel = Panel(name, name, name, [*marks, Mark("line", marks[0].x, marks[0].y, name, 1)])
        panel = panel if not across else Panel(name, name, "", marks, across=True)
        _, drawn = save(Figure(f"f{across}", name, name, [panel]), tmp_path)
        assert escape(name) in drawn.read_text()


def test_paper_figures_are_files(built):
    out, files = built
    keys = {path.stem for path in (out / "figures").iterdir()}
    assert {"figure1", "figure2", "figure4", "gate", "quadrants", "ratios", "scores"} <= keys
    for path in (out / "figures").iterdir():
        head = path.read_bytes()[:5]
        assert head == (b"%PDF-" if path.suffix == ".pdf" else b"<svg ")
        assert path in files


# Completions


def test_shown_completions_are_few_and_from_everywhere(tmp_path, monkeypatch):
    rows = [
        {"stage": "rl", "step": step, "index": i, "id": "p", "response": "x" * 50, "reward": 1.0}
        for step in range(100)
        for i in range(8)
    ]
    append_jsonl(tmp_path / "samples.jsonl", rows)
    found = samples.Samples.read(tmp_path)
    assert len(found.chosen(10**9)) == 800
    monkeypatch.setattr(samples, "MAX_ROWS", 60)
    chosen = found.chosen(10**9)
    steps = [place.group[1] for place in chosen]
    assert len(chosen) == 60 == len(set(steps)) and steps == sorted(steps)
    assert max(b - a for a, b in pairwise(steps)) <= 4
    few = found.chosen(2000)
    assert 5 < len(few) < 20 and sum(place.length for place in few) <= 2000


def test_shown_completions_have_their_problem_and_their_gates(tmp_path):
    path = make_run(tmp_path / "run", Spec(ATR, gated=0.2))
    run = read_run(path)
    problems: dict[str, int] = {}
    rows = samples.page_rows(path, run.samples, 10**7, problems)
    shown = [dict(zip(samples.COLUMNS, row, strict=True)) for row in rows]
    trained = next(r for r in shown if r["stage"] == "rl" and r["step"] == 4 and r["k"] == 3)
    gates = [json.loads(line) for line in (path / "gates.jsonl").read_text().splitlines()]
    shares = [g["gated"][3] for g in gates if g["generated"][3] == 4]
    assert len(shares) == 4 and trained["gated"] == pytest.approx(np.mean(shares), abs=1e-4)
    assert list(problems)[trained["problem"]] == "Find $x_{3}$ if <b>3</b> = x."
    assert {r["gated"] for r in shown if r["stage"] == "eval"} == {None}
    long = next(r for r in shown if isinstance(r["response"], list))
    head, left, tail = long["response"]
    assert len(head) + left + len(tail) == len(HOSTILE[6])
    assert tail.endswith("<SOLUTION>4</SOLUTION>")


class Page(HTMLParser):
    """Elements of a page, and the text of its scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.elements, self.inside = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.inside = dict(attrs).get("id", f"code-{len(self.scripts)}")
            self.scripts[self.inside] = ""

    def handle_endtag(self, tag):
        if tag == "script":
            self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.scripts[self.inside] += data


def test_no_text_of_a_run_becomes_markup(built):
    out, _ = built
    text = (out / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 6
    assert not {tag for tag, _ in page.elements} & {"img", "iframe", "object", "embed", "b"}
    assert all("src" not in attrs and not attrs.get("href", "#")[0] not in "#dft"
               for _, attrs in page.elements)  # fmt: skip
    stored = json.loads(page.scripts["data-samples"])
    column = stored["columns"].index("response")
    responses = [row[column] for run in stored["runs"] for row in run["rows"]]
    for hostile in HOSTILE:
        assert samples.cut(hostile) in responses
    # The page's own policy allows its own scripts, by their hashes, and nothing from elsewhere.
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv"))
    code = [body for name, body in page.scripts.items() if name.startswith("code")]
    for body in code:
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe-inline'; img" in policy
    assert "&lt;b&gt;lower&lt;/b&gt; the learning rate" in text


def test_runs_are_only_read(suite, built):
    def state():
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in suite.rglob("*")
        }  # fmt: skip

    before = state()
    collect([suite])
    assert state() == before


def test_the_report_of_one_run_goes_into_its_folder(tmp_path):
    path = tmp_path / "demo"
    path.mkdir()
    (path / "config.yaml").write_text("command: demo\nmethod: {name: atr}\nseed: 0\n")
    rows = [{"stage": "rl", "step": s, "entropy": 0.5, "trustclip/gated": 0.0} for s in range(1, 5)]
    append_jsonl(path / "metrics.jsonl", rows)
    answers = {0: [0, 1], 4: [1, 1]}  # by step
    append_jsonl(
        path / "samples.jsonl",
        [
            {"stage": "eval", "step": step, "task": "arithmetic", "id": f"arithmetic: {p}", "k": k,
             "correct": c, "tokens": 3, "extracted": "1", "response": "1", "truncated": False}
            for step, given in answers.items() for p in range(8) for k, c in enumerate(given)
        ],
    )  # fmt: skip
    ends = {at: {"tasks": {}, "average": {"mean@2": {"value": 0}}} for at in ("initial", "final")}
    write_json(path / "summary.json", {"command": "demo", "method": ATR, "finished": True, **ends})
    assert write_page(path, "A small policy learns") == "report.html"
    text = (path / "report.html").read_text()
    assert "raised Mean@2 from 50.0 to 100.0\N{NO-BREAK SPACE}%" in text
    assert len(text) < 6_000_000
    with pytest.raises(ValueError, match=r"nowhere"):
        write_page(tmp_path / "nowhere", "x")


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one run directory"):
        build([], tmp_path)


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_a_run_that_has_logged_nothing_gives_no_page_but_what_is_missing(tmp_path, state):
    path, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    path.mkdir()
    (path / "config.yaml").write_text("command: sft\nmodel: some/model\nseed: 0\n")
    if state == "empty":
        metrics.touch()
    said = f"run has logged neither an update nor an evaluation: metrics.jsonl is {state}"
    for make in (explain, lambda run: build([run], tmp_path / "out")):
        with pytest.raises(ValueError, match=said):
            make(path)
    with pytest.raises(ValueError, match="none of 2 runs has logged"):
        build([path, shutil.copytree(path, tmp_path / "copy")], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="is a file: name a folder for the report"):
        build([path], path / "config.yaml")
    assert collect([path]).headline == "Neither an update nor an evaluation is logged."  # --serve
    append_jsonl(metrics, [{"stage": "sft", "step": 7, "loss": 0.5}])
    assert "7 steps" in explain(path)[0]
    assert build([path], tmp_path / "out")
    (path / "config.yaml").write_text("command: run\nmodel: some/model\nseed: 0\n")
    said = "Fine-tuning has reached step 7; reinforcement learning has not begun."
    assert collect([path]).headline == said


def test_the_largest_differences_come_first_and_findings_lead_to_what_shows_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("trustclip.report.draw.figures.draw", undrawn)  # files, and what links them
    gains = {"atr": 1.0, "clip": 0.9, "kl1": 1.1, "kl2": 0.4, "spo": 1.5}
    runs = [
        make_run(tmp_path / name, Spec({"name": name}, gain=gain, k=2, tasks={"amc23": 6}))
        for name, gain in gains.items()
    ]
    build(runs, tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text("utf-8")
    listed = re.search(r'<ul class="findings">(.*?)</ul>', page, re.S)
    assert listed
    found = re.findall(r"([−+][0-9.]+) points\)", listed[1])
    sizes = [abs(float(text.replace("−", "-"))) for text in found]
    assert len(sizes) == 3 and sizes == sorted(sizes, reverse=True)
    for anchor in set(re.findall(r'href="#(\w+)"', listed[1])):
        assert f'id="{anchor}"' in page
    linked = set(re.findall(r'href="((?:figures/|tables)[^"]+)"', page))
    assert {"tables.tex", "figures/scores.pdf"} <= linked
    assert all((tmp_path / "out" / path).is_file() for path in linked)
