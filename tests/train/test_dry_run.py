"""Dry runs: plans against arithmetic done by hand, and the longest batch."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from trustclip.train.preflight import longest as preflight
from trustclip.train.preflight.dry_run import dry_run, plan
from trustclip.train.preflight.longest import longest, weights_of
from trustclip.train.problems.problem import Problem
from trustclip.train.settings.stages import Recipe, RecipeEval, RLStage
from trustclip.train.tiny import tiny_tokenizer

#: Published shapes; no weights and no network needed.
QWEN3_8B: dict[str, Any] = dict(
    vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
    num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
)  # fmt: skip


def recipe(folder=Path("runs/x"), *, model="tiny", evaluation=None, **rl):
    defaults: dict[str, Any] = dict(
        dataset="arithmetic", prompt_style="plain", max_completion_length=8, max_steps=96,
        num_generations=8, per_device_train_batch_size=16, gradient_accumulation_steps=1,
        steps_per_generation=4, num_iterations=1, lora_r=0,
    )  # fmt: skip
    return Recipe(
        name="r", model=model, output_dir=folder, rl=RLStage(**defaults | rl), eval=evaluation
    )


# The plan


def test_the_plan_of_a_recipe():
    evaluation = RecipeEval(tasks="arithmetic", every=32, k=4)
    made = plan(recipe(evaluation=evaluation, save_steps=20), problems=256, tests=100)
    # 96 updates of one micro-batch; a generation is 4 micro-batches of 16.
    assert made["a generation"] == "64 completions of 8 problems"
    assert made["total"].startswith("24 generations, 1,536 completions: 0.75 passes")
    assert made["an update"] == "16 completions of 2 problems"
    # After 0, 32, 64 and 96 updates, 4 x 100 completions each.
    assert made["evaluations"] == "4, 1,600 completions in total"
    # After 20, 32, 40, 60, 64, 80 and 96 updates: an evaluation follows a checkpoint.
    assert made["checkpoints"] == "7 written, 2 kept"
    assert made["can it act?"].startswith("yes: in 3 of the 4 updates")


def test_the_plan_of_several_processes_and_passes_over_a_generation():
    made = plan(recipe(num_iterations=2, gradient_accumulation_steps=4, max_steps=10), processes=4)
    # 40 micro-batches, 8 per generation; 4 processes times 16 times 4 completions.
    assert made["total"] == "5 generations, 1,280 completions"
    assert made["a generation"] == made["an update"] == "256 completions of 32 problems"
    assert made["updates"] == "10, 2 per generation" and made["evaluations"] == "0"
    assert plan(recipe(max_steps=95))["total"].startswith("24 generations")


def test_the_plan_says_when_the_constraint_cannot_act():
    aligned: dict[str, Any] = dict(gradient_accumulation_steps=4, allow_inert=True)
    said = plan(recipe(**aligned))["can it act?"]
    assert said.startswith("NO: ") and "num_iterations" in said
    for acts in ({**aligned, "method": "trpo", "num_iterations": 2},
                 {"gradient_accumulation_steps": 3, "allow_inert": True}):  # fmt: skip
        assert plan(recipe(**acts))["can it act?"].startswith("yes: ")


def test_the_weights_of_a_published_shape_are_counted_without_memory():
    from transformers import Qwen3Config

    assert weights_of(Qwen3Config(**QWEN3_8B)) == 8_190_735_360


# The dry run


def test_the_longest_prompts_are_found():
    problems = [Problem(str(n), "x" * n, "1") for n in (3, 50, 7, 49, 12)]
    found = longest(problems, tiny_tokenizer(), recipe(steps_per_generation=1).rl)
    assert [len(p.problem) for p in found.problems] == [50, 49] and 50 < found.tokens < 60


def said(made):
    out = io.StringIO()
    code = dry_run(made, Console(file=out, width=100))
    return code, out.getvalue()


def test_a_dry_run_trains_the_longest_batch_and_leaves_nothing(tmp_path):
    torch.set_num_threads(1)
    evaluation = RecipeEval(tasks="arithmetic", k=2, limit=10)
    made = recipe(tmp_path / "run", evaluation=evaluation, steps_per_generation=2, limit=64)
    code, text = said(made)
    assert code == 0 and not (tmp_path / "run").exists()
    for part in ("yes: in 1 of the 2 updates", "40 completions in total", "total"):
        assert part in text
    assert "longest batch: " in text and "two updates in" in text


def config_folder(folder, **numbers):
    """A model of any size, without its weights."""
    from transformers import Qwen3Config

    Qwen3Config(**numbers).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def test_minutes_follow_from_the_rate_of_this_machine(tmp_path, monkeypatch):
    """Four operations a token and weight for sampling and scoring, six in each of two updates."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(preflight, "_rate", lambda *_: 1e6)
    monkeypatch.setattr(preflight, "weights_of", lambda _: 10**6)
    made, out = recipe(tmp_path / "run", lora_r=8), io.StringIO()
    preflight.run_longest(made, Console(file=out, width=200), preflight.Longest((), 36))
    update = made.rl.per_device_train_batch_size * made.rl.gradient_accumulation_steps
    length = 36 + made.rl.max_completion_length
    states = 2 * (length / 2) * 128 * 2  # twice those of all earlier tokens, in 2 layers of 128
    minutes = (4 * made.rl.samples + 12 * update) * length * (1 + states / 1e6) / 0.5 / 60
    assert f"about {minutes:.0f} minutes and more than 0.00373 GiB" in out.getvalue()


def test_a_large_model_on_a_cpu_is_planned_and_not_run(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    model = config_folder(tmp_path / "model", **QWEN3_8B)
    code, text = said(recipe(tmp_path / "run", model=model, limit=64, lora_r=32))
    assert code == 0 and "longest batch: not run." in text
    assert "minutes" in text or "are free" in text


def test_a_model_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    out = io.StringIO()
    with pytest.raises(ValueError, match=r"cannot load the tokenizer of .*added_tokens"):
        made = recipe(tmp_path / "run", model=str(tmp_path), limit=64)
        dry_run(made, Console(file=out, width=100))
    assert "in 3 of the 4 updates" in out.getvalue()  # what is known is said all the same
