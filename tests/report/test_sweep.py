"""Suites that sweep a setting of the recipe: what runs, and what is compared with what."""

import re

import pytest
import yaml
from synthetic_runs import Spec, make_suite
from test_suite import Folder, answer, several

from trustclip.report.collect import collect
from trustclip.train.suite.plan import plan
from trustclip.train.suite.table import Results

NOISE = {"rl.reward_noise": [0.0, 0.25]}


@pytest.fixture
def swept(tmp_path, monkeypatch):
    folder = Folder(tmp_path, monkeypatch)
    methods = {"atr": {"name": "atr"}, "clip": {"name": "clip"}}
    folder.write(sweep=NOISE, methods=methods)
    return folder


@pytest.mark.slow
def test_every_method_runs_under_every_value(swept):
    swept.run()
    assert swept.status == 0
    named = [f"{m}-reward_noise{n}-seed{s}" for m in ("atr", "clip") for n in (0, 0.25)
             for s in (0, 1)]  # fmt: skip
    assert swept.folders() == sorted(["sft", *named])  # one SFT for all
    (noisy,) = swept.out.glob("clip-reward_noise0.25-seed1-*")
    recipe = yaml.safe_load((noisy / "recipe.yaml").read_text())
    assert recipe["rl"]["reward_noise"] == 0.25 and recipe["name"].startswith("clip, reward_noise")
    entries = yaml.safe_load((swept.out / "suite.yaml").read_text())["runs"]
    assert entries[noisy.name]["swept"] == {"rl.reward_noise": 0.25}
    text = (swept.out / "table.md").read_text()
    assert "**tiny, reward_noise 0**" in text and "**tiny, reward_noise 0.25**" in text
    swept.starts()
    swept.write(sweep={"rl.reward_noise": [0.0, 0.25, 0.5]}, methods={"atr": {"name": "atr"}})
    swept.run()
    assert {name.rsplit("-", 2)[0] for name in swept.starts()} == {"atr-reward_noise0.5"}


def test_all_combinations_of_two_settings_on_two_models(swept):
    sweep = {**NOISE, "rl.beta": [0, "1e-2"]}
    swept.write(sweep=sweep, models=["tiny", "owner/big"], methods={"atr": {"name": "atr"}})
    runs = plan(swept.file).runs
    assert len(runs) == len({job.path for job in runs}) == 2 * 2 * 2 * 2
    settings = {job.setting for job in runs}
    assert len(settings) == 8 and "owner/big, reward_noise 0.25, beta 0.01" in settings
    assert {job.settings["rl"]["beta"] for job in runs} == {0.0, 0.01}


def test_methods_are_compared_within_a_value(swept):
    made = plan(swept.file)
    results = Results(made, "x")
    right = {("atr", 0.0): 4, ("clip", 0.0): 3, ("atr", 0.25): 1, ("clip", 0.25): 2}
    for job in made.runs:
        rights = [right[job.label, float(job.swept["rl.reward_noise"])]] * 9
        answer(swept.out, job, {"t": several(rights)})
        results.add(job)
    clean, noisy = results.table().compared["mean"]
    settings = [one.group.setting for one in (clean, noisy)]
    assert settings == ["tiny, reward_noise 0", "tiny, reward_noise 0.25"]
    assert {clean.group.label, noisy.group.label} == {"clip"}
    assert clean.difference is not None and noisy.difference is not None
    assert clean.difference.value == pytest.approx(-1 / 4)
    assert noisy.difference.value == pytest.approx(1 / 4)
    assert clean.p_holm == min(1, 2 * clean.difference.p)  # both values are one family


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"rl.reward_nose": [0.1]}, ["'rl.reward_nose'", "did you mean 'rl.reward_noise'"]),
        ({"rl.reward_noise": [0.1, 0.6]}, ["rl.reward_noise", "less than or equal to 0.5", "0.6"]),
        ({"rl.reward_noise": 0.1}, ["sweep.rl.reward_noise", "list of values", "0.1"]),
        ({"rl.reward_noise": []}, ["sweep.rl.reward_noise", "list of values", "[]"]),
        ({"rl.reward_noise": [0, 0.0]}, ["`sweep.rl.reward_noise` has a duplicate: 0, 0.0"]),
        ({"rl.dataset": ["a/b"]}, ["'a/b' cannot be part of a folder name"]),
        ({"rl.method": ["atr"]}, ["`sweep` may not set 'rl.method'"]),
        ({"seed": [1]}, ["`sweep` may not set 'seed'"]),
        ({"rl.beta": [0.1]}, ["'rl.beta' is set in both `changes` and `sweep`"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_malformed_sweep_is_refused_in_words(swept, sweep, words):
    swept.write(sweep=sweep, changes={"rl.beta": 0.2})
    with pytest.raises(ValueError) as caught:
        plan(swept.file)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of a suite of two methods under two values, made up."""
    out = tmp_path_factory.mktemp("noise") / "made-up"
    atr, clip = {"name": "atr", "delta": 0.07}, {"name": "clip", "epsilon": 0.2}
    gains = {("atr", 0.0): 3.0, ("clip", 0.0): 2.5, ("atr", 0.2): 1.5, ("clip", 0.2): 0.5}
    specs = {
        f"{label}@{noise}": Spec(atr if label == "atr" else clip, gain=gain, gated=0.01 + noise)
        for (label, noise), gain in gains.items()
    }
    make_suite(out, specs, seeds=(0, 1, 2), reference="atr")
    suite = yaml.safe_load((out / "suite.yaml").read_text())
    for entry in suite["runs"].values():
        entry["label"], _, noise = entry["label"].partition("@")
        entry["swept"] = {"rl.reward_noise": float(noise)}
    (out / "suite.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
    return collect([out])


@pytest.mark.slow
def test_a_report_has_a_reference_in_every_setting(report):
    model = "Qwen3-1.7B-Base"
    settings = [f"{model}, reward_noise 0", f"{model}, reward_noise 0.2"]
    assert [g.setting for g in report.groups if g.is_reference] == settings
    assert [(c.group.label, c.reference.setting) for c in report.compared] == [
        ("clip", setting) for setting in settings
    ]
    assert all(len(group.runs) == 3 for group in report.groups)
    names = [panel.marks[0].name for panel in report["scores"].figures[0].panels[:1]]
    assert names == ["clip at reward_noise 0.2"]
    said = "only with methods in the same setting"
    assert any(said in finding.text for finding in report.findings)
    assert report.subject.startswith("2 methods · 12 runs")
    told = " ".join(finding.text for finding in report.findings)
    assert "clip at reward_noise 0 (" in told and "clip at reward_noise 0.2: atr is better" in told
    assert re.search(r"atr at reward_noise 0\.2 10\.\d\d.%", told)  # 21 % late, none at first


def test_the_figure_over_the_swept_value_has_the_tables_numbers(report):
    (figure,) = [f for f in report["sweep"].figures if f.key.startswith("sweep")]
    assert figure.key == "sweep-rl.reward_noise"
    scores, differences, gated = figure.panels
    by_label = {group.label: [] for group in report.groups}
    for group in report.groups:
        by_label[group.label].append(group.estimate(None, "mean@4"))
    for mark in scores.marks:
        assert mark.y == pytest.approx([100 * e.value for e in by_label[mark.name]])
        if mark.style == "points":
            assert mark.low == pytest.approx([100 * e.low for e in by_label[mark.name]])
    whiskers = [mark for mark in differences.marks if mark.style == "points"]
    assert [mark.name for mark in whiskers] == ["clip"]
    assert whiskers[0].y == pytest.approx([100 * c.difference.value for c in report.compared])
    assert whiskers[0].high == pytest.approx([100 * c.difference.high for c in report.compared])
    assert all(mark.y[0] < mark.y[1] for mark in gated.marks) and len(gated.marks) == 2
    places = {x for mark in scores.marks for x in mark.x}
    assert len(places) == 4 and scores.ticks == [0.0, 0.2]  # a little apart
