"""Reinforcement learning with verified rewards, by TRL under one of our methods."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from trustclip.recipes.callbacks import Checkups, Interrupted, Recorder, silence
from trustclip.recipes.checks import refuse
from trustclip.recipes.guards import Guards
from trustclip.recipes.models import load_model, lora_config, save_model
from trustclip.recipes.noise import flipped
from trustclip.recipes.problems import training_problems
from trustclip.recipes.progress import Stage
from trustclip.recipes.records import RunDirectory
from trustclip.recipes.settings import TINY, RLSettings
from trustclip.recipes.sinks import open_sink
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
    """Run `trustclip rl`: load, train, save to ``final/``; continues what the folder holds.

    Raises:
      ValueError: a method, schedule, model, data set or run directory that cannot be used.
    """
    refuse(settings)
    run = RunDirectory.resumed(settings.output_dir, "rl", settings)
    if run.summary.get("finished"):
        console.print(f"{run.path} is finished; nothing to do.", highlight=False)
        return run
    problems = training_problems(settings, run)
    run.problems(problems)
    model, tokenizer = starting_model(settings, run, console)
    problems = short_enough(problems, tokenizer, settings)
    trained = reinforce(model, tokenizer, problems, settings, run, console)
    if trained is None:
        return run
    save_model(trained.trainer.model, tokenizer, run.final)
    run.summarize({"command": "rl", "problems": len(problems), "finished": True, **trained.metrics})
    console.print(f"model in {run.final}", highlight=False)
    return run


def starting_model(settings: RLSettings, run: RunDirectory, console: Console) -> tuple[Any, Any]:
    """The model that training starts from; the tiny one is made and primed, in ``sft/``."""
    if settings.model != TINY:
        return load_model(settings.model, settings.prompt_style, settings.seed)
    from trustclip.recipes.sft import prime

    primed = prime(run.path / "sft", settings.seed, console)
    return load_model(str(primed), settings.prompt_style)


@dataclass(frozen=True)
class Trained:
    """A training that has come to its end.

    Args:
      trainer: with the trained model in it.
      metrics: means over the run.
    """

    trainer: Any
    metrics: dict[str, Any]


def reinforce(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: RLSettings,
    run: RunDirectory,
    console: Console,
    checkups: Checkups | None = None,
) -> Trained | None:
    """Train ``model`` in place on verified rewards, from the newest checkpoint if there is one.

    Args:
      model: a Hugging Face causal language model.
      tokenizer: its tokenizer.
      problems: to train on.
      settings: of the training.
      run: gets metrics, samples, gated shares, checkpoints and notices.
      console: gets the progress.
      checkups: evaluations on the way.

    Returns:
      None when SIGTERM or Ctrl-C ended it; everything is saved, and the same call continues.
    """
    style = prompt_style(settings.prompt_style).extraction
    reward = RecordedReward(run, style, settings.reward_noise, settings.seed)
    sink = open_sink(settings.sink, run.path.name, asdict(settings), run.path)
    try:
        trainer = _trainer(model, tokenizer, problems, settings, run, reward)
        guards = Guards(run.notice)
        with Stage(console, "rl", settings.max_steps) as stage:
            trainer.add_callback(Recorder(run, stage, "rl", sink))
            trainer.add_callback(guards)
            if checkups is not None:
                checkups.trainer = trainer
                trainer.add_callback(checkups)
            try:
                with guards.listening():
                    complete = trainer.train_durably()
            except Interrupted:
                complete = False
    finally:
        reward.close()
        sink.close()
    if not complete:
        console.print(f"stopped; the same command continues {run.path}.", highlight=False)
        return None
    return Trained(trainer, {"training": _outcome(trainer.state.log_history), **guards.summary()})


def _trainer(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: RLSettings,
    run: RunDirectory,
    reward: "RecordedReward",
) -> Any:
    from datasets import Dataset

    from trustclip.engines.trl import ConstrainedGRPOTrainer

    rows = [
        {
            "prompt": messages(problem.problem, settings.prompt_style),
            "answer": problem.answer,
            "id": problem.id,
        }
        for problem in problems
    ]
    shaping = _shaping(settings)
    trainer = ConstrainedGRPOTrainer(
        model=model,
        reward_funcs=[reward, *shaping],
        args=_arguments(settings, run, len(shaping)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora_r, settings.lora_alpha),
    )
    trainer.journal, trainer.on_gates = run, run.gates
    silence(trainer)
    return trainer


class RecordedReward:
    """The binary answer reward, which also writes every completion to ``samples.jsonl``.

    Args:
      run: where to.
      style: where the answer stands; see `trustclip.rewards.extract_answer`.
      noise: share of the rewards to turn round; ``samples.jsonl`` keeps the true ones, and says of
        which the policy was told the opposite.
      seed: of the run.
    """

    __name__ = "correct"

    def __init__(self, run: RunDirectory, style: Any, noise: float = 0.0, seed: int = 0) -> None:
        self._run, self._noise, self._seed = run, noise, seed
        self._reward = AnswerReward(style=style)

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """Rewards of the completions, in TRL's signature."""
        rewards = self._reward(prompts, completions, **columns)
        state = columns.get("trainer_state")
        first = int(os.environ.get("RANK", "0")) * len(rewards)
        step = getattr(state, "global_step", None)
        turned = [
            self._noise > 0
            and flipped(self._noise, self._seed, identity, f"{step}/{first + place}")
            for place, identity in enumerate(columns["id"])
        ]
        if self._noise and "log_metric" in columns:
            columns["log_metric"]("reward_noise", sum(turned) / max(len(turned), 1))
        self._run.sample(
            {
                "stage": "rl",
                "step": step,
                "index": first + place,
                "id": identity,
                "gold": gold,
                "response": completion[0]["content"] if completion else "",
                "tokens": len(ids),
                "reward": reward,
                **({"turned": turned[place]} if self._noise else {}),
            }
            for place, (identity, gold, completion, ids, reward) in enumerate(
                zip(
                    columns["id"],
                    columns["answer"],
                    completions,
                    columns["completion_ids"],
                    rewards,
                    strict=True,
                )
            )
        )
        return [1.0 - r if turn else r for r, turn in zip(rewards, turned, strict=True)]

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
    arguments: dict[str, Any] = dict(
        output_dir=str(run.checkpoints),
        top_k=0,
        # The notebook's rewards replace the binary one, which is still computed and recorded.
        reward_weights=[float(settings.reward == "correct")] + [1.0] * shaping,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 500,
        save_total_limit=settings.save_total_limit,
        report_to="none",
        disable_tqdm=True,
        # Dropout makes two passes of one policy differ, and so the ratio before any update.
        disable_dropout=True,
        bf16=cuda,
        use_cpu=not cuda,
        **{name: getattr(settings, name) for name in same},
    )
    return ConstrainedGRPOConfig(**arguments | settings.trl)


def short_enough(
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
