"""Reinforcement learning with verified rewards, by TRL under one of our methods."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from trustclip.engines.schedule import Schedule
from trustclip.method import method
from trustclip.recipes.models import check_model, load_model, lora_config, save_model
from trustclip.recipes.problems import training_problems
from trustclip.recipes.progress import Stage
from trustclip.recipes.records import RunDirectory
from trustclip.recipes.settings import TINY, RLSettings
from trustclip.rewards import (
    AnswerReward,
    SoftOverlong,
    answer_graded,
    format_approximate,
    format_exact,
    number_graded,
)
from trustclip.tasks.problem import Problem
from trustclip.tasks.prompts import messages, prompt_style


def rl(settings: RLSettings, console: Console) -> RunDirectory:
    """Run `trustclip rl`: load, train, save to ``final/``.

    Raises:
      ValueError: a method, schedule, model, data set or run directory that cannot be used.
    """
    check(settings)
    run = RunDirectory(settings.output_dir, "rl", settings)
    problems = training_problems(settings, run)
    model, tokenizer = load_model(settings.model, settings.prompt_style, settings.seed)
    if settings.model == TINY:
        from trustclip.recipes.demo import prime

        prime(model, tokenizer, settings.seed, run, console)
    problems = _short_enough(problems, tokenizer, settings)
    metrics = reinforce(model, tokenizer, problems, settings, run, console)
    run.summarize({"command": "rl", "problems": len(problems), **metrics})
    console.print(f"model in {run.final}", highlight=False)
    return run


def check(settings: RLSettings) -> None:
    """Refuse before a model loads what would fail, or train without a constraint, after it.

    Raises:
      ValueError: unknown method or hyper-parameter, inert schedule, no such model, or groups that
        do not fill whole batches.
    """
    chosen = method(settings.method, **settings.method_args)
    schedule = Schedule(
        settings.steps_per_generation or settings.gradient_accumulation_steps,
        settings.num_iterations,
        settings.gradient_accumulation_steps,
    )
    if schedule.inert and not (settings.allow_inert or chosen.acts_on_policy):
        raise ValueError(schedule.explain_inert(settings.method))
    samples = settings.per_device_train_batch_size * schedule.steps_per_generation
    if samples % settings.num_generations:
        raise ValueError(
            f"per_device_train_batch_size x steps_per_generation = {samples} completions per "
            f"generation is no multiple of num_generations = {settings.num_generations}."
        )
    check_model(settings.model)


def reinforce(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: RLSettings,
    run: RunDirectory,
    console: Console,
) -> dict[str, float]:
    """Train ``model`` in place on verified rewards and save it; returns the last metrics.

    What was trained until an interruption is saved as well.
    """
    from datasets import Dataset

    from trustclip.engines.trl import ConstrainedGRPOTrainer
    from trustclip.recipes.callbacks import Recorder, silence

    rows = [
        {
            "prompt": messages(problem.problem, settings.prompt_style),
            "answer": problem.answer,
            "id": problem.id,
        }
        for problem in problems
    ]
    reward = RecordedReward(run, prompt_style(settings.prompt_style).extraction)
    shaping = _shaping(settings)
    trainer = ConstrainedGRPOTrainer(
        model=model,
        reward_funcs=[reward, *shaping],
        args=_arguments(settings, run, len(shaping)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora_r, settings.lora_alpha),
    )
    silence(trainer)
    try:
        with Stage(console, "rl", settings.max_steps) as stage:
            trainer.add_callback(Recorder(run, stage, "rl"))
            trainer.train()
    finally:
        save_model(trainer.model, tokenizer, run.final)
        reward.close()
    return _outcome(trainer.state.log_history)


class RecordedReward:
    """The binary answer reward, which also writes every completion to ``samples.jsonl``.

    Args:
      run: where to.
      style: where the answer stands; see `trustclip.rewards.extract_answer`.
    """

    __name__ = "correct"

    def __init__(self, run: RunDirectory, style: Any) -> None:
        self._run = run
        self._reward = AnswerReward(style=style)

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """Rewards of the completions, in TRL's signature."""
        rewards = self._reward(prompts, completions, **columns)
        state = columns.get("trainer_state")
        self._run.sample(
            {
                "stage": "rl",
                "step": getattr(state, "global_step", None),
                "id": identity,
                "gold": gold,
                "response": completion[0]["content"] if completion else "",
                "tokens": len(ids),
                "reward": reward,
            }
            for identity, gold, completion, ids, reward in zip(
                columns["id"],
                columns["answer"],
                completions,
                columns["completion_ids"],
                rewards,
                strict=True,
            )
        )
        return rewards

    def close(self) -> None:
        """End the verifier's processes."""
        self._reward.verifier.close()


def _shaping(settings: RLSettings) -> list[Any]:
    """Reward functions beside the binary one."""
    extra: list[Any] = []
    if settings.reward == "notebook":
        extra += [format_exact, format_approximate, answer_graded, number_graded]
    if settings.overlong_cache:
        extra.append(SoftOverlong(settings.max_completion_length, settings.overlong_cache))
    return extra


def _arguments(settings: RLSettings, run: RunDirectory, shaping: int) -> Any:
    import torch

    from trustclip.engines.trl import ConstrainedGRPOConfig

    cuda = torch.cuda.is_available()
    same = (
        "allow_inert", "beta", "gradient_accumulation_steps", "gradient_checkpointing",
        "learning_rate", "logging_steps", "loss_type", "lr_scheduler_type",
        "mask_truncated_completions", "max_completion_length", "max_steps", "method",
        "method_args", "num_generations", "num_iterations", "per_device_train_batch_size",
        "scale_rewards", "seed", "steps_per_generation", "temperature", "top_p", "use_vllm",
        "warmup_steps", "weight_decay",
    )  # fmt: skip
    return ConstrainedGRPOConfig(
        output_dir=str(run.path / "checkpoints"),
        top_k=0,
        # The notebook's rewards replace the binary one, which is still computed and recorded.
        reward_weights=[float(settings.reward == "correct")] + [1.0] * shaping,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 500,
        report_to="none",
        disable_tqdm=True,
        # Dropout makes two passes of one policy differ, and so the ratio before any update.
        disable_dropout=True,
        bf16=cuda,
        use_cpu=not cuda,
        **{name: getattr(settings, name) for name in same},
    )


def _short_enough(
    problems: Sequence[Problem], tokenizer: Any, settings: RLSettings
) -> Sequence[Problem]:
    limit = settings.max_prompt_length
    if limit is None:
        return problems
    short = [
        problem
        for problem in problems
        if len(
            tokenizer.apply_chat_template(
                messages(problem.problem, settings.prompt_style),
                add_generation_prompt=True,
                return_dict=True,
            )["input_ids"]
        )
        <= limit
    ]
    if not short:
        raise ValueError(f"no problem has a prompt of at most max_prompt_length = {limit} tokens.")
    return short


def _outcome(history: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the run of what its last lines say too noisily."""
    shown = {"reward": "reward", "gated": "trustclip/gated", "entropy": "entropy"}
    columns = {
        name: [row[key] for row in history if row.get(key) is not None]
        for name, key in shown.items()
    }
    return {f"mean_{name}": sum(c) / len(c) for name, c in columns.items() if c}
