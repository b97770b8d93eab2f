"""Recipe files: what is right loads and comes back, what is wrong is named, all of it at once."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import trustclip as tc
from trustclip.support.jsonl import plain
from trustclip.train.files import TINY_RECIPE, demo_recipe, load_recipe, load_yaml, preset
from trustclip.train.settings.stages import DemoSettings, RLStage

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))

GOOD = """\
name: good
model: tiny
output_dir: runs/good
seed: 3
sft: {dataset: arithmetic-primer, prompt_style: plain, max_steps: 8}
rl:
  dataset: arithmetic
  prompt_style: plain
  method: {name: atr, delta: 0.05}
  per_device_train_batch_size: 16
  gradient_accumulation_steps: 1
  steps_per_generation: 4
  num_iterations: 1
  max_steps: 8
  learning_rate: 5e-6
eval: {tasks: arithmetic, prompt_style: plain, every: 4, k: 2}
"""


def written(tmp_path, text=GOOD):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def altered(dotted, value):
    content = yaml.safe_load(GOOD)
    content["rl"]["learning_rate"] = 5e-6  # PyYAML reads YAML 1.1, where 5e-6 is text
    *sections, last = dotted.split(".")
    place = content
    for section in sections:
        place = place[section]
    place[last] = value
    return content


def changed(tmp_path, dotted, value):
    return written(tmp_path, yaml.safe_dump(altered(dotted, value)))


def errors_of(path, changes=None):
    with pytest.raises(ValueError) as caught:
        load_recipe(path, changes)
    return str(caught.value)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_load_and_let_the_constraint_act(path):
    recipe = load_recipe(path)
    assert not recipe.rl.schedule.inert
    assert recipe.name == path.stem and recipe.eval is not None


def test_the_tiny_experiment_is_one_file_and_demo_and_presets_are_made_from_it(tmp_path):
    assert (RECIPES[0].parent / "tiny.yaml").read_bytes() == TINY_RECIPE.read_bytes()
    tiny = load_recipe(TINY_RECIPE)
    demo = demo_recipe(DemoSettings(seed=3, generations=2), tmp_path)
    assert demo.eval is not None and demo.sft is not None and tiny.sft is not None
    assert (demo.name, demo.seed, demo.rl.max_steps, demo.eval.every) == ("demo", 3, 32, 0)
    same = {"max_steps": 96, "save_steps": tiny.rl.save_steps}
    assert replace(demo.rl, **same) == tiny.rl
    assert replace(demo.sft, save_steps=tiny.sft.save_steps) == tiny.sft
    short = {"limit", "steps_per_generation", "max_steps", "learning_rate", "save_steps"}
    values = preset("rl", "tiny")
    made = RLStage(
        **{name: values[name] for name in RLStage.__dataclass_fields__ if name in values}
    )
    differing = {name for name in vars(made) if getattr(made, name) != getattr(tiny.rl, name)}
    assert differing == short


@pytest.mark.parametrize("path", [p for p in RECIPES if p.name.startswith("paper")], ids=str)
def test_no_second_constraint_acts_in_a_recipe_of_the_paper(path):
    stage = load_recipe(path).rl
    assert stage is not None and stage.use_vllm
    assert stage.trl["vllm_importance_sampling_correction"] is False


def test_a_recipe_comes_back_from_what_it_writes(tmp_path):
    recipe = load_recipe(written(tmp_path))
    assert recipe.rl.learning_rate == 5e-6
    again = tmp_path / "again.yaml"
    again.write_text("command: run\n" + yaml.safe_dump(plain(recipe)))
    assert load_recipe(again) == recipe
    assert plain(load_recipe(again)) == plain(recipe)


def test_the_command_line_is_over_the_file(tmp_path):
    path = written(tmp_path)
    changes = {"method.delta": 0.1, "rl.max_steps": 12, "seed": 9, "trl.adam_beta2": 0.99}
    recipe = load_recipe(path, changes)
    assert (recipe.rl.method, recipe.rl.max_steps) == (tc.method("atr", delta=0.1), 12)
    assert recipe.seed == 9
    assert recipe.rl.trl == {"adam_beta2": 0.99}
    assert load_recipe(path, {"method": "clip"}).rl.method == tc.method("clip")
    assert load_recipe(path, {"method": "atr"}).rl.method == tc.method("atr", delta=0.05)
    both = {"method.delta": 0.01, "method": {"name": "kl2", "side": "strict"}}
    assert load_recipe(path, both).rl.method == tc.method("kl2", delta=0.01, side="strict")
    assert load_recipe(path, {"sft": None}).sft is None


def test_every_error_is_told_at_once_with_its_line_and_the_nearest_name(tmp_path):
    text = GOOD.replace("model: tiny", "model: tinny").replace("max_steps: 8\n", "max_steps: 1.5\n")
    text = text.replace("name: atr", "name: art").replace("every: 4", "evrey: 4")
    told = errors_of(written(tmp_path, text), {"rl.learning_rat": 1})
    assert "5 errors" in told
    assert "command line: unknown key 'rl.learning_rat'; did you mean 'rl.learning_rate'?" in told
    assert "line 2: no model 'tinny'" in told and "Did you mean 'tiny'?" in told
    assert "line 9: unknown method 'art'; did you mean 'atr'?" in told
    assert "line 14: `rl.max_steps` should be a valid integer" in told and "got 1.5" in told
    assert "line 16: unknown key 'eval.evrey'; did you mean 'eval.every'?" in told


#: A value that is wrong, and what the error must say of it.
WRONG = [
    ("rl.learning_rate", -1, "greater than 0, got -1"),
    ("rl.learning_rate", float("nan"), "finite number"),
    ("rl.learning_rate", "fast", "got 'fast'"),
    ("rl.max_steps", 0, "greater than or equal to 1"),
    ("rl.max_steps", "ten", "valid integer"),
    ("rl.num_generations", 1, "greater than or equal to 2"),
    ("rl.num_generations", 6, "64 completions per generation is not a multiple"),
    ("rl.gradient_accumulation_steps", 4, "inert"),
    ("rl.steps_per_generation", -1, "greater than or equal to 1"),
    ("rl.temperature", 0, "greater than 0"),
    ("rl.top_p", 1.5, "less than or equal to 1"),
    ("rl.beta", -0.1, "greater than or equal to 0"),
    ("rl.loss_type", "dapoo", "Did you mean 'dapo'?"),
    ("rl.reward", "corect", "did you mean 'correct'?"),
    ("rl.report_to", "wandbb", "Did you mean 'wandb'?"),
    ("rl.dataset", "nowhere/train.jsonl", "no folder"),
    ("rl.dataset", 7, "valid string"),
    ("rl.method", {"name": "atr", "delat": 0.1}, "did you mean 'delta'?"),
    ("rl.method", {"name": "atr", "delta": -0.1}, "greater than 0"),
    ("rl.method", {"delta": 0.1}, "needs a `name`"),
    ("rl.method", "clip(0.1, epsilon=0.5)", "is given its `epsilon` twice"),
    ("rl.method", [0.1], "its name or a mapping"),
    ("rl.trl", {"learning_rate": 1e-4}, "set `learning_rate`, outside `trl`"),
    ("rl.trl", {"adam_beta22": 0.9}, "did you mean 'adam_beta2'?"),
    ("rl.trl", {"output_dir": "x"}, "set by the run itself"),
    ("rl.max_stepz", 3, "did you mean 'rl.max_steps'?"),
    ("rl.allow_inert", "perhaps", "valid boolean"),
    ("rl", "all of it", "dictionary"),
    ("sft.max_steps", 0, "must be positive or -1"),
    ("sft.num_train_epochs", 0, "greater than 0"),
    ("eval.tasks", "aime42", "did you mean 'aime25'"),
    ("eval.tasks", " , ", "`tasks` is empty"),
    ("model", "./no/such/model", "no model './no/such/model'"),
    ("model", None, "valid string"),
    ("output_dir", 3, "path"),
    ("evals", {}, "did you mean 'eval'?"),
]


@pytest.mark.parametrize(("where", "value", "told"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_values_are_refused(tmp_path, where, value, told):
    text = errors_of(changed(tmp_path, where, value))
    assert told in text and "1 error:" in text
    assert "errors.pydantic.dev" not in text


def test_missing_keys_are_named(tmp_path):
    told = errors_of(written(tmp_path, "name: x\nrl: {}\n"))
    assert all(f"`{key}` is missing" in told for key in ("model", "output_dir", "rl.dataset"))
    assert "holds no keys" in errors_of(written(tmp_path, "# nothing\n"))
    assert "holds no keys" in errors_of(written(tmp_path, "- a\n- b\n"))


def test_what_is_no_yaml_and_keys_that_stand_twice_are_refused(tmp_path):
    assert ":3 is not YAML" in errors_of(written(tmp_path, "a: 1\nb: [1, 2\n\tc: 3"))
    told = errors_of(written(tmp_path, GOOD.replace("  max_steps: 8", "  dataset: x", 1)))
    assert "`rl.dataset` is given twice, first in line 7" in told
    assert "is not YAML" in errors_of(written(tmp_path, "a: !!python/object/apply:os.system ['x']"))
    assert "did you mean" in errors_of(written(tmp_path).with_name("recipes.yaml"))


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    text = "a: 5e-6\nb: 1E5\nc: -2.5e3\nd: .5e1\ne: 1e5x\nf: 007\n"
    content, lines = load_yaml(written(tmp_path, text))
    assert content == {"a": 5e-6, "b": 1e5, "c": -2500.0, "d": 5.0, "e": "1e5x", "f": 7}
    assert lines[("c",)] == 3


def test_what_is_wrong_is_refused_before_a_trainer_is_imported(tmp_path):
    keys = {"model": "no-such/", "rl.learning_rates": 1, "rl.max_grad_norm": 2, "rl.foo": 3}
    values = {"rl.num_generations": 7, "rl.method": "atrr", "rl.reward": "corect", "rl.top_p": -1}
    recipe = written(tmp_path)
    wrong = [["run", str(recipe), f"--{key}", str(value)] for key, value in (keys | values).items()]
    code = (
        "import json, sys; from trustclip.cli.main import main\n"
        "assert {main(argv) for argv in json.loads(sys.argv[1])} == {2}\n"
        "print({'trl', 'transformers', 'datasets', 'peft', 'torch._dynamo'} & sys.modules.keys())"
    )
    argv = [sys.executable, "-c", code, json.dumps(wrong)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
    assert "a field of TRL's GRPOConfig is `trl: {max_grad_norm: ...}`" in done.stderr
