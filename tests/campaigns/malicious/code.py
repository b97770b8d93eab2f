"""Artefacts that want to have code imported, downloaded or unpickled."""

import json
from collections.abc import Iterable
from pathlib import Path

import yaml
from synthetic_runs import Spec, make_run

from malicious.artefacts import PAYLOAD, artefact, enter

EVIL = f"{PAYLOAD}:Evil"
IMPORTS = (f"would import the Python module '{PAYLOAD}'", "--allow-code")
RL = {"dataset": "arithmetic", "prompt_style": "plain", "max_steps": 4}


def recipe(folder: Path, name: str = "recipe.yaml", **rl: object) -> str:
    """A recipe whose section ``rl`` has these values."""
    content = {"name": "x", "model": "tiny", "output_dir": str(folder / "run"), "rl": RL | rl}
    (folder / name).write_text(yaml.safe_dump(content))
    return str(folder / name)


def suite(folder: Path, **values: object) -> str:
    """A suite over that recipe."""
    recipe(folder)
    content = {
        "name": "s",
        "recipe": "recipe.yaml",
        "output_dir": str(folder / "suite"),
        "methods": {"atr": {"name": "atr"}},
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(content | values))
    return str(folder / "suite.yaml")


def enter_run(name: str, says: Iterable[str], *more: str, **rl: object) -> None:
    """Enter ``trustclip run`` of a recipe whose section ``rl`` has these values."""
    enter(name, lambda folder: ["run", recipe(folder, "recipe.yaml", **rl), *more], 2, *says)


def enter_suite(name: str, says: Iterable[str], **values: object) -> None:
    """Enter the dry run of a suite with these values."""
    enter(name, lambda folder: ["suite", suite(folder, **values), "--dry-run"], 2, *says)


PART = {"name": "penalty", "inner": {"name": "both", "first": "atr", "second": EVIL}}
enter_run("recipe_names_a_class", (*IMPORTS, "line "), method=EVIL)
enter_run("dry_run_of_a_recipe_that_names_a_class", IMPORTS, "--dry-run", method={"name": EVIL})
enter_run("class_as_a_part_of_a_method", IMPORTS, method=PART)
enter_run("class_as_a_shadow", IMPORTS, shadows=f"atr, {{name: {EVIL}}}")
enter_run("class_in_a_list_of_shadows", IMPORTS, shadows=["clip", {"name": EVIL}])
enter_run("recipe_names_a_reward", (*IMPORTS, "line "), reward=["correct", {"name": EVIL}])
enter_run("class_under_a_hyper_parameter", IMPORTS, "--method.delta", "0.05", method=EVIL)

#: What TRL hands on to libraries that download code, and what must be said of it.
for _name, _init, _says in (
    ("kernels_of_a_repository", {"attn_implementation": "org/kernel"}, "downloads kernels"),
    ("kernels_of_anybody", {"allow_all_kernels": True}, "downloads kernels"),
    ("remote_code_of_a_model", {"trust_remote_code": True}, "code of a model's repository"),
    ("remote_code_in_a_text", '{"trust_remote_code": true}', "code of a model's repository"),
):
    enter_run(_name, [_says], trl={"model_init_kwargs": _init})
enter_run(
    "generation_code_of_a_repository", ["'custom_generate' changes the distribution"],
    trl={"generation_kwargs": {"custom_generate": "org/repository"}},
)  # fmt: skip

enter_suite("suite_names_a_class", IMPORTS, methods={"m": {"name": EVIL}})
enter_suite("suite_sweeps_over_classes", IMPORTS, sweep={"rl.method.name": [EVIL]})
enter_suite("suite_changes_to_a_class", IMPORTS, changes={"rl.shadows": EVIL})
for _way in ("distributed", "sampler"):
    enter(
        f"doctor_of_the_{_way}", lambda folder, way=_way: [
            "doctor", f"--{way}", recipe(folder, method=EVIL)
        ], 2, *IMPORTS,
    )  # fmt: skip


def run(folder: Path, method: object) -> Path:
    """A run directory whose ``config.yaml`` names a method."""
    path = make_run(folder / "run", Spec({"name": "atr"}, steps=4, every=4, k=2, completions=2))
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["rl"]["method"] = method
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"method": method}))
    return path


@artefact(2, "would import the Python file", "evil.py", "--allow-code")
def recipe_names_a_reward_in_a_file_beside_it(folder):
    (folder / "evil.py").write_text(f"import {PAYLOAD}\n")
    return ["run", recipe(folder, reward="evil.py:reward"), "--dry-run"]


@artefact(2, *IMPORTS)
def recipe_called_like_the_class_it_names(folder):
    path = Path(recipe(folder, method=EVIL)).rename(folder / EVIL)
    return ["run", path.name]  # the working directory is the folder


@artefact(2, "is not YAML", "could not determine a constructor")
def object_in_a_recipe(folder):
    path = folder / "recipe.yaml"
    path.write_text("name: !!python/object/apply:os.system ['touch IMPORTED']\n")
    return ["run", str(path)]


@artefact(2, *IMPORTS)
def suite_whose_recipe_names_a_class(folder):
    path = suite(folder)
    recipe(folder, shadows=EVIL)
    return ["suite", path, "--dry-run"]


@artefact(1, *IMPORTS)
def doctor_of_a_configuration_of_verl(folder):
    policy_loss = {"loss_mode": "trustclip", "method": EVIL}
    content = {"actor_rollout_ref": {"actor": {"policy_loss": policy_loss}}}
    (folder / "verl.yaml").write_text(yaml.safe_dump(content))
    return ["doctor", "--verl", str(folder / "verl.yaml")]


@artefact(0, "The gate cut")
def explanation_of_a_run(folder):
    return ["explain", str(run(folder, {"name": EVIL}))]


@artefact(0, "report")
def report_of_a_run_with_a_part(folder):
    path = run(folder, {"name": "penalty", "inner": EVIL, "beta": 0.1})
    return ["report", str(path), "-o", str(folder / "report")]


@artefact(2, "holds a run without seed, which is 0 now")
def run_to_be_continued(folder):
    # The settings in the folder differ from those asked for; finding that out imports nothing.
    path = recipe(folder)
    (folder / "run").mkdir()
    stored = yaml.safe_load(Path(path).read_text())
    stored["rl"]["method"] = {"name": EVIL}
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump({"command": "run", **stored}))
    (folder / "run" / "metrics.jsonl").touch()  # it has begun
    return ["run", path]


def model(folder: Path, **config: object) -> str:
    """The folder of a model with a configuration of its own."""
    path = folder / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text("{}")
    (path / f"{PAYLOAD}.py").write_text((folder / f"{PAYLOAD}.py").read_text())
    return str(path)


def evaluation(folder: Path, of: str) -> list[str]:
    return ["eval", "--model", of, "--tasks", "arithmetic", "--prompt-style", "plain",
            "--limit", "2", "--k", "1", "--max-tokens", "4",
            "--output-dir", str(folder / "eval")]  # fmt: skip


@artefact(2, "cannot load the tokenizer")
def model_with_code(folder):
    auto = {"AutoConfig": EVIL.replace(":", "."), "AutoModelForCausalLM": EVIL.replace(":", ".")}
    return evaluation(folder, model(folder, model_type="evil", auto_map=auto))


@artefact(2, "cannot load the tokenizer")
def tokenizer_with_code(folder):
    path = model(folder, model_type="qwen3")
    auto = {"AutoTokenizer": [EVIL.replace(":", "."), None]}
    settings = {"tokenizer_class": "Evil", "auto_map": auto}
    (Path(path) / "tokenizer_config.json").write_text(json.dumps(settings))
    return evaluation(folder, path)


@artefact(2, "cannot load the model")
def pickled_weights(folder):
    path = Path(model(folder, model_type="qwen3"))
    code = f"c{PAYLOAD}\nEvil\n)R.".encode()  # a pickle that calls evil_payload.Evil()
    (path / "pytorch_model.bin").write_bytes(code)
    return evaluation(folder, str(path))


@artefact(2, "unknown key 'env'")
def recipe_that_sets_the_environment(folder):
    file = recipe(folder)
    content = yaml.safe_load(Path(file).read_text())
    Path(file).write_text(yaml.safe_dump(content | {"env": {"PYTHONPATH": str(folder)}}))
    return ["run", file]


@artefact(2, "unknown key")
def suite_that_sets_the_environment(folder):
    return ["suite", suite(folder, environment={"PYTHONPATH": str(folder)})]
