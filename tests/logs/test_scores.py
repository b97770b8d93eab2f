"""Scores of other programs: one table, whoever wrote it, and the comparison that it gives."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from scipy import stats as scipy_stats

from trustclip import stats
from trustclip.findings.comparison import Compared
from trustclip.logs.choice import Choice
from trustclip.report.collect import collect
from trustclip.report.console import print_comparison
from trustclip.report.page import build
from trustclip.report.planning import print_power

SMOLLM2 = Path(__file__).parents[2] / "benchmarks/smollm2/answers.parquet"
COLUMNS = "arm=arm,seed=seed,problem=problem,score=right,of=samples,step=update"


def compared(*paths: Path | str, form: str = "text", figure=None, **choice):
    text = io.StringIO()
    found = print_comparison(
        [Path(path) for path in paths], Console(width=160, file=text), form=form, figure=figure,
        choice=Choice(**choice),
    )  # fmt: skip
    return found, text.getvalue()


def gap(one) -> stats.Difference:
    assert one.difference is not None
    return one.difference


def written(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        sign = ";" if path.stem == "renamed" else ","
        lines = [rows[0], *(map(str, row.values()) for row in rows)]
        path.write_text("\n".join(map(sign.join, lines)) + "\n")
    else:
        mark = "\ufeff" * (path.stem == "renamed")
        path.write_text(mark + "".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(shares: dict[str, float], seeds: int = 3, problems: int = 40, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [
        {"arm": arm, "seed": s, "problem": f"q{i}", "sample": k, "score": int(rng.random() < p)}
        for arm, p in shares.items() for s in range(seeds) for i in range(problems)
        for k in range(4)
    ]  # fmt: skip


def own_folders(folder: Path) -> list[Path]:
    """The committed answers of SmolLM2 at the higher rate, as run directories of ours."""
    runs: dict[tuple, list[dict]] = {}
    for row in pq.read_table(SMOLLM2).to_pylist():
        if row["rate"] == 0.000277:
            runs.setdefault((row["arm"], row["seed"]), []).append(row)
    for (arm, seed), rows in runs.items():
        run = folder / f"{arm}-{seed}"
        config = {"command": "rl", "model": "m", "seed": seed, "method": {"name": arm}}
        written(run / "config.yaml", []).write_text(yaml.safe_dump(config))
        (run / "summary.json").write_text('{"finished": true}')
        steps = sorted({row["update"] for row in rows})
        logged = [{"stage": "rl", "step": steps[-1], "loss": 0.0}]
        logged += [{"stage": "eval", "step": step, "task": "t", "mean@4": 0.5} for step in steps]
        written(run / "metrics.jsonl", logged)
        written(run / "samples.jsonl", [
            {"stage": "eval", "step": row["update"], "task": "t", "id": row["problem"], "k": k,
             "correct": int(k < row["right"]), "response": f"{arm} {seed} {k}"}
            for row in rows for k in range(row["samples"])
        ])  # fmt: skip
    return sorted(folder.iterdir())


def digits(found: list[Compared]):
    return [(c.group.label.partition(" ")[0], c.metric, c.seeds, c.difference, c.p_holm,
             c.detectable) for c in found]  # fmt: skip


@pytest.mark.slow
def test_the_runs_of_smollm2_give_the_same_digits_through_both_doors(tmp_path):
    ours, _ = compared(*own_folders(tmp_path))
    theirs, text = compared(SMOLLM2, columns=COLUMNS, where="rate=0.000277")
    assert digits(ours) == digits(theirs) and len(theirs) == 6
    assert "clip is better than atr by 16.5 points [+6.8, +26.2] (p = 0.021)" in text
    said = "Holm's correction counts 3 comparisons in Mean@4, and those in Pass@4 apart"
    assert said in " ".join(text.split())
    ours, _ = compared(*sorted(tmp_path.iterdir()), by="area")
    theirs, text = compared(SMOLLM2, columns=COLUMNS, where="rate=0.000277", by="area")
    assert [gap(c).value for c in ours] == pytest.approx([gap(c).value for c in theirs])
    assert "(area)" in text


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_columns_of_any_name_in_any_file(tmp_path, suffix):
    rows = table({"a": 0.4, "b": 0.7})
    plain = written(tmp_path / f"plain{suffix}", rows)
    names = {"arm": "model", "seed": "run", "problem": "id", "sample": "k", "score": "ok"}
    other = [{names[key]: value for key, value in row.items()} for row in rows]
    renamed = written(tmp_path / f"renamed{suffix}", other)
    columns = ",".join(f"{part}={name}" for part, name in names.items())
    assert digits(compared(plain)[0]) == digits(compared(renamed, columns=columns)[0])
    with pytest.raises(ValueError, match="unknown column 'modl'; did you mean 'model'"):
        compared(renamed, columns="arm=modl")
    with pytest.raises(ValueError, match="none is called `score`; say which is what"):
        compared(renamed, columns="arm=model")


def test_programs_are_known_by_what_their_rows_hold(tmp_path):
    """Columns as lm-eval 0.4.13, verl 0.9.1 and verifiers 0.4.0 write them, a folder a run."""
    for arm, right in (("a", 3), ("b", 7)):
        name = "samples_toy_2026-11-28T02-13-45.5.jsonl"
        written(tmp_path / "lm" / arm / name, [
            {"doc_id": i, "filter": "none", "metrics": ["acc", "em"], "acc": float(i < right),
             "em": 0.0} for i in range(10)
        ])  # fmt: skip
        for step in (0, 10):
            written(tmp_path / "verl" / arm / f"{step}.jsonl", [
                {"input": f"q{i}", "output": "", "gts": "", "step": step,
                 "score": 1.0 if i < right and step else -1.0} for i in range(10)
            ])  # fmt: skip
        for work, folder in (("eval", "all"), ("eval", "effective"), ("train", "all")):
            name = f"prime/{arm}/rollouts/step_20/{work}/{folder}/traces.jsonl"
            reward = {"right": {"score": 1.0, "weight": 0.5}, "tone": None}
            written(tmp_path / name, [
                {"id": f"{work}{i}", "env": {"id": "toy"}, "task": {"key": f"q{i}"}, "ok": i < 9,
                 "run": {"type": "train", "work": {"type": work, "step": 20}},
                 "traces": [{"rewards": reward if i < right else {}}]} for i in range(10)
            ])  # fmt: skip
    (mean,), text = compared(tmp_path / "prime/a", tmp_path / "prime/b")
    assert gap(mean).value == pytest.approx(0.5 * 4 / 9) and "at update 20" in text
    assert "1 of 10" in text and "10 rows given twice" in text
    (mean, _), text = compared(tmp_path / "lm/a", tmp_path / "lm/b")
    assert gap(mean).value == pytest.approx(0.4) and "toy" in text
    (mean, _), _ = compared(tmp_path / "lm/a", tmp_path / "lm/b", columns="score=em")
    assert gap(mean).value == 0
    with pytest.raises(ValueError, match=r"score -1 is not from 0 to 1; say .* --right 1"):
        compared(tmp_path / "verl/a", tmp_path / "verl/b")
    (mean, _), text = compared(tmp_path / "verl/a", tmp_path / "verl/b", right=1.0)
    assert gap(mean).value == pytest.approx(0.4) and "at update 10" in text


def test_families_are_the_units_and_are_found(tmp_path):
    """By the linearised variance of a mean over families, and Student's t."""
    rng = np.random.default_rng(1)
    effect = rng.normal(0, 0.25, 20)
    rows = [
        {"arm": arm, "seed": 0, "problem": f"{'xy'[f % 2]}-{chr(97 + f)}-{i}", "template": f,
         "sample": k, "score": int(rng.random() < np.clip(0.5 + effect[f] * (arm == "b"), 0, 1))}
        for arm in "ab" for f in range(20) for i in range(10) for k in range(4)
    ]  # fmt: skip
    path = written(tmp_path / "scores.jsonl", rows)
    (naive, _), text = compared(path)
    assert "The 200 problems look like 20 families" in text and "--cluster" in text
    (by_column, _), text = compared(path, cluster="template")
    (by_sign, _), _ = compared(path, cluster="-")
    (by_numbers, _), _ = compared(path, cluster="numbers")
    assert by_column.difference == by_sign.difference == by_numbers.difference
    assert "look like" not in text
    for cluster, unit in (("", "problem"), ("template", "family")):
        page = collect([path], choice=Choice(cluster=cluster))
        notes = [figure.caption for figure in page.figures] + [*page.tables[0].notes]
        clustered = [note for note in notes if "clustered by" in note]
        assert len(clustered) > 1 and all(f"by {unit}" in note for note in clustered)
    means = np.zeros((2, 20))
    for row in rows:
        means[int(row["arm"] == "b"), row["template"]] += row["score"] / 40
    d = means[1] - means[0]
    half = scipy_stats.t.ppf(0.975, 19) * d.std(ddof=1) / np.sqrt(20)
    found = gap(by_column)
    assert found.value == pytest.approx(d.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)
    assert gap(naive).high - gap(naive).low < 0.7 * (found.high - found.low)


def test_lost_answers_are_counted_and_can_undo_a_verdict(tmp_path):
    """Most of one arm's wrong answers are lost: better only in what is left."""
    rows = table({"a": 0.5, "b": 0.5}, seeds=3, problems=200)
    rng = np.random.default_rng(3)
    for row in rows:
        if row["arm"] == "b" and not row["score"] and rng.random() < 0.7:
            row["score"] = None
    (mean, _), text = compared(written(tmp_path / "scores.jsonl", rows))
    assert mean.p_holm <= 0.05 and mean.disputed and not mean.resolved
    assert "no verdict: the difference is" in text and "counted as wrong" in text
    assert f"{sum(row['score'] is None for row in rows)} of 2400" in text


def test_two_runs_and_one_run_are_no_test(tmp_path):
    for seeds, said in ((1, "too few to compare"), (2, "two runs that fail look like")):
        rows = table({"a": 0.2, "b": 0.9}, seeds=seeds)
        (mean, _), text = compared(written(tmp_path / f"{seeds}.csv", rows))
        assert not mean.resolved and said in text and "is better" not in text
        assert "would be needed" not in text
    build([tmp_path / "2.csv"], tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "cannot tell the methods apart" in page and "does not differ" not in page


def test_arms_without_seeds_are_independent_runs(tmp_path):
    unlike = [row | {"seed": f"{row['arm']}{row['seed']}"} for row in table({"a": 0.3, "b": 0.5})]
    paths = []
    for name in dict.fromkeys(row["seed"] for row in unlike):
        keys = ("problem", "sample", "score")
        part = [{key: row[key] for key in keys} for row in unlike if row["seed"] == name]
        paths.append(f"{name[0]}={written(tmp_path / f'{name}.csv', part)}")
    found = digits(compared(*paths)[0])
    assert found == digits(compared(written(tmp_path / "all.csv", unlike))[0])
    assert "paired by problem." in collect([tmp_path / "all.csv"]).tables[2].notes[0]
    means = [np.mean([float(r["score"]) for r in unlike if r["arm"] == arm]) for arm in "ab"]
    assert found[0][3] and found[0][3].value == pytest.approx(means[1] - means[0])


def test_a_curve_is_one_number_by_the_rule_that_was_named(tmp_path):
    rng = np.random.default_rng(2)
    curves = {(arm, s): 0.3 + 0.05 * (arm == "b") + rng.normal(0, 0.02, 11)
              for arm in "ab" for s in range(5)}  # fmt: skip
    rows = [{"arm": arm, "seed": s, "step": 10 * i, "score": value}
            for (arm, s), values in curves.items() for i, value in enumerate(values)]  # fmt: skip
    path = written(tmp_path / "curves.csv", rows)
    areas = {run: np.trapezoid(values) / 10 for run, values in curves.items()}
    ours, theirs = ([areas[arm, s] for s in range(5)] for arm in "ba")
    (found,), text = compared(path, by="area")
    assert gap(found).p == pytest.approx(scipy_stats.ttest_rel(ours, theirs).pvalue)
    assert gap(found).value == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert "in scores (area)." in text
    page = collect([path], choice=Choice(by="area"))
    assert "clustered by seed." in page.figures[0].caption and "by seed." in page.tables[0].notes[0]
    (_,), text = compared(written(tmp_path / "short.csv", rows[:-1]), by="area")
    assert "scores/b-4: its steps are 0 to 90, others 0 to 100." in text
    tens = [{**row, "score": 10 * row["score"]} for row in rows]
    (of_tens,), text = compared(written(tmp_path / "tens.csv", tens), by="area")
    assert 100 * gap(of_tens).value == pytest.approx(10 * gap(found).value)
    assert "which detect gaps of about" in compared(written(tmp_path / "long.csv", [
        {**row, "score": 2000 + 2000 * (0.5 - row["score"]) * (row["seed"] % 2)} for row in rows
    ]), by="end")[1]  # fmt: skip
    wide = [
        {"arm": arm, "seed": s, "step": 0, "score": score}
        for arm, scores in (("a", (0, 1, 0.1)), ("b", (1, 0, 0.9)))
        for s, score in enumerate(scores)
    ]
    assert "detect any gap" in compared(written(tmp_path / "wide.csv", wide), by="end")[1]
    assert "Scores are in their own unit." in text and "percent" not in text
    said = json.loads(compared(tmp_path / "tens.csv", form="json", by="area")[1])
    assert said["comparisons"][0]["difference"]["value"] == pytest.approx(10 * gap(found).value)
    assert said["scores"][1]["value"] == pytest.approx(10 * np.mean(ours))
    page = collect([tmp_path / "tens.csv"], choice=Choice(by="area"))
    assert all(table.title.endswith("in their own unit") for table in page.tables[:2])
    assert page.figures[0].panels[0].x_title == "their own unit"
    answers = [{**row, "problem": f"q{i}", "score": int(row["score"] > 0.3 + 0.02 * i)}
               for row in rows for i in range(5)]  # fmt: skip
    right = {run: sum(values > 0.3 + 0.02 * i for i in range(5)) / 5
             for run, values in curves.items()}  # fmt: skip
    areas = [np.trapezoid(right["b", s] - right["a", s]) / 10 for s in range(5)]
    (of_answers,), _ = compared(written(tmp_path / "answers.csv", answers), by="area")
    assert gap(of_answers).value == pytest.approx(np.mean(areas))
    assert "the best of 11 values is a maximum" in compared(path, by="best")[1]
    options = {"gap": 3.0, "power": 0.8, "comparisons": None, "choice": Choice()}
    (plan,) = print_power([path], Console(file=io.StringIO()), **options)
    ends = [curves["b", s][-1] - curves["a", s][-1] for s in range(5)]
    assert plan.spread.std == pytest.approx(np.std(ends, ddof=1))


def test_offline_runs_of_wandb_are_curves(tmp_path, monkeypatch):
    """Files of wandb's own writer, three seeds of two arms; areas by numpy."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    rng = np.random.default_rng(4)
    areas, paths = {}, []
    for arm in "ab":
        for seed in range(3):
            folder = tmp_path / f"{arm}-{seed}"
            folder.mkdir()
            values = 0.3 + 0.1 * (arm == "b") + rng.normal(0, 0.01, 6)
            with wandb.init(project="p", dir=folder, mode="offline") as run:
                for i, value in enumerate(values):
                    run.log({"val/acc": value, "loss": 1.0}, step=5 * i)
            areas[arm, seed] = np.trapezoid(values) / 5
            given = next(folder.glob("wandb/offline-run-*")) if seed else folder
            paths.append(f"{arm}@{seed}={given}")
    wandb.teardown()  # waits for its service, which writes the files, to end
    (found,), _ = compared(*paths, curve="val/acc", by="area")
    gaps = [areas["b", seed] - areas["a", seed] for seed in range(3)]
    assert gap(found).value == pytest.approx(np.mean(gaps))
    statistic = np.mean(gaps) / scipy_stats.sem(gaps)
    assert gap(found).p == pytest.approx(2 * scipy_stats.t.sf(abs(statistic), df=2))
    with pytest.raises(ValueError, match="unknown curve 'val/ac'; did you mean 'val/acc'"):
        compared(*paths, curve="val/ac")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arm,problem,score\na,1,1\nb,1\n", r"row 2 has 2 cells, and its head 3: it is cut"),
        ("arm,problem,score\na,1,x\nb,1,1\n", "row 1: the score 'x' is no number"),
        ("arm,problem,score\na,,1\nb,1,1\n", "row 1 names no problem"),
        ("arm,problem,score\na,1,inf\nb,1,1\n", "score inf is not from 0 to 1"),
        ("arm,problem,sample,score\na,1,0,1\na,1,0,0\nb,1,0,1\n", "has two scores, 1.0 and 0.0"),
        ("arm,problem,score\na,1,1\n", "needs runs of at least two methods"),
        ("arm,problem,score\na,1,1\nb,2,1\nb,3,1\n", "were evaluated on different problems"),
        ("arm,problem,score\na,1,1\nb,2,1\n", "were evaluated on different problems"),
        ("arm,problem\na,1\n", "none is called `score`"),
        ("arm,step,score\na,1,0.5\na,1,0.6\nb,1,0.5\n", "seed 0, has two values at step 1; name"),
        ("arm,step,score\na,1.0,0.5\nb,1.5,0.6\n", "row 2: the step '1.5' is no whole number"),
        ("arm,problem,score\né,1,1\n".encode("latin-1"), "cannot be read as CSV in UTF-8"),
        ("arm,problem,score\na,1,1\n".encode("utf-16"), "cannot be read as CSV in UTF-8"),
        ("arm,problem,score\na,1,1\nb,1,\n", "every answer is lost"),
    ],
)
def test_what_is_broken_is_said_in_one_sentence(tmp_path, text, said):
    (tmp_path / "scores.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=said):
        compared(tmp_path / "scores.csv")


def test_a_row_given_twice_counts_once(tmp_path):
    rows = table({"a": 0.4, "b": 0.6})
    once = compared(written(tmp_path / "once.csv", rows))[0]
    found, text = compared(written(tmp_path / "twice.csv", [*rows, *rows[:5]]))
    assert digits(found) == digits(once) and "5 rows given twice, counted once" in text
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"empty.jsonl is empty"):
        compared(tmp_path / "once.csv", tmp_path / "empty.jsonl")


def test_for_programs_and_papers(tmp_path):
    path = written(tmp_path / "scores.jsonl", table({"a_1": 0.3, "b": 0.8}))
    found, text = compared(path, form="json", figure=tmp_path / "gap.svg")
    one = json.loads(text)["comparisons"][0]
    assert one["difference"]["value"] == gap(found[0]).value and one["resolved"]
    assert "<svg" in (tmp_path / "gap.svg").read_text()
    row = compared(path, form="latex", figure=tmp_path / "gap.pdf")[1].splitlines()[1]
    assert (tmp_path / "gap.pdf").read_bytes().startswith(b"%PDF")
    assert row.startswith("b & Mean@4 & 3 & +") and row.endswith(r"\\")
    build([path], tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    assert "Mean@4" in page and (tmp_path / "report/figures/scores.svg").exists()
    assert r"a\_1" in (tmp_path / "report/tables.tex").read_text()
