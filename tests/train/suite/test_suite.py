"""Suites, with a stand-in for the runs: what is started, skipped, continued, and what is said."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from patience import alive, until
from rich.console import Console

from trustclip import method, stats
from trustclip.cli.commands.experiments import settings
from trustclip.support.consent import consent
from trustclip.support.jsonl import append_jsonl, plain, read_jsonl
from trustclip.support.lock import only_process
from trustclip.support.stops import TOGETHER
from trustclip.train.settings.stages import SFTSettings
from trustclip.train.suite import run_suite
from trustclip.train.suite.launchers.local import environment
from trustclip.train.suite.plan import digest, plan
from trustclip.train.suite.run import Watched, _arguments
from trustclip.train.suite.table import Results

WORKER = (sys.executable, str(Path(__file__).parents[2] / "support" / "standin_run.py"))

RECIPE = {
    "name": "small",
    "model": "tiny",
    "output_dir": "runs/small",
    "seed": 7,
    "sft": {"dataset": "arithmetic", "max_steps": 3},
    "rl": {
        "dataset": "arithmetic",
        "max_steps": 8,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_iterations": 2,
    },
    "eval": {"tasks": "arithmetic", "k": 4},
}
SUITE = {
    "name": "trial",
    "recipe": "recipe.yaml",
    "seeds": [0, 1],
    "methods": {
        "atr": {"name": "atr", "delta": 0.07},
        "clip": {"name": "clip"},
        "none": {"name": "clip_higher", "low": 1, "high": 1e9},
    },
}


class Folder:
    """A suite and its recipe in a folder, run with the stand-in."""

    def __init__(self, path, monkeypatch):
        self.path, self.file, self.out = path, path / "suite.yaml", path / "out"
        self.control = path / "control"
        self.control.mkdir()
        monkeypatch.setenv("STANDIN", str(self.control))
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        self.write()

    def write(self, recipe=None, **changed):
        recipe = RECIPE if recipe is None else recipe
        (self.path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        suite = {**SUITE, "output_dir": str(self.out), **changed}
        suite = {key: value for key, value in suite.items() if value is not None}
        self.file.write_text(yaml.safe_dump(suite, sort_keys=False))

    def run(self, **options):
        said = io.StringIO()
        console = Console(file=said, width=200)
        self.status = run_suite(self.file, console, command=WORKER, **options)
        return said.getvalue()

    def in_a_process(self):
        code = (
            "import sys; from pathlib import Path; from rich.console import Console\n"
            "from trustclip.train.suite import run_suite\n"
            f"sys.exit(run_suite(Path({str(self.file)!r}), Console(), max_parallel=2, "
            f"command={WORKER!r}))"
        )
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    def alive(self):
        return len(list(self.control.glob("alive-*")))

    @contextmanager
    def held_until(self, condition):
        """Runs do not come past their second update before the condition holds."""

        def release():
            try:
                until(condition)
            finally:
                hold.unlink()

        hold = self.control / "hold"
        hold.touch()
        thread = threading.Thread(target=release)
        thread.start()
        yield
        thread.join()

    def starts(self):
        path = self.control / "starts.txt"
        names = [line.split()[0] for line in path.read_text().splitlines()]
        path.unlink()
        return names

    def events(self, kind):
        rows = read_jsonl(self.out / "events.jsonl")
        return [row["run"] for row in rows if row["event"] == kind]

    def folders(self):
        return sorted(p.name.rsplit("-", 1)[0] for p in self.out.iterdir() if p.is_dir())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Folder(tmp_path, monkeypatch)


def test_methods_times_seeds_with_one_sft_and_a_table(folder):
    said = folder.run()
    assert folder.status == 0
    runs = ["atr-seed0", "clip-seed0", "none-seed0", "atr-seed1", "clip-seed1", "none-seed1"]
    started = folder.starts()
    assert [name.rsplit("-", 1)[0] for name in started] == ["sft", *runs]
    assert folder.folders() == sorted(["sft", *runs])
    recipe = yaml.safe_load((folder.out / started[2] / "recipe.yaml").read_text())
    assert recipe["model"] == str(folder.out / started[0] / "final") and recipe["sft"] is None
    assert recipe["rl"]["method"] == method("clip", epsilon=0.2).to_dict()

    text = (folder.out / "table.md").read_text()
    assert "inconclusive with 2 seeds per method" in text  # the gap is named, without a verdict
    assert "Generated by `trustclip suite " in text and "8 updates per run; seeds 0, 1" in text
    assert "K = 4 samples of each of 16 problems (16 arithmetic)" in text
    assert "clip-seed0" in said and "update 8/8, Mean@4 37.5%" in said
    resolved = yaml.safe_load((folder.out / "suite.yaml").read_text())
    assert resolved["reference"] == "atr" and len(resolved["runs"]) == 7
    assert resolved["runs"][started[1]]["label"] == "atr"


@pytest.mark.slow
def test_what_is_finished_is_not_run_again(folder):
    folder.run()
    folder.starts()
    folder.run()
    assert folder.status == 0 and not (folder.control / "starts.txt").exists()
    folder.write(
        seeds=[0, 1, 2], methods={**SUITE["methods"], "kl2": {"name": "kl2"}}, reference="clip"
    )
    folder.run()
    new = {name.rsplit("-", 1)[0] for name in folder.starts()}
    assert new == {"kl2-seed0", "kl2-seed1", "kl2-seed2", "atr-seed2", "clip-seed2", "none-seed2"}
    folder.write(changes={"rl.learning_rate": 1e-5})
    folder.run()
    assert len(folder.starts()) == 6  # the SFT is shared with the runs of the other learning rate
    assert len(list(folder.out.glob("atr-seed0-*"))) == 2


def test_a_method_has_settings_of_its_own(folder):
    """And the others have those of the recipe; all are compared in one setting."""
    given = {"atr": {"rl.learning_rate": 0.5}, "none": {"rl.learning_rate": 0.25}}
    folder.write(method_changes=given, changes={"rl.learning_rate": 0.125})
    runs = plan(folder.file).runs
    rates = {run.label: run.settings["rl"]["learning_rate"] for run in runs}
    assert rates == {"atr": 0.5, "clip": 0.125, "none": 0.25}
    assert len({run.setting for run in runs}) == 1 and len(runs) == 6
    name = "trustclip.train.problems.verify.functions:FormatReward"
    few = {"methods": {"clip": {"name": "clip"}}, "seeds": [0]}
    folder.write(method_changes={"clip": {"rl.reward": name}}, **few)
    with consent(name):
        folder.run()
    assert f"suite {folder.file} --allow-code`" in (folder.out / "table.md").read_text()


@pytest.mark.parametrize("policy", [None, 0, "run"])
def test_who_shares_an_sft(folder, policy):
    before = {job.name for job in plan(folder.file).runs}
    folder.write(sft_seed=policy)
    made = [job for job in plan(folder.file).jobs if job.method is None]
    assert (before == {job.name for job in plan(folder.file).runs}) == (policy is None)
    assert [job.seed for job in made] == {None: [7], 0: [0], "run": [0, 1]}[policy]


def test_a_failed_run_stops_no_other_and_is_tried_again(folder):
    (folder.control / "fail-clip").touch()
    said = folder.run(max_parallel=2)
    assert folder.status == 1
    assert len(folder.events("finished")) == 5 and len(folder.events("failed")) == 2
    (row, _) = [r for r in read_jsonl(folder.out / "events.jsonl") if r["event"] == "failed"]
    assert row["status"] == 3 and row["log"] == ["began at 0", "out of memory"]
    assert "exit status 3: out of memory" in said and "2 not finished" in said
    (folder.control / "fail-clip").unlink()
    folder.starts()
    folder.run()
    assert folder.status == 0
    assert {name.rsplit("-", 1)[0] for name in folder.starts()} == {"clip-seed0", "clip-seed1"}


def test_without_its_sft_no_run_starts(folder):
    (folder.control / "fail-sft").touch()
    said = folder.run()
    assert folder.status == 1 and len(folder.starts()) == 1
    assert said.count("waits for sft-") == 6


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; print('so far'); os.abort()", "killed by signal 6"),
        ("pass", "ended before its last update"),
    ],
)
def test_how_a_run_ended_too_early_is_told(folder, code, words):
    said = io.StringIO()
    folder.write({**RECIPE, "sft": None})
    command = (sys.executable, "-c", code)
    assert run_suite(folder.file, Console(file=said, width=200), command=command) == 1
    assert words in said.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("left", ['{"finished": tr', '{"finished": false}'])
def test_half_a_summary_and_one_of_an_unfinished_run_are_no_end(folder, left):
    folder.run()
    folder.starts()
    (run,) = folder.out.glob("clip-seed0-*")
    (run / "summary.json").write_text(left)
    folder.run()
    assert folder.status == 0 and folder.starts() == [run.name]


def test_so_many_at_once(folder):
    noted = folder.control / "parallel.txt"
    # Until one has noted it: three that are alive may be fewer when the last of them counts.
    with folder.held_until(lambda: noted.exists() and "3" in noted.read_text()):
        folder.run(max_parallel=3)
    together = [int(n) for n in noted.read_text().split()]
    assert max(together) == 3 and together[0] == 1
    threads = {line.split()[1] for line in (folder.control / "starts.txt").read_text().splitlines()}
    assert threads == {str(max(1, len(os.sched_getaffinity(0)) // 3))}
    with pytest.raises(ValueError, match="max_parallel must be at least 1, got 0"):
        folder.run(max_parallel=0)


def test_every_run_has_its_share_of_the_machine(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    shares = [environment(slot, 2, ["0", "1", "2"]) for slot in (0, 1)]
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == ["0,2", "1"]
    assert shares[0]["OMP_NUM_THREADS"] == "5"
    assert environment(2, 3, ["a", "b"])["CUDA_VISIBLE_DEVICES"] == "a"
    assert environment(0, 1, ["0", "1"]).get("CUDA_VISIBLE_DEVICES") == os.environ.get(
        "CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.slow
def test_ended_by_a_signal_the_runs_save_and_a_second_call_continues(folder):
    (folder.control / "hold").touch()
    suite = folder.in_a_process()
    until(lambda: sum("rl" in p.read_text() for p in folder.out.glob("*/metrics.jsonl")) == 2)
    for _ in range(2):  # as GNU timeout does, to the command and to its group
        suite.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    suite.communicate()
    assert suite.returncode == 128 + signal.SIGTERM
    assert len(folder.events("interrupted")) == 2 and not folder.alive()
    saved = list(folder.out.glob("*-seed*/state.json"))
    assert len(saved) == 2 and all(path.read_text() in "12" for path in saved)
    (folder.control / "hold").unlink()
    folder.run()
    assert folder.status == 0
    for path in saved:
        log = path.with_name("run.log").read_text().splitlines()
        assert log[0] == "began at 0" and log[1] in ("began at 1", "began at 2")


@pytest.mark.slow
def test_a_second_signal_kills_the_runs_and_all_they_started(folder):
    for word in ("hold", "stubborn"):
        (folder.control / word).touch()
    suite = folder.in_a_process()
    helpers, asked = folder.control / "helpers.txt", folder.control / "deaf.txt"
    until(lambda: helpers.exists() and len(helpers.read_text().split()) == 2)
    suite.send_signal(signal.SIGINT)
    until(lambda: asked.exists() and len(asked.read_text().split()) == 2)
    assert suite.poll() is None
    time.sleep(TOGETHER)
    suite.send_signal(signal.SIGINT)
    suite.communicate()
    assert suite.returncode == 128 + signal.SIGINT
    for pid in helpers.read_text().split():
        until(lambda pid=pid: not alive(int(pid)))


@pytest.mark.slow
def test_after_kill_9_of_the_suite_its_runs_are_found_and_not_started_twice(folder):
    (folder.control / "hold").touch()
    suite = folder.in_a_process()
    until(lambda: folder.alive() == 2 and len(list(folder.out.glob("*-seed*"))) == 2)
    suite.kill()
    suite.communicate()
    assert folder.alive() == 2
    assert (folder.out / "lock").read_text().startswith("pid ")  # stale
    with folder.held_until(lambda: len(folder.events("found running")) == 2):
        folder.run(max_parallel=2)
    assert folder.status == 0 and len(folder.starts()) == 7
    together = [int(n) for n in (folder.control / "parallel.txt").read_text().split()]
    assert max(together) == 2


@pytest.mark.slow
def test_two_suites_do_not_share_a_folder(folder):
    with only_process(folder.out), pytest.raises(ValueError, match=rf"pid {os.getpid()} on"):
        folder.run()
    folder.out.joinpath("lock").write_text("pid 999999999 on nowhere")
    folder.run()
    assert folder.status == 0


def test_a_dry_run_leaves_nothing(folder):
    said = folder.run(dry_run=True)
    assert not folder.out.exists() and folder.status == 0
    assert said.count(" new") == 7 and "atr δ=0.07" in said


def test_the_hash_is_of_what_results_depend_on(folder):
    before = [job.name for job in plan(folder.file).jobs]
    shuffled = {key: RECIPE[key] for key in reversed(RECIPE)}
    shuffled["rl"] = dict(reversed(RECIPE["rl"].items()))
    neutral = {"rl.save_steps": 5, "rl.report_to": "trackio", "sft.save_total_limit": 1}
    folder.write(shuffled, name="another", changes=neutral)
    assert [job.name for job in plan(folder.file).jobs] == before
    for changes in ({"rl.beta": 0.1}, {"eval.k": 2}, {"sft.max_steps": 4}, {"model": None}):
        models = ["owner/name"] if "model" in changes else None
        folder.write(changes={} if models else changes, models=models)
        assert not set(before) & {j.name for j in plan(folder.file).runs}
    # printf '{"a":1,"rl":{"b":[1,2.5]}}' | sha256sum
    assert digest({"a": 1, "rl": {"b": [1, 2.5]}}) == "05dfdf43"


def test_the_command_line_of_an_sft_says_its_settings(folder):
    odd = {**RECIPE["sft"], "dataset": "some problems.jsonl", "max_steps": -1, "limit": 3}
    (folder.path / "some problems.jsonl").touch()
    odd["dataset"] = str(folder.path / "some problems.jsonl")
    folder.write({**RECIPE, "sft": odd})
    (job, *_) = plan(folder.file).jobs
    command, *rest = _arguments(job)
    read = settings(SFTSettings, rest, command)
    assert plain(asdict(read)) == plain({**job.settings, "output_dir": job.path})
    assert read.seed == 7 and read.model == "tiny" and read.max_steps == -1 and job.updates == 0


def test_a_sweep_is_a_label_for_every_value(folder):
    folder.write(
        methods={
            "atr": {"name": "atr", "sweep": {"delta": ["1e-2", 0.05], "side": ["strict"]}},
            "twin": {"name": "clip_higher", "low": 0.329, "high": 0.422},
        },
        reference="twin",
    )
    made = plan(folder.file)
    assert list(made.methods) == ["atr-delta0.01-sidestrict", "atr-delta0.05-sidestrict", "twin"]
    assert made.methods["atr-delta0.05-sidestrict"] == method("atr", delta=0.05, side="strict")


def test_a_sweep_of_mappings_has_labels(folder):
    decays = {"plain": {}, "strong": {"adam_beta2": 0.9}, "weak": {"adam_beta2": 0.99}}
    whole = {"rl.lora_r": 0}
    folder.write(seeds=[0], changes=whole, sweep={"rl.trl": decays, "rl.reward_noise": [0.0, 0.2]})
    jobs = [job for job in plan(folder.file).runs if job.label == "atr"]
    assert len(jobs) == 6 and len({job.name for job in jobs}) == 6
    old = next(job for job in jobs if job.swept == {"rl.trl": "strong", "rl.reward_noise": 0.2})
    assert old.name.startswith("atr-trlstrong-reward_noise0.2-seed0-")
    assert old.setting == "tiny, trl strong, reward_noise 0.2"
    assert old.settings["rl"]["trl"]["adam_beta2"] == 0.9
    exact = next(job for job in jobs if job.swept["rl.trl"] == "plain")
    noise = [exact.swept["rl.reward_noise"]]
    folder.write(seeds=[0], changes=whole, sweep={"rl.reward_noise": noise})
    (same,) = (job for job in plan(folder.file).runs if job.label == "atr")
    assert same.name.rpartition("-")[2] == exact.name.rpartition("-")[2]  # one hash, one result


def test_several_recipes_each_with_its_model(folder):
    big = {**RECIPE, "model": "owner/big", "rl": {**RECIPE["rl"], "max_steps": 9}}
    (folder.path / "big.yaml").write_text(yaml.safe_dump(big))
    folder.write(recipe=None, seeds=[0])
    suite = yaml.safe_load(folder.file.read_text()) | {"recipe": ["recipe.yaml", "big.yaml"]}
    folder.file.write_text(yaml.safe_dump(suite))
    runs = plan(folder.file).runs
    assert [(run.model, run.updates) for run in runs] == [("tiny", 8)] * 3 + [("owner/big", 9)] * 3
    folder.run()
    text = (folder.out / "table.md").read_text()
    assert "8, 9 updates per run" in text and "| **owner/big** |" in text


MALFORMED = {
    "method": ({"methods": {"a": {"name": "art"}}}, ["line 7", "unknown method 'art'", "'atr'"]),
    "no name": ({"methods": {"a": {"delta": 0.1}}}, ["a: a method needs a `name`"]),
    "label": ({"methods": {"a/b": {"name": "atr"}}}, ["'a/b' names a folder"]),
    "sweep": ({"methods": {"a": {"name": "atr", "sweep": {"delta": 0.1}}}}, ["list of values"]),
    "swept and fixed": (
        {"methods": {"a": {"name": "atr", "delta": 1, "sweep": {"delta": [0.1]}}}},
        ["'delta' is both fixed and swept"],
    ),
    "same label": (
        {"methods": {"a": {"name": "atr", "sweep": {"delta": [0.1, "1e-1"]}}}},
        ["second method with the label 'a-delta0.1'"],
    ),
    "reference": ({"reference": "art"}, ["unknown label 'art'", "did you mean 'atr'"]),
    "change": ({"changes": {"rl.learning_rat": 1}}, ["rl.learning_rat", "'rl.learning_rate'"]),
    "own path": ({"changes": {"seed": 1}}, ["may not set 'seed'"]),
    "own path of a method": (
        {"method_changes": {"atr": {"rl.method.delta": 1}}}, ["may not set 'rl.method.delta'"]
    ),
    "changes of no method": (
        {"method_changes": {"art": {"rl.beta": 1.0}}}, ["label 'art'", "'atr'"]
    ),
    "changed and swept": (
        {"method_changes": {"atr": {"rl.beta": 1.0}}, "sweep": {"rl.beta": [0.1]}},
        ["in both `method_changes` and `sweep`"],
    ),
    "recipe": ({"recipe": "recip.yaml"}, ["recip.yaml", "did you mean", "recipe.yaml"]),
    "seeds": ({"seeds": [1, 1]}, ["`seeds` has a duplicate"]),
    "key": ({"seed": [1]}, ["unknown key 'seed'", "'seeds'"]),
    "inert": ({"changes": {"rl.num_iterations": 1}}, ["inert"]),
    "sweep without values": ({"sweep": {"rl.trl": {}}}, ["`sweep.rl.trl`", "labels"]),
    "sweep of mappings": ({"sweep": {"rl.trl": [{"beta": 1}]}}, ["labels with a value each"]),
    "swept value": ({"sweep": {"rl.trl": {"old": {"leg": 1}}}}, ["leg"]),
    "swept label": ({"sweep": {"rl.trl": {"a/b": {}}}}, ["'a/b'", "folder name"]),
    "models": (
        {"models": ["a/b"], "recipe": ["recipe.yaml", "./recipe.yaml.yaml"]},
        ["cannot be combined"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_suite_is_refused_in_words(folder, case):
    changed, words = MALFORMED[case]
    folder.write(**{"recipe": None})
    suite = {**SUITE, "output_dir": str(folder.out), **changed}
    suite = {key: value for key, value in suite.items() if value is not None}
    folder.file.write_text(yaml.safe_dump(suite, sort_keys=False))
    with pytest.raises(ValueError) as caught:
        folder.run()
    for word in words:
        assert word in str(caught.value)
    assert not folder.out.exists()


def test_all_mistakes_at_once(folder):
    folder.file.write_text(
        f"name: x\nrecipe: recipe.yaml\noutput_dir: {folder.out}\nreferense: atr\n"
        "methods:\n  a: {name: art}\n  b: {name: atr, delat: 1}\n"
        "changes:\n  rl.learning_rat: 1\n  rl.beta: -1\n"
    )
    with pytest.raises(ValueError) as caught:
        folder.run()
    for word in ("line 4", "'reference'", "line 6", "line 7", "'delta'", "learning_rate", "beta"):
        assert word in str(caught.value)
    folder.file.write_text("name: x\nmethods:\n  a: {name: atr}\n  a: {name: clip}\n")
    with pytest.raises(ValueError, match=r"line 4: `methods.a` is given twice, first in line 3"):
        folder.run()


def answer(out, job, final, *, best=None, gated=(), initial=None):
    """The run directory of a finished run with these answers {task: {id: [0, 1, ...]}}."""
    job.path.mkdir(parents=True)
    (job.path / "config.yaml").write_text("command: run\n")
    for step, answers in ((0, initial), (4, best), (8, final)):
        for task, problems in (answers or {}).items():
            append_jsonl(
                job.path / "metrics.jsonl", [{"stage": "eval", "step": step, "task": task}]
            )
            append_jsonl(
                job.path / "samples.jsonl",
                [
                    {"stage": "eval", "step": step, "task": task, "id": name, "k": k, "correct": c}
                    for name, correct in problems.items()
                    for k, c in enumerate(correct)
                ],
            )
    rows = [{"stage": "rl", "step": step, "trustclip/gated": g} for step, g in enumerate(gated, 1)]
    append_jsonl(job.path / "metrics.jsonl", rows)
    (job.path / "summary.json").write_text(json.dumps({"finished": True}))


SHIPPED = sorted((Path(__file__).parents[3] / "recipes" / "suites").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_suite_compares_every_method_with_atr(path):
    made = plan(path)
    assert made.settings.name == path.stem and made.out == Path("runs") / path.stem
    assert made.methods[made.reference] == method("atr")
    conditions = len({(job.model, job.setting) for job in made.runs})
    assert len(made.runs) == conditions * len(made.methods) * len(made.settings.seeds)
    assert len({job.path for job in made.jobs}) == len(made.jobs)


def test_progress_is_read_as_it_grows(folder):
    folder.write({**RECIPE, "eval": {"tasks": "arithmetic,aime24", "k": 2}})
    (job, *_) = plan(folder.file).runs
    metrics = job.path / "metrics.jsonl"
    job.path.mkdir(parents=True)
    run = Watched(job)
    with metrics.open("w") as file:
        file.write('{"stage": "rl", "step": 3}\n{"stage": "eval", "st')
    assert not run.refresh()
    with metrics.open("a") as file:
        file.write('ep": 6, "task": "aime24", "mean@2": 0.1}\n')
    assert not run.refresh()
    average = {"stage": "eval", "step": 6, "task": "average", "mean@2": 0.2, "mean@2/low": 0.1}
    append_jsonl(metrics, [average])
    assert run.refresh() and run.score == "update 6/8, Mean@2 20.0%"
    metrics.write_text('{"stage": "rl", "step": 5}\n')  # cut back to a checkpoint
    assert not run.refresh()
    append_jsonl(metrics, [{**average, "mean@2": 0.3}])
    assert run.refresh() and run.score == "update 6/8, Mean@2 30.0%"


def several(rights, k=4):
    return {str(i): [1] * right + [0] * (k - right) for i, right in enumerate(rights)}


def test_the_numbers_of_the_table(folder):
    """Two benchmarks, two seeds: macro-averages, Pass@4 and Holm's steps, by hand."""
    made = plan(folder.file)
    results = Results(made, "trustclip suite x")
    scores = {
        "atr": [([4, 2, 0, 2], [2, 2]), ([4, 4, 0, 0], [1, 3])],
        "clip": [([1, 1, 0, 0], [0, 0]), ([1, 0, 0, 0], [0, 1])],
        "none": [([4, 2, 0, 2], [2, 2]), ([4, 4, 0, 0], [1, 2])],
    }
    for job in made.runs:
        long, short = scores[job.label][job.seed]
        best = {"long": several([4, 4, 4, 4]), "short": several([0, 4])} if job.seed else None
        answer(
            folder.out, job, {"long": several(long), "short": several(short)},
            best=best, gated=(0.1, 0.3 + job.seed / 5),
        )  # fmt: skip
        results.add(job)
    table = results.table()
    atr, clip, _ = table.groups

    def final(group, metric, task=None):
        estimate = group.estimate(task, metric)
        assert estimate is not None
        return pytest.approx(estimate.value)

    # Mean@4: long (8 + 8) / 32 = 1/2, short (4 + 4) / 16 = 1/2.
    assert final(atr, "mean@4") == 1 / 2
    # Pass@4: seed 0 long 3/4, short 1; seed 1 long 2/4, short 1: (5/8 + 1) / 2.
    assert final(atr, "pass@4") == 13 / 16
    # clip: long (2 + 1) / 32, short (0 + 1) / 16.
    assert final(clip, "mean@4") == (3 / 32 + 1 / 16) / 2
    assert final(clip, "mean@4", "long") == 3 / 32
    assert "of each of 6 problems (4 long + 2 short)" in table.markdown()

    arms = {
        label: [[list(a) for part in pair for a in several(part).values()] for pair in runs]
        for label, runs in scores.items()
    }
    strata = ["long"] * 4 + ["short"] * 2
    for kind, k in (("mean", None), ("pass", 4)):
        expected = [
            stats.paired_difference(arms[name], arms["atr"], strata, k=k, same_seeds=True)
            for name in ("clip", "none")
        ]
        assert [one.difference for one in table.compared[kind]] == expected
        adjusted = stats.holm([one.p for one in expected]).tolist()
        assert [one.p_holm for one in table.compared[kind]] == adjusted
    first, second = table.compared["mean"]
    assert first.difference is not None and second.difference is not None
    assert first.p_holm == min(1, 2 * first.difference.p)
    assert second.p_holm == max(first.p_holm, second.difference.p)
    text = results.write().read_text()
    assert "6 problems (4 long + 2 short)" in text and "macro-averaged" in text
    assert "| atr (2 seeds) | **50.00" in text and "Average Mean@4" in text


def test_differences_use_the_seeds_that_both_have(folder):
    folder.write(seeds=[0, 1, 2])
    made = plan(folder.file)
    results = Results(made, "x")
    right = {"atr": [4, 4, 0], "clip": [2, 0, 0]}
    for job in made.runs:
        if job.label in right and not (job.label == "atr" and job.seed == 1):
            answer(folder.out, job, {"t": several([right[job.label][job.seed]] * 9)})
            results.add(job)
    table = results.table()
    (clip,) = (one for one in table.compared["mean"] if one.difference is not None)
    score = clip.group.estimate(None, "mean@4")
    assert (clip.group.label, clip.seeds) == ("clip", 2)
    assert clip.difference is not None and clip.difference.value == pytest.approx(2 / 8 - 4 / 8)
    assert score is not None and score.value == pytest.approx(2 / 12)
    assert table.groups[2].runs == []
    text = results.write().read_text()
    assert "Not all runs are finished: atr 2 of 3, none 0 of 3." in text


def test_a_finished_run_that_cannot_be_read_is_told(folder):
    folder.run()
    (run,) = folder.out.glob("clip-seed0-*")
    (run / "config.yaml").unlink()
    said = folder.run()
    assert folder.status == 1 and "finished, but cannot be read" in said
    assert "Not all runs are finished: clip 1 of 2." in (folder.out / "table.md").read_text()
