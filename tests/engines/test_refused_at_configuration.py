"""What cannot run is refused before anything is loaded, by every way to configure it alike."""

import dataclasses
import importlib
import io
import sys
import warnings

import pytest
from rich.console import Console
from test_recipe_files import changed, errors_of, written
from trl_runs import needs

import trustclip as tc
from trustclip.cli.commands.experiments import settings
from trustclip.engines.limits import ENGINES, refusal
from trustclip.train.checks import absent, complaints
from trustclip.train.files import load_recipe
from trustclip.train.settings.stages import EvalSettings, RLSettings

QUIET = Console(file=io.StringIO())
BY_DIFFICULTY = {"name": "atr", "delta": {"controller": "per_token", "by": "difficulty"}}

#: A setting that some part of a run would refuse hours later, and words of the refusal.
LATE = [
    ("rl.trl", {"optim": "adamww"}, "adamww"),
    ("rl.trl", {"importance_sampling_level": "sequence"}, "importance_sampling_level"),
    ("rl.trl", {"importance_sampling_level": "word"}, "importance_sampling_level"),
    ("rl.trl", {"epsilon": 0.3}, "epsilon=0.3 has no effect here"),
    ("rl.trl", {"vllm_mode": "colocat"}, "'colocate' or 'server'"),
    ("rl.method", {"name": "truly_ppo", "variant": "truly"}, "gradient of the full KL"),
    ("rl.method", {"name": "clip", "level": "turn"}, "use level 'sequence' or 'token'"),
    ("rl.method", BY_DIFFICULTY, "scale_rewards='none' does otherwise; set scale_rewards='group'"),
]

TEXTS = needs("trl>=1.13")  # before, the type alone refuses a text
#: A value that is not what it seems to be.
SEEMING = [
    ("rl.learning_rate", True, "must be a number, got True"),
    ("rl.learning_rate", 1e30, "at most 1"),
    ("rl.max_steps", 10**30, "less than or equal to 1000000000"),
    ("seed", -1, "greater than or equal to 0"),
    ("seed", 2**32, "less than 4294967296"),
    ("rl.trl", {"bf16": "false"}, "valid boolean"),
    ("rl.trl", {"max_grad_norm": "0.5"}, "valid number"),
    ("rl.trl", {"max_grad_norm": float("nan")}, "finite number"),
    ("rl.trl", {"max_grad_norm": -1}, "greater than 0"),
    ("rl.trl", {"adam_beta2": 1.5}, "less than 1"),
    ("rl.trl", {"top_entropy_quantile": 7}, "less than or equal to 1"),
    ("rl.trl", {"dataloader_num_workers": -1}, "greater than or equal to 0"),
    ("rl.trl", {"generation_kwargs": {"do_sample": False}}, "'do_sample' changes the distribution"),
    ("rl.trl", {"generation_kwargs": {"max_new_tokens": 1}}, "'max_new_tokens' changes"),
    pytest.param("rl.trl", {"generation_kwargs": "{}"}, "should be a mapping", marks=TEXTS),
    ("rl.trl", {"repetition_penalty": 1.2}, "changes the distribution"),
    ("rl.trl", {"top_k": 30}, "set `replay: true` beside it"),
    ("rl.trl", {"neftune_noise_alpha": 5.0}, "adds noise"),
    ("rl.trl", {"num_train_epochs": 9.0}, "`max_steps` is the length"),
    ("rl.trl", {"resume_from_checkpoint": "x"}, "continues from its own checkpoints"),
    ("rl.trl", {"label_smoothing_factor": 0.1}, "is ignored"),
    ("rl.trl", {"eval_strategy": "steps"}, "section `eval`"),
    ("rl.trl", {"trust_remote_code": True}, "code of a model's repository"),
    ("rl.trl", {"model_init_kwargs": {"trust_remote_code": True}}, "code of a model's repository"),
    ("rl.trl", {"model_init_kwargs": '{"trust_remote_code": 1}'}, "code of a model's repository"),
    ("rl.method", "ATR", "did you mean 'atr'?"),
    ("rl.method", {"name": "atr", "side": "Strict"}, "Did you mean 'strict'?"),
    ("rl.method", {"name": "atr", "level": "sequnce"}, "Did you mean 'sequence'?"),
    ("rl.loss_type", "GRPO", "Did you mean 'grpo'?"),
    ("SFT", {}, "did you mean 'sft'?"),
]


@pytest.mark.parametrize(("where", "value", "words"), LATE + SEEMING, ids=lambda x: str(x)[:40])
def test_it_is_one_error_of_a_recipe_with_its_line(tmp_path, where, value, words):
    text = errors_of(changed(tmp_path, where, value))
    assert words in text and "1 error:\n  line " in text


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--trl.optim", "adamww"], "adamww"),
        (["--trl.bf16", "'false'"], "valid boolean"),
        (["--trl.max-grad-norm"], "valid number"),
        (["--learning-rate", "yes"], "should be a valid number"),
        (["--max-steps", "1e30"], "should be an integer of fewer digits, got 1e+30"),
        (["--learning-rate"], "--learning-rate needs a value"),
        (["--method.delta"], "--method.delta needs a value"),
        (["--method", "{name: truly_ppo, variant: truly}"], "gradient of the full KL"),
        (["--loss-type", "GRPO"], "Did you mean 'grpo'?"),
        (["stray"], "unexpected argument 'stray'"),
    ],
    ids=str,
)
def test_a_command_and_a_recipe_refuse_an_option_alike(tmp_path, option, words):
    preset = ["--preset", "tiny", "--output-dir", str(tmp_path)]
    with pytest.raises(ValueError) as alone:
        settings(RLSettings, [*preset, *option], "rl")
    assert words in str(alone.value)
    if option[0].startswith("--"):
        from trustclip.cli.commands.experiments import run

        words = words.replace("--learning-rate", "--rl.learning-rate")
        prefixed = [option[0].replace("--", "--rl."), *option[1:]]
        with pytest.raises(ValueError) as of_recipe:
            run([str(written(tmp_path)), *prefixed, "--dry-run"])
        assert words.replace("--method", "--rl.method") in str(of_recipe.value)


def test_a_switch_needs_no_value_and_can_be_switched_off(tmp_path):
    preset = ["--preset", "tiny", "--output-dir", str(tmp_path)]
    on = settings(RLSettings, [*preset, "--mask-truncated-completions", "--max-steps", "3"], "rl")
    assert on.mask_truncated_completions is True and on.max_steps == 3
    off = settings(RLSettings, [*preset, "--no-mask-truncated-completions"], "rl")
    assert off.mask_truncated_completions is False
    words = ["--limit", "None", "--trl.log-unique-prompts", "--output-dir", "2026"]
    text = settings(RLSettings, [*preset, *words], "rl")
    assert text.limit is None and str(text.output_dir) == "2026"
    assert text.trl == {"log_unique_prompts": True}


def test_values_are_kept_as_they_were_checked(tmp_path):
    recipe = load_recipe(changed(tmp_path, "rl.learning_rate", "1e-5"))
    assert recipe.rl.learning_rate == 1e-5 and isinstance(recipe.rl.learning_rate, float)
    for value in ({"adam_beta2": 0.99}, {"save_strategy": "no"}, {"max_grad_norm": 1}):
        assert load_recipe(changed(tmp_path, "rl.trl", value)).rl.trl == value


def test_what_is_not_installed_is_refused_before_a_run_directory_is_made(tmp_path, monkeypatch):
    from trustclip.train.eval import run_evaluation
    from trustclip.train.pipeline import run_recipe
    from trustclip.train.rl import rl

    importlib.import_module("trustclip.engines.trl.upstream")  # TRL looks for them just then
    for package in ("mlflow", "vllm"):
        monkeypatch.setitem(sys.modules, package, None)
    out = tmp_path / "run"
    preset = ["--preset", "tiny", "--output-dir", str(out)]
    for option, words in (
        (["--report-to", "mlflow"], "pip install mlflow"),
        (["--use-vllm"], r"`use_vllm` needs vLLM.*pip install 'trustclip\[vllm\]'"),
    ):
        with pytest.raises(ValueError, match=words):
            rl(settings(RLSettings, [*preset, *option], "rl"), QUIET)
        path = option[0].removeprefix("--").replace("-", "_")
        changes = {f"rl.{path}": [*option, True][1], "output_dir": str(out)}
        recipe = load_recipe(written(tmp_path), changes)  # it may be right on another machine
        with pytest.raises(ValueError, match=words):
            run_recipe(recipe, QUIET)
        assert any("pip install" in text for text in absent(recipe.rl))
    with pytest.raises(ValueError, match="`backend` needs vLLM"):
        run_evaluation(settings(EvalSettings, [*preset, "--backend", "vllm"], "eval"), QUIET)
    assert not out.exists()


@pytest.mark.parametrize("name", tc.methods())
def test_one_function_says_whether_trl_trains_a_method(tmp_path, name):
    method = tc.method(name)
    recipe = load_recipe(written(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [text for _, text in complaints(dataclasses.replace(recipe.rl, method=method))]
    trl = ENGINES["TRL"]
    assert bool(found) == (refusal(method, trl) is not None)
    assert bool(found) == (not set(method.requires) <= trl.fields)


#: Changes that leave a method without the sampler's log-probabilities.
WITHOUT_SAMPLER = [
    (
        {"rl.method": "tis", "rl.trl": {"use_transformers_continuous_batching": True}},
        "set use_transformers_continuous_batching=False",
    ),
    ({"rl.method": "icepop", "rl.use_vllm": True}, "vllm_importance_sampling_correction=False"),
]


@pytest.mark.parametrize(("changes", "words"), WITHOUT_SAMPLER, ids=str)
def test_it_is_refused_before_fine_tuning_begins(tmp_path, changes, words):
    text = errors_of(written(tmp_path), changes)
    assert words in text and "1 error:" in text
    recipe = load_recipe(written(tmp_path), {k: v for k, v in changes.items() if k == "rl.method"})
    assert recipe.sft is not None  # the stage that would have run first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a\n  <<: *a\n", "within itself"),
        ("a: &a [*a]\n", "within itself"),
        ("a: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("? [a, b]\n: 1\n", "a key must be text"),
        ("? {a: 1}\n: 1\n", "a key must be text"),
        ("a: \x00\n", "is not YAML"),
        ("a: \x07\n", "is not YAML"),
        ("a: 2026-99-99\n", "is not YAML"),
    ],
    ids=["merge", "alias", "deep", "list", "map", "nul", "bell", "date"],
)
def test_a_file_that_is_not_settings_is_refused_in_one_sentence(tmp_path, text, words):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text.encode())
    message = errors_of(path)
    assert words in message and message.count("\n") == 0 and len(message) < 400
    assert str(path) in message


def test_a_file_of_another_encoding_is_refused_with_its_name(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes("name: café".encode("latin-1"))
    assert "is not UTF-8 text" in errors_of(path) and str(path) in errors_of(path)
