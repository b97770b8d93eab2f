"""``trustclip compare``: the last evaluations of run directories, and nothing but them."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_runs import Spec, final_of, make_run

from trustclip import stats
from trustclip.findings.comparison import Compared
from trustclip.findings.groups import group_runs
from trustclip.findings.scores import collapsed
from trustclip.logs.reader import read_run
from trustclip.report.console import print_comparison
from trustclip.report.draw.curves import training_figure

ATR = Spec({"name": "atr", "delta": 0.07}, gain=3.0)
CLIP = Spec({"name": "clip", "epsilon": 0.2}, gain=0.2)


def compared(*folders: Path, step: int | None = None) -> tuple[list[Compared], str]:
    text = io.StringIO()
    console = Console(width=120, file=text)
    found = print_comparison(folders, console, step=step)
    return found, text.getvalue()


def test_a_run_and_its_copy_do_not_differ(tmp_path):
    """All evaluations of a run were pooled: with another schedule its copy was 15 points better."""
    make_run(tmp_path / "run", ATR)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    found, text = compared(tmp_path / "run", tmp_path / "copy")
    assert [c.metric for c in found] == ["mean@4", "pass@4"]
    for c in found:
        assert c.difference == stats.Difference(0.0, 0.0, 0.0, 1.0) and c.p_holm == 1
    assert "+0.0 [+0.0, +0.0]" in text and "identical to" in text


def test_samples_of_every_rank_count(tmp_path):
    first, second = make_run(tmp_path / "a", ATR), make_run(tmp_path / "b", CLIP)
    whole = compared(first, second)[0]
    lines = (second / "samples.jsonl").read_text().splitlines(keepends=True)
    half = len(lines) // 2
    (second / "samples.jsonl").write_text("".join(lines[:half]))
    (second / "samples-rank1.jsonl").write_text("".join(lines[half:]))
    assert [c.difference for c in compared(first, second)[0]] == [c.difference for c in whole]


def test_seeds_of_one_method_are_one_arm_paired_by_seed(tmp_path):
    folders = [
        make_run(tmp_path / f"{name}{seed}", replace(spec, seed=seed))
        for seed in (0, 1, 2)
        for name, spec in (("clip", CLIP), ("atr", ATR))
    ]
    (mean, _), text = compared(*folders)
    answers = {
        name: [
            [a for task in final_of(run).answers.values() for a in task.values()]
            for run in (read_run(tmp_path / f"{name}{seed}") for seed in (0, 1, 2))
        ]
        for name in ("atr", "clip")
    }
    strata = ["amc23"] * 20 + ["aime24"] * 10
    assert mean.difference == stats.paired_difference(
        answers["atr"], answers["clip"], strata, same_seeds=True
    )
    assert (mean.reference.label, mean.seeds) == ("clip ε=0.2", 3)
    assert "paired by problem and seed. " in text and "53 to 87" in text
    assert "seed, over the seeds that" in compared(*folders[:-1])[1]
    rows = [
        line.split()[:2] for line in text.splitlines() if line.startswith(("Mean@4 ", "Pass@4 "))
    ]
    names = ("average", "average", "amc23", "amc23", "aime24", "aime24")
    assert rows == [[kind, name] for kind in ("Mean@4", "Pass@4") for name in names]


def test_different_seeds_are_compared_as_independent_runs(tmp_path):
    folders = [make_run(tmp_path / f"clip{seed}", replace(CLIP, seed=seed)) for seed in (0, 1)]
    folders += [make_run(tmp_path / f"atr{seed}", replace(ATR, seed=seed)) for seed in (5, 6, 7)]
    (mean, _), text = compared(*folders)
    assert mean.difference is not None and not mean.same_seeds
    assert "paired by problem." in text


def test_different_updates_are_refused_with_the_update_that_would_do(tmp_path):
    first = make_run(tmp_path / "a", ATR)
    second = make_run(tmp_path / "b", replace(CLIP, steps=40))
    with pytest.raises(ValueError, match=r"a at 60, .*b at 40\. Compare them with --step 40"):
        compared(first, second)
    assert compared(first, second, step=40)[0][0].difference is not None
    with pytest.raises(ValueError, match=r"b was not evaluated at update 60; updates: 20, 40"):
        compared(first, second, step=60)


def test_different_problems_are_refused_by_name(tmp_path):
    first = make_run(tmp_path / "a", ATR)
    second = make_run(tmp_path / "b", replace(CLIP, tasks={"amc23": 20, "aime24": 9}))
    with pytest.raises(ValueError, match=r"different problems: 1 are .*\(aime24: 9\)"):
        compared(first, second)


def test_what_has_no_samples_is_refused(tmp_path):
    first, second = make_run(tmp_path / "a", ATR), make_run(tmp_path / "b", CLIP)
    (second / "samples.jsonl").unlink()
    with pytest.raises(ValueError, match="b no longer holds the samples"):
        compared(first, second)
    with pytest.raises(ValueError, match="there is no file or folder"):
        compared(first, tmp_path / "nowhere")


@pytest.mark.parametrize("same_text", [True, False])
def test_a_twin_is_exactly_equal_only_if_its_completions_are(tmp_path, same_text):
    """The twin of atr, equal to the bit, was printed as 0.0 [-12.0, 12.0]."""
    first, twin = make_run(tmp_path / "a", ATR), make_run(tmp_path / "b", CLIP)
    text = (first / "samples.jsonl").read_text()
    (twin / "samples.jsonl").write_text(text if same_text else text.replace("So x", "Thus x"))
    (mean, _), printed = compared(first, twin)
    assert mean.difference is not None
    assert mean.difference.value == 0
    if same_text:
        assert mean.p_holm == 1
        assert (mean.difference.low, mean.difference.high) == (0, 0)
        assert "clip ε=0.2 is identical to atr δ=0.07, completion by completion." in printed
    else:
        assert mean.difference.low < -0.05 and mean.difference.high > 0.05
        assert "no difference was observed" in printed


def test_collapsed_runs_are_a_rate_and_their_mean_has_no_interval(tmp_path):
    falls = {seed: replace(ATR, seed=seed, loss=4.0 * (seed == 1)) for seed in (0, 1, 2)}
    atr = [make_run(tmp_path / f"atr{seed}", spec) for seed, spec in falls.items()]
    clip = [make_run(tmp_path / f"clip{seed}", replace(CLIP, seed=seed)) for seed in falls]
    assert [collapsed(read_run(path)) for path in atr + clip] == [False, True] + [False] * 4
    _, text = compared(*clip, *atr)
    said = " ".join(text.split())
    assert "1 of 3 runs collapsed (the 95 % interval of the rate is 1 to 91 %)" in said
    assert "No interval is given" in said and "clip ε=0.2: " not in said
    rows = [row.split() for row in text.splitlines() if row.split()[:2] == ["Mean@4", "average"]]
    assert [row[6].startswith("[") for row in rows] == [True, False]  # the score's interval
    figure = training_figure(group_runs([read_run(path) for path in clip + atr]))
    assert figure is not None and "No band is drawn" in figure.caption
    bands = {m.name for panel in figure.panels for m in panel.marks if m.style == "band"}
    assert bands == {"clip ε=0.2"}


def test_other_numbers_of_samples_are_compared_at_the_pass_that_both_have(tmp_path):
    """Pass@8 of the one stood beside Pass@4 of the other."""
    many = make_run(tmp_path / "many", replace(ATR, k=8))
    few = make_run(tmp_path / "few", replace(CLIP, k=4))
    (mean, passed), text = compared(few, many)
    assert (mean.metric, passed.metric) == ("mean@K", "pass@4")
    said = " ".join(text.split())
    assert "clip ε=0.2 4, atr δ=0.07 8. Mean@K means the same" in said
    assert "so Pass@4 is estimated" in said and "Pass@8" not in said
    answers = {
        path: [a for task in final_of(read_run(path)).answers.values() for a in task.values()]
        for path in (many, few)
    }
    strata = ["amc23"] * 20 + ["aime24"] * 10
    expected = stats.pass_interval(answers[many], 4, strata).value
    rows = [line.split() for line in text.splitlines()]
    assert f"{100 * expected:.1f}" in next(r for r in rows if r[:3] == ["Pass@4", "average", "atr"])
    assert passed.difference is not None
    gap = expected - stats.pass_interval(answers[few], 4, strata).value
    assert passed.difference.value == pytest.approx(gap)
    assert sum(row[:1] == ["Pass@4"] for row in rows) == 6  # the tasks, too


def rewritten(run: Path, change) -> Path:
    """The answers of a run's last evaluation, changed: each row becomes the rows it stands for."""
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    new = [n for r in rows for n in (change(r) if (r["stage"], r["step"]) == ("eval", 60) else [r])]
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in new))
    return run


def first_problem(row) -> bool:
    return (row["task"], row["id"]) == ("amc23", "0")


def test_one_training_run_each_of_different_seeds_has_no_p_value(tmp_path):
    """clip at seed 0 and atr at seed 1 once got p = 0.0004 under a note about common seeds."""
    first = make_run(tmp_path / "clip", CLIP)
    other = make_run(tmp_path / "atr", replace(ATR, seed=1))
    found, text = compared(first, other)
    assert [c.difference for c in found] == [None, None]
    assert "not compared: each has one run, and the seeds 1 and 0 differ" in text
    assert "nan" not in text


def test_one_problem_with_fewer_answers_keeps_k(tmp_path):
    """One broken problem turned the whole comparison into Mean@2 and Pass@2."""
    first = make_run(tmp_path / "a", ATR)
    short = make_run(tmp_path / "b", CLIP)
    before = compared(first, short)[0]
    rewritten(short, lambda row: [] if first_problem(row) and row["k"] > 1 else [row])
    found, text = compared(first, short)
    assert [c.metric for c in found] == ["mean@4", "pass@4"]
    assert "2 of 120 answers are missing in the evaluation" in " ".join(text.split())
    assert "different numbers of samples" not in text and "2 of 120" in text
    for then, now in zip(before, found, strict=True):
        assert then.difference is not None and now.difference is not None
        assert abs(then.difference.value - now.difference.value) < 0.03


def test_a_judgement_that_is_no_number_is_named(tmp_path):
    """It was refused as "different problems"."""
    first, odd = make_run(tmp_path / "a", ATR), make_run(tmp_path / "b", CLIP)
    rewritten(odd, lambda row: [row | ({"correct": float("nan")} if first_problem(row) else {})])
    with pytest.raises(ValueError, match=r"`correct` is null or NaN in answer 0 to amc23: 0"):
        compared(first, odd)
