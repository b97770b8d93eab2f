"""Reinforcement learning with verified rewards, by TRL under one of trustclip's methods."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from trustclip.durable.lock import only_process
from trustclip.recipes.checks import refuse
from trustclip.recipes.grpo import grpo_config
from trustclip.recipes.models import load_model, lora_config, save_model
from trustclip.recipes.noise import flipped
from trustclip.recipes.problems import enough, training_problems
from trustclip.recipes.settings import TINY, RLSettings
from trustclip.recipes.watch.agreement import FirstCompletions
from trustclip.recipes.watch.callbacks import Checkups, Interrupted, Recorder, silence
from trustclip.recipes.watch.guards import Guards, Notice
from trustclip.recipes.watch.sinks import open_sink, viewer
from trustclip.rewards import (
    AnswerReward,
    SoftOverlong,
    answer_graded,
    format_approximate,
    format_exact,
    number_graded,
)
from trustclip.runs.directory import RunDirectory
from trustclip.runs.jsonl import plain
from trustclip.runs.progress import Stage
from trustclip.runs.secrets import redacted
from trustclip.tasks.problem import Problem
from trustclip.tasks.prompts import messages, prompt_style


def rl(settings: RLSettings, console: Console) -> RunDirectory:
    """Run `trustclip rl`: load, train, save to ``final/``; resumes an unfinished run.

    Raises:
      ValueError: a method, schedule, model, data set or run directory that cannot be used, or
        another process uses the run directory.
    """
    refuse(settings)
    with only_process(settings.output_dir):
        return _rl(settings, console)


def _rl(settings: RLSettings, console: Console) -> RunDirectory:
    run = RunDirectory.resumed(settings.output_dir, "rl", settings)
    if run.summary.get("finished"):
        console.print(f"{run.path} is finished; nothing to do.", highlight=False)
        return run
    problems = training_problems(settings, run, settings.seed)
    enough(problems, settings)
    run.problems(problems)
    try:
        model, tokenizer = starting_model(settings, run, console)
    except Interrupted:
        console.print(f"stopped; the same command continues {run.path}.", highlight=False)
        return run
    problems = short_enough(problems, tokenizer, settings)
    trained = reinforce(model, tokenizer, problems, settings, run, console)
    if trained is None:
        return run
    save_model(trained.trainer.model, tokenizer, run.final)
    run.summarize({"command": "rl", "problems": len(problems), "finished": True, **trained.metrics})
    console.print(f"model in {run.final}", highlight=False)
    return run


def starting_model(settings: RLSettings, run: RunDirectory, console: Console) -> tuple[Any, Any]:
    """The model that training starts from; the tiny one is made and primed, in ``sft/``.

    Raises:
      Interrupted: asked to stop while priming; the same call continues.
    """
    if settings.model != TINY:
        return load_model(settings.model, settings.prompt_style, settings.seed)
    from trustclip.recipes.sft import prime

    primed = prime(run.path / "sft", settings.seed, console)
    return load_model(str(primed), settings.prompt_style)


@dataclass(frozen=True)
class Trained:
    """The result of a completed training.

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
      checkups: evaluations during training.

    Returns:
      None when SIGTERM or Ctrl-C stopped it; everything is saved, and the same call continues.
    """
    run.start_over()
    style = prompt_style(settings.prompt_style).extraction
    reward = NoisyReward(style, settings.reward_noise, settings.seed)
    sink = open_sink(settings.sink, run.path.name, redacted(plain(settings)), run.path)
    if command := viewer(settings.sink, run.path):
        console.print(f"to watch: {command}", highlight=False, markup=False, soft_wrap=True)
    try:
        trainer = _trainer(model, tokenizer, problems, settings, run, reward)
        trainer.mismatch.listener = FirstCompletions(run, console)
        guards = Guards(_shown_too(run, console))
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
    if complete and not trainer.state.global_step:
        raise ValueError("training made no update: the model is unchanged and was not saved.")
    if not complete:
        console.print(f"stopped; the same command continues {run.path}.", highlight=False)
        return None
    return Trained(trainer, {"training": _outcome(trainer.state.log_history), **guards.summary()})


def _shown_too(run: RunDirectory, console: Console) -> Notice:
    """Record what a guard notices, and show it to whoever watches the terminal."""

    def notice(step: int, name: str, text: str) -> None:
        run.notice(step, name, text)
        line = f"warning at update {step}: {text}"
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)

    return notice


def _trainer(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: RLSettings,
    run: RunDirectory,
    reward: "NoisyReward",
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
        args=grpo_config(settings, run.checkpoints, settings.seed, len(shaping)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora_r, settings.lora_alpha),
    )
    trainer.journal = run
    trainer.recorder = RunRecorder(run, reward, settings.reward_noise > 0)
    trainer.token_sampler = token_sampler(trainer, settings, run)
    silence(trainer)
    return trainer


def token_sampler(trainer: Any, settings: RLSettings, run: RunDirectory) -> Any:
    """What records the tokens of a sample of completions; None where the settings want none.

    Args:
      trainer: a `ConstrainedGRPOTrainer`.
      settings: of the training.
      run: gets the tokens.
    """
    from trustclip.engines.trl.tokens import Pieces, Plan, TokenSampler

    if not settings.tokens_every:
        return None
    args = trainer.args
    plan = Plan(
        settings.tokens_every,
        settings.tokens_completions,
        int(settings.tokens_megabytes * 2**20),
        updates=settings.max_steps,
        per_generation=args.schedule().updates_per_generation,
        seed=settings.seed,
    )
    samples = args.per_device_train_batch_size * args.steps_per_generation * args.world_size
    prompts = samples // args.num_generations
    text = Pieces(trainer.processing_class)
    return TokenSampler(plan, args.num_generations, prompts, text, run.tokens)


class NoisyReward:
    """The binary answer reward, inverted for a share of the completions.

    Args:
      style: where the answer stands; see `trustclip.rewards.extract_answer`.
      noise: share of the rewards to invert, in [0, 0.5].
      seed: of the run.
    """

    __name__ = "correct"

    def __init__(self, style: Any, noise: float = 0.0, seed: int = 0) -> None:
        self._noise, self._seed = noise, seed
        self._reward = AnswerReward(style=style)

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """Rewards of the completions, inverted ones included, in TRL's signature."""
        rewards = self._reward(prompts, completions, **columns)
        # Every rank rewards as many completions: this rank's begin at `first` of the generation.
        first = int(os.environ.get("RANK", "0")) * len(rewards)
        step = getattr(columns.get("trainer_state"), "global_step", None)
        inverted = [
            self.inverts(step, first + place, identity)
            for place, identity in enumerate(columns.get("id", [""] * len(rewards)))
        ]
        if self._noise and "log_metric" in columns:
            columns["log_metric"]("reward_noise", sum(inverted) / max(len(inverted), 1))
        return [1.0 - r if wrong else r for r, wrong in zip(rewards, inverted, strict=True)]

    def inverts(self, step: int | None, index: int, identity: str) -> bool:
        """Whether the policy gets the opposite of the true reward.

        Args:
          step: updates done when the completion was sampled.
          index: its number in the generation, over all ranks.
          identity: of the problem.
        """
        return self._noise > 0 and flipped(self._noise, self._seed, identity, f"{step}/{index}")

    def close(self) -> None:
        """End the verifier's processes."""
        self._reward.verifier.close()


class RunRecorder:
    """Writes completions to ``samples.jsonl`` and gated shares to ``gates.jsonl``.

    Args:
      run: the run directory.
      reward: the first reward function; ``samples.jsonl`` has the true rewards, and ``turned``
        where the policy got the opposite.
      noisy: whether it inverts any.
    """

    def __init__(self, run: RunDirectory, reward: NoisyReward, noisy: bool) -> None:
        self._run, self._reward, self._noisy = run, reward, noisy

    def generation(self, generation: Any) -> None:
        """Write a line for each completion of a `trustclip.engines.trl.recording.Generation`."""
        self._run.sample(self._rows(generation))

    def gates(self, row: dict[str, Any]) -> None:
        """Write the gated shares of an update."""
        self._run.gates(row)

    def _rows(self, generation: Any) -> Iterator[dict[str, Any]]:
        rewards = generation.rewards[self._reward.__name__]
        for index, row, completion, tokens, reward in zip(
            generation.index,
            generation.rows,
            generation.completions,
            generation.tokens,
            rewards,
            strict=True,
        ):
            inverted = self._reward.inverts(generation.step, index, row["id"])
            yield {
                "stage": "rl",
                "step": generation.step,
                "index": index,
                "id": row["id"],
                "gold": row["answer"],
                "response": completion[0]["content"] if completion else "",
                "tokens": len(tokens),
                # The true reward: inverting an inverted binary reward restores it.
                "reward": 1.0 - reward if inverted else reward,
                **({"turned": inverted} if self._noisy else {}),
            }


def _shaping(settings: RLSettings) -> list[Any]:
    """Reward functions in addition to the binary one."""
    extra: list[Any] = []
    if settings.reward == "notebook":
        extra += [format_exact, format_approximate, answer_graded, number_graded]
    if settings.overlong_cache:
        extra.append(SoftOverlong(settings.max_completion_length, settings.overlong_cache))
    return extra


def short_enough(
    problems: Sequence[Problem], tokenizer: Any, settings: RLSettings
) -> Sequence[Problem]:
    """The problems with prompts of at most ``max_prompt_length`` tokens.

    Raises:
      ValueError: none is left, or fewer than one generation takes.
    """
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
    enough(short, settings)
    return short


def _outcome(history: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the run: the values of the last updates alone are too noisy."""
    shown = {"reward": "reward", "gated": "trustclip/gated", "entropy": "entropy"}
    columns = {
        name: [row[key] for row in history if row.get(key) is not None]
        for name, key in shown.items()
    }
    return {f"mean_{name}": sum(c) / len(c) for name, c in columns.items() if c}
