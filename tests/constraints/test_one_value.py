"""A method is one value: built once from the flag or the file, and handed on to the gate."""

import json
from typing import Any

import pytest
import yaml
from test_recipe_files import written

import trustclip as tc
from trustclip.cli.arguments import changes_of
from trustclip.cli.commands.experiments import settings
from trustclip.constraints.adaptive import adapts
from trustclip.constraints.registry import as_method
from trustclip.methods.atr import ATR
from trustclip.support.jsonl import plain
from trustclip.train.files import load_recipe
from trustclip.train.settings.stages import DemoSettings, Recipe, RLSettings
from trustclip.train.suite.plan import plan

PRESET = ["--preset", "tiny", "--method.delta", "0.05"]


@pytest.fixture
def built(monkeypatch):
    """Every construction of an `ATR` since the last `clear`."""
    tc.methods()  # some have parts by default, made when their file is imported
    made, init = [], ATR.__init__

    def counted(self, *args, **kwargs):
        made.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(ATR, "__init__", counted)
    return made


class _AtTheGate(Exception):
    pass


def test_a_method_is_built_once_from_the_flag_to_the_first_gate(tmp_path, monkeypatch, built):
    from trustclip.cli.commands import experiments
    from trustclip.train.models import save_model
    from trustclip.train.tiny import tiny_model

    save_model(*tiny_model(), tmp_path / "model")

    def gate(*_args, **_kwargs):
        raise _AtTheGate

    monkeypatch.setattr("trustclip.constraints.gates.interval", gate)
    place = ["--model", str(tmp_path / "model"), "--output-dir", str(tmp_path / "run")]
    with pytest.raises(_AtTheGate):
        experiments.rl([*PRESET, *place, "--max-steps", "2"])
    assert len(built) == 1 and built[0].delta == 0.05


SPELLINGS = [
    ["--method", "atr", "--method.delta", "0.05"],
    ["--method.delta=0.05"],
    ["--method", "{name: atr, delta: 0.05}"],
    ["--method.delta", "0.05", "--method", "{name: atr, delta: 0.2}"],
]


@pytest.mark.parametrize("words", SPELLINGS, ids=" ".join)
def test_every_spelling_of_the_command_line_is_the_same_method(tmp_path, words):
    want = tc.method("atr", delta=0.05)
    preset = ["--preset", "tiny", *words]
    assert settings(RLSettings, preset, "rl").method == want
    assert settings(DemoSettings, words, "demo").method == want
    for prefixed in (words, [word.replace("--method", "--rl.method") for word in words]):
        _, changes = changes_of(prefixed, Recipe)
        assert load_recipe(written(tmp_path), changes).rl.method == want


def test_parts_and_controllers_are_values_too(tmp_path):
    gate = {"controller": "target_gate", "share": 0.02}
    words = ["--method", "both", "--method.second.name", "atr", "--method.second.delta", str(gate)]
    _, changes = changes_of(words, Recipe)
    method = load_recipe(written(tmp_path), changes).rl.method
    assert method == tc.method("both", second=tc.method("atr", delta=gate))
    assert adapts(method)
    text = yaml.safe_dump(plain(load_recipe(written(tmp_path), changes)))
    assert load_recipe(written(tmp_path, text)).rl.method == method


def test_a_suite_sweeps_a_hyper_parameter_of_its_methods(tmp_path):
    written(tmp_path)
    suite = {
        "name": "s", "recipe": "recipe.yaml", "output_dir": str(tmp_path / "out"),
        "methods": {"atr": {"name": "atr"}, "kl2": {"name": "kl2"}},
        "sweep": {"rl.method.delta": [0.01, 0.02]},
    }  # fmt: skip
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(suite))
    runs: Any = plan(file).runs
    assert {(job.label, job.method.delta) for job in runs} == {
        ("atr", 0.01), ("atr", 0.02), ("kl2", 0.01), ("kl2", 0.02)
    }  # fmt: skip
    assert all(job.settings["rl"]["method"] == job.method.to_dict() for job in runs)


# In TRL's configuration ---------------------------------------------------------------------------

TRL: dict[str, Any] = {"num_iterations": 2, "use_cpu": True, "bf16": False, "report_to": "none"}


def config(tmp_path, **values):
    from trustclip.engines.trl import ConstrainedGRPOConfig

    return ConstrainedGRPOConfig(str(tmp_path), **TRL, **values)


def test_the_trl_configuration_takes_a_name_a_mapping_and_a_method(tmp_path, built):
    want = tc.method("atr", delta=0.05)
    built.clear()
    for given in (want, {"name": "atr", "delta": 0.05}, '{"name": "atr", "delta": 0.05}'):
        assert config(tmp_path, method=given).method == want
    assert config(tmp_path, method=want).method is want
    assert config(tmp_path).method == config(tmp_path, method="atr").method == tc.method("atr")


def test_the_parser_of_transformers_takes_the_method_as_text(tmp_path):
    from trl.scripts.utils import TrlParser

    from trustclip.engines.trl import ConstrainedGRPOConfig

    classes: Any = (ConstrainedGRPOConfig,)
    words = ["--output_dir", str(tmp_path), "--num_iterations", "2", "--use_cpu", "--bf16", "False"]
    for text in ("kl2", '{"name": "kl2", "delta": 0.05}'):
        (args,) = TrlParser(classes).parse_args_and_config([*words, "--method", text])
        assert args.method == as_method(json.loads(text) if text[0] == "{" else text)
    file = tmp_path / "args.yaml"
    file.write_text("method: {name: kl2, delta: 0.05}\n")
    (args,) = TrlParser(classes).parse_args_and_config([*words, "--config", str(file)])
    assert args.method == tc.method("kl2", delta=0.05)


def test_a_run_directory_names_its_method_and_is_continued_with_it_alone(tmp_path):
    from trustclip.logs.reader import read_run
    from trustclip.train.runs.directory import RunDirectory

    recipe = load_recipe(written(tmp_path))
    path = RunDirectory(tmp_path / "run", "run", recipe).path / "config.yaml"
    stored = yaml.safe_load(path.read_text())
    assert stored["rl"]["method"] == recipe.rl.method.to_dict()
    assert read_run(tmp_path / "run").method == recipe.rl.method.to_dict()
    RunDirectory.resumed(tmp_path / "run", "run", recipe).summarize({})
    other = load_recipe(written(tmp_path), {"method.delta": 0.1})
    with pytest.raises(ValueError, match=r"rl\.method\.delta=0\.05, not 0\.1"):
        RunDirectory.resumed(tmp_path / "run", "run", other)
