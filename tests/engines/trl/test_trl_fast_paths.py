"""Rows of docs/fast-paths.md: a fast path is equal to plain TRL, or declined with a reason."""

import copy
import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
import trl_runs
from test_trl_engine import gradient_of, one_batch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import build, constrained, fresh_model, needs, plain, share_of_even_digits

from trustclip.engines.trl import ConstrainedGRPOTrainer, fast_paths
from trustclip.engines.trl.phases import Generating
from trustclip.engines.trl.scoring.skipping import rows_that_matter


def mixture_of_experts() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    _, tokenizer = fresh_model()
    torch.manual_seed(1)
    shape: dict[str, Any] = dict(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        num_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape))


# The head ----------------------------------------------------------------------------------------


@needs("trl>=1.15")
def test_a_mixture_of_experts_trains_as_in_trl(tmp_path):
    common = {"model": mixture_of_experts(), "max_steps": 3}
    theirs = build(tmp_path / "a", GRPOConfig, GRPOTrainer, epsilon=0.1, **common)
    theirs.train()
    common["model"] = mixture_of_experts()
    ours = build(tmp_path / "b", method={"name": "clip", "epsilon": 0.1}, **common)
    ours.train()
    assert theirs.aux_loss_enabled
    for path in ("head", "skipping"):
        assert "router" in (fast_paths.obstacle(path, ours) or "")
    rows = [[r for r in t.state.log_history if "grad_norm" in r] for t in (theirs, ours)]
    assert max(row["trustclip/gated"] for row in rows[1]) > 0.1
    for name in ("grad_norm", "loss", "aux_loss", "entropy"):
        want, got = ([row[name] for row in run] for run in rows)
        assert got == pytest.approx(want, rel=1e-4, abs=1e-6), name


@needs("trl>=1.15")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: setattr(m.config, "final_logit_softcapping", 0.01), "as its configuration says"),
        (lambda m: setattr(m, "lm_head", Adapted(m.lm_head)), "Adapted, not a plain linear"),
        (lambda m: setattr(m.config, "vision_config", {}), "reads images"),
    ],
    ids=["a cap that its code has not", "adapter on the head", "images"],
)
def test_an_unusual_head_is_left_to_trl(tmp_path, change, reason):
    trainer = build(tmp_path)
    trainer.model.config = copy.deepcopy(trainer.model.config)  # other tests share it
    assert fast_paths.obstacle("head", trainer) is None
    change(trainer.model)
    assert reason in (fast_paths.obstacle("head", trainer) or "")


class Adapted(torch.nn.Module):
    """What PEFT or a quantiser puts in the place of a linear layer."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = base.weight


@needs("trl>=1.15")
@pytest.mark.parametrize("head", ["trustclip", "trl"])
def test_under_autocast_both_heads_have_the_gradient_of_trl(tmp_path, head):
    settings = {"bf16": True, "loss_type": "grpo"}
    theirs = build(tmp_path / "a", GRPOConfig, GRPOTrainer, epsilon=0.2, **settings)
    ours = build(tmp_path / "b", method="clip", head=head, **settings)
    inputs = one_batch(theirs)
    want, got = gradient_of(theirs, inputs), gradient_of(ours, inputs)
    distance = (got - want).norm() / want.norm()
    assert distance < (1e-6 if head == "trl" else 0.02), distance  # bfloat16 has 8 bits


# The decoder -------------------------------------------------------------------------------------


def declined(trainer: Any) -> str:
    return fast_paths.obstacle("decoder", trainer) or ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 5}, "top_k=5"),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"generation_kwargs": {"suppress_tokens": [5]}}, "suppress_tokens=[5]"),
        ({"decoder": "transformers"}, "decoder='transformers'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_decoder_is_declined(tmp_path, settings, words):
    assert declined(build(tmp_path / "a")) == ""
    assert words in declined(build(tmp_path / "b", **settings))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suppress_tokens", [5, 6]),
        ("typical_p", 0.9),
        ("no_repeat_ngram_size", 2),
        ("bad_words_ids", [[7]]),
        ("sequence_bias", [[[7], -5.0]]),
        ("min_length", 3),
    ],
)
def test_the_models_own_generation_config_is_honoured(tmp_path, name, value):
    trainer = build(tmp_path)
    assert declined(trainer) == ""
    setattr(trainer.model.generation_config, name, value)
    assert name in declined(trainer)


@needs("trl>=1.15")
def test_the_decoder_samples_with_an_adapter_in_training(tmp_path):
    """Its log-probabilities are the old ones, and so the first update's ratios are 1."""
    run = constrained(tmp_path, "atr", lora=True, decoder="auto", num_iterations=2, max_steps=4)
    assert declined(run.trainer) == "" and fast_paths.obstacle("head", run.trainer) is None
    off_policy = run.column("trustclip/off_policy")
    assert off_policy[0] == off_policy[2] == 0 < min(off_policy[1], off_policy[3])


def test_what_tools_add_is_scored_by_a_pass():
    phase = Generating(sampled=[[[-1.0, -2.0], [-3.0]]])
    plain = torch.tensor([[1, 1, 1], [1, 1, 0]])
    known = phase.decoder_logps(plain, 2)
    assert known is not None and known.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]
    assert phase.decoder_logps(torch.ones(2, 3), 2) is None  # the second has become longer
    turns = Generating(sampled=[[[-1.0]], [[-1.0]]])
    assert turns.decoder_logps(torch.ones(1, 2), 1) is None


def test_a_replaced_generate_is_used(tmp_path, caplog):
    trainer = build(tmp_path, max_steps=3)
    calls = []
    original = trainer.model.generate

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return original(*args, **kwargs)

    trainer.model.generate = replaced
    with caplog.at_level(logging.INFO):
        trainer.train()
    assert len(calls) == 1  # one generation serves three updates
    reasons = [r.getMessage() for r in caplog.records if "'decoder' is not taken" in r.getMessage()]
    assert reasons == ["fast path 'decoder' is not taken: the model has a `generate` of its own."]


@pytest.mark.parametrize(("method", "bf16"), [("gspo", True), ("atr", False)])
def test_rounding_is_no_movement(tmp_path, method, bf16):
    """In float32 the decoder's log-probabilities differ from the trainer's by some 1e-6 nats."""
    settings = {"bf16": bf16, "learning_rate": 0.0, "decoder": "auto", "num_iterations": 2}
    run = constrained(tmp_path, method, max_steps=4, **settings)
    assert run.column("trustclip/gated") == run.column("trustclip/off_policy") == [0.0] * 4


# Skipping ----------------------------------------------------------------------------------------


def test_no_completion_with_images_is_skipped(tmp_path):
    inputs = one_batch(build(tmp_path))
    assert rows_that_matter(inputs) is not None
    assert rows_that_matter(inputs | {"pixel_values": torch.ones(6)}) is None


def test_controllers_see_all_tokens(tmp_path, monkeypatch):
    from test_trl_fast import reward_of_half

    monkeypatch.setattr(trl_runs, "share_of_even_digits", reward_of_half)
    adapting = {"delta": {"controller": "target_gate", "share": 0.02, "initial": 0.002}}
    runs = [
        constrained(tmp_path / str(skip), "atr", adapting, skip_zero_advantage=skip)
        for skip in (True, False)
    ]
    names = ("trustclip/threshold/delta", "trustclip/gated", "grad_norm")
    for name in names:
        assert runs[0].column(name) == runs[1].column(name), name
    assert len(set(runs[0].column(names[0]))) > 2
    assert runs[0].column("trustclip/skipped") == [0.0] * 6


# What is logged ----------------------------------------------------------------------------------


DUAL = {"low": 0.1, "high": 0.1, "ceiling": 1.15}


@pytest.mark.parametrize(
    ("method", "args", "theirs", "settings"),
    [
        ("clip", {"epsilon": 0.05}, {"epsilon": 0.05}, {"entropy_coef": 0.01}),
        ("clip_higher", {"low": 0.03, "high": 0.1}, {"epsilon": 0.03, "epsilon_high": 0.1}, {}),
        ("dual_clip", DUAL, {"epsilon": 0.1, "delta": 1.15}, {"loss_type": "dapo"}),
    ],
    ids=["clip", "clip_higher", "dual_clip"],
)
def test_the_logged_loss_is_that_of_trl(tmp_path, method, args, theirs, settings):
    a = plain(tmp_path / "a", **theirs, **settings)
    b = constrained(tmp_path / "b", method, args, **settings)
    assert max(b.column("trustclip/gated")) > 0.1, (
        "without a cut token the losses are trivially one"
    )
    for name in ("loss", "policy_loss", "entropy"):
        assert b.column(name) == pytest.approx(a.column(name), rel=1e-4, abs=1e-6), name


def test_without_a_config_there_are_defaults_under_which_a_constraint_acts(tmp_path, monkeypatch):
    from datasets import Dataset

    monkeypatch.chdir(tmp_path)
    # The default of TRL is bfloat16, which Transformers wants a GPU for.
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    model, tokenizer = fresh_model()
    trainer = ConstrainedGRPOTrainer(
        model,
        share_of_even_digits,
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS}),
        processing_class=tokenizer,
    )
    assert trainer.args.num_iterations == 2 and trainer.method.name == "atr"
    assert (trainer.args.output_dir or "").endswith("-GRPO")


@pytest.mark.parametrize(
    ("asked", "free", "on"),
    [(None, 1 << 34, False), (None, 1 << 20, True), (True, 1 << 34, True)],
)
def test_states_are_kept_where_memory_allows_and_nobody_asked(
    tmp_path, monkeypatch, asked, free, on
):
    memory = type("Memory", (), {"available": free})
    monkeypatch.setattr(fast_paths.psutil, "virtual_memory", lambda: memory)
    trainer = build(tmp_path, gradient_checkpointing=asked)
    trainer.train()
    assert trainer.model.is_gradient_checkpointing is on
    assert trainer.args.gradient_checkpointing is on


PAGES = """
import os, resource, torch
from trustclip.engines.trl import fast_paths
for own in ({"MALLOC_TRIM_THRESHOLD_": "131072"}, {}):
    os.environ.update(own)
    fast_paths.keep_memory()
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.zeros(1 << 24)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep memory by other rules")
def test_memory_of_an_update_is_kept_unless_the_user_has_rules_for_it():
    """Pages that are made anew, by the system's count, in a process that has kept nothing yet."""
    said = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    theirs, ours = map(int, said.stdout.split())
    assert theirs > 10_000 and ours < 1000
