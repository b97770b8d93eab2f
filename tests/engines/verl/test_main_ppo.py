"""verl's unmodified trainer from end to end: local Ray, two FSDP2 workers on CPU, our method."""

import math
import re
from pathlib import Path

import pytest
from engines.verl import processes
from patience import NEVER

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")
pytestmark = pytest.mark.slow

STEPS, WORKERS = 3, 2
ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss"

#: What a user of verl writes to train with a method of trustclip.
METHOD = [
    f"{LOSS}._target_=trustclip.engines.verl.TrustclipLossConfig",
    f"{LOSS}.loss_mode=trustclip",
    f"+{LOSS}.method={{name: atr, delta: 0.02}}",
]
SCHEDULE = [
    "algorithm.adv_estimator=grpo",
    "algorithm.norm_adv_by_std_in_grpo=False",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_epochs=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
    f"{ACTOR}.optim.lr=3e-3",
    "actor_rollout_ref.rollout.n=4",
]
#: Smaller than anything real, and without what a CPU has not.
SMALL = [
    "data.max_prompt_length=48",
    "data.max_response_length=8",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.use_torch_compile=False",
    f"{ACTOR}.fsdp_config.use_torch_compile=False",
    f"+{ACTOR}.fsdp_config.mixed_precision="
    "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
    "actor_rollout_ref.rollout.name=hf_cpu",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.load_format=auto",
    "actor_rollout_ref.rollout.free_cache_engine=False",
    "reward.num_workers=1",
    "reward.custom_reward_function.name=compute_score",
    f"reward.custom_reward_function.path={processes.HERE / 'arithmetic_reward.py'}",
]
TRAINER = [
    "trainer.logger=console",
    f"trainer.n_gpus_per_node={WORKERS}",
    "trainer.nnodes=1",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
    "trainer.device=cpu",
    "trainer.resume_mode=disable",
    "ray_kwargs.ray_init.num_cpus=32",
    f"+ray_kwargs.ray_init.num_gpus={WORKERS}",
    "+ray_kwargs.ray_init.include_dashboard=False",
    "+ray_kwargs.ray_init.object_store_memory=500000000",
]


def write_problems(path: Path) -> None:
    import pandas

    from trustclip.train.problems.arithmetic import Arithmetic

    rows = [
        {
            "data_source": "arithmetic",
            "prompt": [{"role": "user", "content": problem.problem}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": i},
        }
        for i, problem in enumerate(Arithmetic(operations=2).train(32))
    ]
    pandas.DataFrame(rows).to_parquet(path)


def save_model(path: Path) -> None:
    """Our tiny Qwen3, with the mark that verl wants of every tokenizer of a Qwen3."""
    from trustclip.train.tiny import tiny_model

    model, tokenizer = tiny_model()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def main_ppo(folder: Path, *overrides: str) -> tuple[int, str]:
    save_model(folder / "model")
    write_problems(folder / "problems.parquet")
    files = [
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"data.train_files={folder / 'problems.parquet'}",
        f"data.val_files={folder / 'problems.parquet'}",
        f"trainer.total_training_steps={STEPS}",
    ]
    settings = [*METHOD, *SCHEDULE, *SMALL, *TRAINER, *files, *overrides]
    command = ["-m", "verl.trainer.main_ppo", *settings]
    return processes.run(command, processes.environment(), folder, timeout=NEVER)


def steps_of(printed: str) -> list[dict[str, float]]:
    """Numbers of each ``step:n - name:value - ...`` line of the console."""
    lines = re.findall(r"step:\d+ - .*", printed)
    number = re.compile(r"([\w/@.-]+):(?:np\.\w+\()?(-?[\d.]+(?:e[+-]?\d+)?|nan|inf)")
    return [{name: float(value) for name, value in number.findall(line)} for line in lines]


def test_main_ppo_trains_with_a_method_of_ours(tmp_path: Path) -> None:
    code, printed = main_ppo(tmp_path)
    (tmp_path / "log.txt").write_text(printed, encoding="utf-8")
    assert code == 0, printed[-5000:]
    steps = steps_of(printed)
    assert len(steps) == STEPS
    for step in steps:
        shown = [name for name in step if name.startswith("actor/trustclip/")]
        shown += ["critic/rewards/mean", "actor/grad_norm", "actor/pg_clipfrac"]
        print({name.removeprefix("actor/"): step[name] for name in sorted(shown)})
        assert all(math.isfinite(step[name]) for name in shown)
        assert 0 <= step["critic/rewards/mean"] <= 1
        # Three of the four updates of a generation are off-policy.
        assert 0.4 < step["actor/trustclip/off_policy"] < 0.8
    assert sum(step["actor/trustclip/gated"] for step in steps) > 0
    assert len({step["critic/rewards/mean"] for step in steps}) > 1


def test_the_sampler_reaches_a_method_that_corrects_for_it(tmp_path: Path) -> None:
    """verl samples with the weights it trains: their ratio is 1 to rounding."""
    correction = "algorithm.rollout_correction"
    code, printed = main_ppo(
        tmp_path,
        *(f"{correction}.rollout_is=token", f"{correction}.rollout_is_threshold=inf"),
        f"+{LOSS}.rollout_correction=${{{correction}}}",
        *(f"{LOSS}.method.name=icepop", f"~{LOSS}.method.delta"),
        "trainer.total_training_steps=2",
    )
    assert code == 0, printed[-5000:]
    steps = steps_of(printed)
    assert len(steps) == 2
    for step in steps:
        assert step["rollout_corr/rollout_is_max"] == pytest.approx(1, abs=1e-3)
        assert math.isfinite(step["actor/grad_norm"]) and step["actor/grad_norm"] > 0
