"""A run directory for training from Python: `Recorder`, a callback of TRL's trainers.

The recipes write their directories with the same parts, so that ``trustclip report``, ``explain``,
``compare`` and ``tokens`` read both alike.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from trustclip.constraints.schedule import Schedule
from trustclip.engines.trl.passthrough import changes_nothing
from trustclip.engines.trl.recording.tokens import Plan, TokenSampler, pieces
from trustclip.findings.live.first import FirstCompletions
from trustclip.findings.live.guards import RowGuards
from trustclip.logs.answers import answer_rows, score_rows, scores
from trustclip.logs.identity import Marks
from trustclip.logs.names import SAMPLING_ENTROPY
from trustclip.logs.trl import OF_RECIPES
from trustclip.logs.writing.completions import Completions, Notice, problem_of
from trustclip.logs.writing.run import CURSORS, RunWriter
from trustclip.support.jsonl import append_jsonl, read_jsonl, scan
from trustclip.support.lock import only_process, rank
from trustclip.support.terminal import Terminal, warn

#: Settings of a trainer at the top of ``config.yaml``, as in a recipe; others are in ``trl``.
_OURS = ("allow_inert", "replay", "candidates")
#: Those on which no result depends, and why.
_NEUTRAL = {
    "output_dir": "where the trainer writes",
    "logging_steps": "how often metrics are written; nothing is trained on them",
    "save_total_limit": "how many checkpoints are kept",
    "save_async": "whether training waits for a checkpoint",
    "shadows": "methods that only watch; the training is the same to the last bit",
}
_TOP_LEVEL = {*OF_RECIPES, "num_train_epochs", "seed", *_OURS, *_NEUTRAL}

#: Locks of this process by folder: a notebook's cell that is run again replaces its recorder.
_locks: dict[Path, contextlib.ExitStack] = {}


class Recorder(TrainerCallback):
    """Records training from Python in a run directory, for the commands that read one.

    Give it to `ConstrainedGRPOTrainer` in ``callbacks``; a stock `trl.GRPOTrainer` that has it
    needs `trustclip.engines.trl.observe` as well. It changes nothing in the training. Of several
    ranks the first writes what belongs to all. A training that is continued
    (``resume_from_checkpoint``) goes on in its folder, where rows after its checkpoint are cut off.
    What `RowGuards` notice is recorded and printed.

    Args:
      path: the folder, new or of the training that is continued.
      tokens_every: record completions of one in this many updates, token by token; 0: of none.
      tokens_completions: maximum number of completions recorded per update.
      tokens_megabytes: maximum space of all recorded tokens.

    Raises:
      ValueError: (when the trainer is made, or training begins) the folder holds another run, or
        one that this training does not continue.

    Example:
      ``ConstrainedGRPOTrainer(..., callbacks=[trustclip.Recorder("runs/mine")]).train()``
    """

    def __init__(
        self,
        path: str | Path,
        *,
        tokens_every: int = 10,
        tokens_completions: int = 8,
        tokens_megabytes: float = 16.0,
    ) -> None:
        self.path = Path(path)
        self._tokens = (tokens_every, tokens_completions, tokens_megabytes)
        self._console = Terminal(stderr=True)
        self._run: RunWriter | None = None
        self._trainer: Any = None
        self._guards = RowGuards(
            lambda *notice: notifier(self.run, self._console)(*notice), rank() == 0
        )

    @property
    def run(self) -> RunWriter:
        """The run directory.

        Raises:
          ValueError: no trainer has it yet.
        """
        if self._run is None:
            raise ValueError(
                "this recorder belongs to no trainer that it can record: give it to "
                "ConstrainedGRPOTrainer in `callbacks`, or call observe(trainer) on the stock "
                "trainer that has it."
            )
        return self._run

    def attach(self, trainer: Any) -> None:
        """Record this trainer; a `ConstrainedGRPOTrainer` calls it, and `observe` does.

        Raises:
          ValueError: it records another trainer, or the folder holds a run with other settings.
        """
        if self._trainer is not None:
            raise ValueError(f"the recorder of {self.path} has a trainer; make one for each.")
        _lock(self.path)
        settings = settings_of(trainer)
        neutral = {name: why for name, why in _NEUTRAL.items() if name in settings}
        marks = Marks(neutral, "max_steps")
        self._run = run = RunWriter.resumed(self.path, "rl", settings, marks)
        self._trainer = trainer
        trainer.recorder = _Completions(run, self._guards.report)
        if hasattr(trainer, "journal"):
            trainer.journal = self

    # -- a journal, for trainers whose own checkpoints hold where the files end ------------------

    def cursor(self) -> dict[str, Any]:
        """Extents of the files that grow, once they are safely on disk."""
        return self.run.cursor()

    def rewind(self, cursor: Mapping[str, Any]) -> None:
        """Cut the files that grow back to a `cursor`.

        Raises:
          ValueError: nothing would be left of a finished run.
        """
        extent = cursor.get("metrics.jsonl", 0)
        size = extent if isinstance(extent, int) else extent["bytes"]
        if self.run.summary.get("finished") and not self._has_training(size):
            raise ValueError(
                f"{self.path} holds a finished run, and there is no checkpoint to continue it "
                "from; choose another folder."
            )
        self.run.rewind(cursor)

    # -- callbacks of the trainer ------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue the folder, or refuse it, before the first update."""
        run = self.run
        if run.leads and state.global_step:
            if not hasattr(self._trainer, "journal"):
                self.rewind(self._cursor_of(state.global_step))
        elif run.leads:
            if self._has_training():
                raise ValueError(
                    f"{self.path} already holds a run, which this training does not continue; "
                    "choose another folder, or continue its checkpoints (resume_from_checkpoint)."
                )
            run.rewind(run.cursor())  # all of it: nothing was trained
        if run.leads:
            self._guards.replay(run.logged())
        FirstCompletions(run, self._console, self._trainer).on_train_begin(args, state, control)
        if self._tokens[0]:
            sampler = token_sampler(self._trainer, self._tokens, state.max_steps, run)
            self._trainer.token_sampler = sampler

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remember where the files end."""
        if self.run.leads and not hasattr(self._trainer, "journal"):
            row = {"step": state.global_step, "cursor": self.cursor()}
            append_jsonl(self.path / CURSORS, [row])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write a row, and let the guards check it."""
        if not logs or "train_runtime" in logs:
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        self.run.log({"stage": "rl", "step": state.global_step, **numbers})
        if "loss" in numbers:
            self._guards.read(state.global_step, numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the summary, and print where the run is."""
        finished = not getattr(self._trainer, "stopped_early", False)
        notices = self._guards.notices
        self.run.summarize(
            {
                "command": "rl",
                "method": self._trainer.method.to_dict(),
                "finished": finished,
                "training": outcome(state.log_history),
                "notices": notices,
            }
        )
        if self.run.leads:
            warnings = f", with {len(notices)} warning{'s' * (len(notices) > 1)}" if notices else ""
            text = f"recorded{warnings}; to read it: trustclip explain {self.path}"
            self._console.print(text, highlight=False, soft_wrap=True)

    # -- evaluations -------------------------------------------------------------------------------

    def evaluation(
        self, task: str, answers: Mapping[Any, Sequence[Any]] | Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Record an evaluation of the policy as it is now.

        Args:
          task: name of the problem set.
          answers: K answers to each problem: ``{problem: [1, 0, ...]}`` with 1 for a right answer,
            or rows with ``id`` and ``correct`` and, where known, ``response``, ``gold``,
            ``extracted``, ``tokens`` and ``truncated``.

        Returns:
          Mean@K and Pass@K with 95 % intervals; see `trustclip.logs.answers.scores`.

        Raises:
          ValueError: no answers, an outcome that is not 0 or 1, or problems with unequal numbers
            of answers.
        """
        rows = answer_rows(task, answers)
        step = 0 if self._trainer is None else self._trainer.state.global_step
        result = scores(rows)
        if self.run.leads:
            self.run.sample({"stage": "eval", "step": step, **row} for row in rows)
            for row in score_rows(result, step):
                self.run.log(row)
        return result

    def _has_training(self, size: float = math.inf) -> bool:
        """Whether the first bytes of the metrics are of a training run that has begun."""
        metrics = self.path / "metrics.jsonl"
        lines = scan(metrics) if metrics.exists() else ()
        rows = (line.row for line in lines if line.offset < size)
        return any(row is not None and row.get("stage") == "rl" for row in rows)

    def _cursor_of(self, step: int) -> dict[str, Any]:
        """The cursor of a stock trainer's checkpoint.

        Raises:
          ValueError: this folder was not there when the checkpoint was written.
        """
        path = self.path / CURSORS
        for row in reversed(list(read_jsonl(path)) if path.exists() else []):
            if row["step"] == step:
                return row["cursor"]
        raise ValueError(
            f"{self.path} has no record of the checkpoint after update {step}; record into the "
            "folder that this training began with, or choose a new trainer and folder."
        )


class _Completions(Completions):
    """Records each problem of the data set as well, when it is first sampled for."""

    _posed: frozenset[str] = frozenset()

    def generation(self, generation: Any) -> None:
        problems = {problem["id"]: problem for problem in map(problem_of, generation.rows)}
        if fresh := problems.keys() - self._posed:
            self._posed |= fresh
            self._run.pose(problem for key, problem in problems.items() if key in fresh)
        super().generation(generation)


def notifier(run: RunWriter, console: Any) -> Notice:
    """The function that records what a guard notices, and prints it."""

    def notice(step: int, name: str, text: str) -> None:
        run.notice(step, name, text)
        warn(console, f"warning at update {step}: {text}")

    return notice


def token_sampler(
    trainer: Any, budget: tuple[int, int, float], updates: int, run: RunWriter
) -> TokenSampler:
    """Records a sample of a run's completions token by token.

    ``budget``: updates per recorded one, maximum number of its completions, megabytes in total.
    """
    args = trainer.args
    every, completions, megabytes = budget
    schedule = Schedule(
        int(args.steps_per_generation or 1), args.num_iterations, args.gradient_accumulation_steps
    )
    plan = Plan(
        every,
        completions,
        int(megabytes * 2**20),
        updates=updates,
        per_generation=schedule.updates_per_generation,
        seed=args.seed,
    )
    samples = args.per_device_train_batch_size * args.steps_per_generation * args.world_size
    prompts = samples // args.num_generations
    return TokenSampler(
        plan, args.num_generations, prompts, pieces(trainer.processing_class), run.tokens
    )


def outcome(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over the logged rows: the values of the last updates alone are too noisy.

    Example:
      >>> outcome([{"reward": 0.5, "entropy": 1.0}, {"reward": 1.0}])
      {'mean_reward': 0.75, 'mean_entropy': 1.0}
    """
    whole = any(row.get(SAMPLING_ENTROPY) is not None for row in history)
    entropy = SAMPLING_ENTROPY if whole else "entropy"
    keys = {"reward": "reward", "gated": "trustclip/gated", "entropy": entropy}
    columns = {
        name: [row[key] for row in history if row.get(key) is not None]
        for name, key in keys.items()
    }
    return {f"mean_{name}": sum(c) / len(c) for name, c in columns.items() if c}


def settings_of(trainer: Any) -> dict[str, Any]:
    """The settings of a trainer of TRL, laid out as a recipe's in ``config.yaml``."""
    args = trainer.args
    values = {key: value for key, value in args.to_dict().items() if value is not None}
    name = getattr(trainer.model.config, "_name_or_path", "") or trainer.model.config.model_type
    rewards = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    changed = {  # from TRL's defaults, where results may depend on it
        key: values[key]
        for key, field in type(args).__dataclass_fields__.items()
        if key in values.keys() - _TOP_LEVEL and not key.startswith("method")
        if field.default != getattr(args, key) and not changes_nothing(key)
    }
    settings = {
        "model": name,
        "method": trainer.method.to_dict(),
        **{key: values[key] for key in sorted(_TOP_LEVEL & values.keys())},
        "rewards": {key: round(weight, 9) for key, weight in rewards},
        "trl": changed,
    }
    return json.loads(json.dumps(settings, default=str))


def _lock(path: Path) -> None:
    """Hold a folder until the process ends, or another recorder of it takes over."""
    folder = path.resolve()
    if folder in _locks:
        _locks.pop(folder).close()
    stack = contextlib.ExitStack()
    stack.enter_context(only_process(folder))
    _locks[folder] = stack
