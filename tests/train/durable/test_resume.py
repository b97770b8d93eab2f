"""A run that is killed and continued leaves the same bytes behind as one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import durable_runs
import numpy as np
import pytest
import torch
from durable_runs import cut, differences, grpo, sft
from patience import NEVER

from trustclip.train.durable.trainer import Durable

pytestmark = pytest.mark.slow

ATR = {"method": {"name": "atr", "delta": 0.01}}
CLIP_COV = {"method": {"name": "clip_cov", "share": 0.2, "cov_low": 0.0, "cov_high": 50.0}}
FULL_KL = {"method": {"name": "full_kl", "delta": 1e-3}}


def schedule(per_generation: int, iterations: int, accumulation: int) -> dict[str, int]:
    """``steps_per_generation x num_iterations / gradient_accumulation_steps``."""
    return {
        "steps_per_generation": per_generation,
        "num_iterations": iterations,
        "gradient_accumulation_steps": accumulation,
        "per_device_train_batch_size": 16 // per_generation,
        "max_steps": 7,
    }


#: Cuts inside generations, inside the accumulation of one, inside epochs, between log lines.
RUNS = {
    "1x2/1 full atr": (grpo, {**ATR, **schedule(1, 2, 1), "lr_scheduler_type": "cosine"}),
    "2x2/1 lora kl, sparse logs": (
        grpo,
        {**FULL_KL, **schedule(2, 2, 1), "lora": True, "logging_steps": 3},
    ),
    "4x1/2 lora clip_cov, 7 epochs": (
        grpo,
        {**CLIP_COV, **schedule(4, 1, 2), "lora": True, "prompts": 8, "logging_steps": 2},
    ),
    "2x2/3 full atr, ragged epochs": (
        grpo,
        {**ATR, **schedule(2, 2, 3), "prompts": 8, "logging_steps": 2, "log_completions": True},
    ),
    "2x3/4 lora kl, entropy": (
        grpo,
        {
            **FULL_KL,
            **schedule(2, 3, 4),
            "max_steps": 6,
            "lora": True,
            "use_adaptive_entropy": True,
            "entropy_coef": 0.01,
        },
    ),
    "2x2/1 full centered atr": (
        grpo,
        {**schedule(2, 2, 1), "method": {"name": "centered", "inner": "atr"}, "candidates": 8},
    ),
    "sft full, 2 epochs": (sft, {"num_train_epochs": 2, "logging_steps": 3}),
    "sft lora with dropout": (
        sft,
        {"lora": True, "gradient_accumulation_steps": 3, "max_steps": 7, "optim": "adafactor"},
    ),
}


def disturb() -> None:
    """Another process has other random numbers, and has used some."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)


def continued(make, folder: Path, **settings) -> Durable:
    trainer = make(folder, **settings)
    disturb()
    assert trainer.train_durably()
    return trainer


@pytest.mark.parametrize("name", RUNS)
def test_every_cut_leaves_the_same_bytes(tmp_path, name):
    """Weights, optimizer, schedule, random numbers, samples, log lines: at every later update."""
    make, settings = RUNS[name]
    whole = make(tmp_path / "whole", **settings)
    assert whole.train_durably()
    last = whole.state.global_step
    assert last >= 6
    for step in range(1, last):
        folder = cut(tmp_path / "whole", tmp_path / f"cut-{step}", step)
        continued(make, folder, **settings)
        assert differences(tmp_path / "whole", folder, after=step) == [], f"cut after {step}"


def test_complete_training_is_not_trained_again(tmp_path):
    settings = {**ATR, **schedule(1, 2, 1)}
    whole = grpo(tmp_path / "whole", **settings)
    assert whole.train_durably()
    again = grpo(tmp_path / "whole", **settings)
    assert again.train_durably() and not again.stopped_early
    assert again.state.log_history == whole.state.log_history[:-1]  # without times of the run
    for (name, a), (_, b) in zip(
        whole.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    more = grpo(tmp_path / "whole", **{**settings, "max_steps": 9})
    assert more.train_durably() and more.state.global_step == 9


# -- SIGTERM ---------------------------------------------------------------------------------------


def test_sigterm_in_the_last_update_is_kept_too(tmp_path):
    settings = {**ATR, **schedule(1, 2, 1), "save_strategy": "no", "max_steps": 3}
    stopped = grpo(tmp_path, **settings)
    compute = stopped.compute_loss

    def terminating(*args, **kwargs):
        if stopped.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute(*args, **kwargs)

    stopped.compute_loss = terminating
    mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert stopped.train_durably() is False and stopped.state.global_step == 3
    finally:
        signal.signal(signal.SIGTERM, mine)
    assert grpo(tmp_path, **settings).train_durably() is True


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 6}, ["seed was 5 and is 6"]),
        ({"per_device_train_batch_size": 8}, ["per_device_train_batch_size was 16 and is 8"]),
        ({"num_iterations": 4}, ["num_iterations was 2 and is 4"]),
        ({"prompts": 12}, ["examples was 16 and is 12"]),
        ({"lora": True}, ["base model was"]),
    ],
    ids=lambda value: next(iter(value)),
)
def test_another_run_is_not_continued(tmp_path, change, words):
    settings = {**ATR, **schedule(1, 2, 1), "max_steps": 2}
    assert grpo(tmp_path, **settings).train_durably()
    rows = durable_runs.Rows(tmp_path / "rows").read()
    with pytest.raises(ValueError, match="cannot be continued") as error:
        grpo(tmp_path, **{**settings, "max_steps": 4, **change}).train_durably()
    for word in words:
        assert word in str(error.value)
    assert durable_runs.Rows(tmp_path / "rows").read() == rows


def test_an_adapter_is_not_continued_on_another_base_model(tmp_path):
    settings = {**ATR, **schedule(1, 2, 1), "lora": True, "max_steps": 2}
    assert grpo(tmp_path, **settings).train_durably()
    other = grpo(tmp_path, **{**settings, "max_steps": 4})
    with torch.no_grad():
        next(p for p in other.model.parameters() if not p.requires_grad).mul_(1.001)
    with pytest.raises(ValueError, match="base model was"):
        other.train_durably()


@pytest.mark.parametrize(
    "setting",
    [
        {"save_only_model": True},
        {"ignore_data_skip": True},
        {"train_sampling_strategy": "group_by_length"},
        {"accelerator_config": {"use_seedable_sampler": False}},
    ],
    ids=lambda value: next(iter(value)),
)
def test_settings_that_exclude_exactness_are_refused_before_training(tmp_path, setting):
    trainer = grpo(tmp_path, **{**ATR, **schedule(1, 2, 1), **setting})
    for train in (trainer.train, trainer.train_durably):
        with pytest.raises(ValueError, match=next(iter(setting))):
            train()
    assert trainer.state.global_step == 0


def test_deepspeed_is_refused_with_what_to_take_instead(tmp_path):
    trainer = grpo(tmp_path, **{**ATR, **schedule(1, 2, 1)})
    trainer.is_deepspeed_enabled = True  # as with a configuration of it
    with pytest.raises(ValueError, match=r"shard with FSDP2, or train with ConstrainedGRPOTrainer"):
        trainer.train_durably()
    assert trainer.state.global_step == 0


def test_train_starts_anew_and_only_there(tmp_path):
    settings = {**ATR, **schedule(1, 2, 1), "max_steps": 2}
    grpo(tmp_path, **settings).train()
    with pytest.raises(ValueError, match="train_durably"):
        grpo(tmp_path, **settings).train()
    with pytest.raises(ValueError, match="train_durably"):
        grpo(tmp_path, **settings).train(resume_from_checkpoint=True)
    assert grpo(tmp_path, **{**settings, "max_steps": 3}).train_durably()


def test_a_checkpoint_is_a_model_that_transformers_and_peft_load(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = {**ATR, **schedule(1, 2, 1), "max_steps": 2}
    for name, lora in (("full", False), ("lora", True)):
        trainer = grpo(tmp_path / name, lora=lora, **settings)
        assert trainer.train_durably()
        folder = tmp_path / name / "checkpoints" / "step-000002"
        if lora:
            base = durable_runs.trl_runs.fresh_model()[0]
            loaded = PeftModel.from_pretrained(base, folder)
        else:
            loaded = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer("1+2=", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            ours, theirs = (m.eval()(input_ids=ids).logits for m in (trainer.model, loaded))
        assert torch.equal(ours, theirs), name


# -- whole processes -------------------------------------------------------------------------------


def process(*arguments: str, launcher: tuple[str, ...] = ()) -> dict:
    """Last line of a script's output, as JSON."""
    script = str(Path(__file__).parents[2] / "support" / "durable_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support"), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [sys.executable, *launcher, script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=NEVER,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_killed_at_random_and_nothing_is_lost(tmp_path):
    """``TRUSTCLIP_CAMPAIGN=500`` makes it five hundred kills."""
    kills = int(os.environ.get("TRUSTCLIP_CAMPAIGN", "20"))
    told = process("kill", str(tmp_path), str(kills))
    print(told)
    assert told["unrecoverable"] == []
    assert told["kills"] == kills
    assert told["while_writing"] >= kills // 5
    assert told["more_than_one_interval_lost"] == 0
    assert told["complete_runs"] >= 1
    assert told["different"] == []


def test_two_ranks_continue_exactly_and_refuse_to_be_one(tmp_path):
    told = process(
        "ranks", str(tmp_path), launcher=("-m", "torch.distributed.run", "--nproc-per-node", "2")
    )
    assert told["files"] == [
        "rank-0.json",
        "rank-0.safetensors",
        "rank-1.json",
        "rank-1.safetensors",
    ]
    assert told["different"] == []
    assert told["stopped"] == [True, True]
    assert "disk full" in told["failure"][1] and "rank 1" in told["failure"][0]
    settings = {**ATR, **schedule(2, 2, 1), "per_device_train_batch_size": 4}
    with pytest.raises(ValueError, match="by 2 ranks and this job has 1"):
        grpo(tmp_path / "whole", **settings).train_durably()


def test_two_ranks_stop_together_when_one_is_asked_to(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    told = process("stops", str(tmp_path), launcher=launcher)
    places = set()
    for first, asked in told:
        assert first["ended"] and asked["ended"]
        assert first["different"] == []
        # Scoring stays whole where the decoder has sampled; a stop is elsewhere at once.
        assert asked["after"] <= 2, asked
        places.add(asked["in"])
    assert places == {"generation", "update"}
