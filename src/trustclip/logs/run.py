"""A run and its evaluations, as reports see them, wherever they were read from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trustclip.logs.answers import usual
from trustclip.logs.identity import Marks, essential
from trustclip.logs.log import Log
from trustclip.logs.samples import Samples
from trustclip.support.jsonl import Row

#: Ends the name of a score that is a number of a whole run; see `trustclip.support.text.title_of`.
OF_RUN = "@0"
#: Stages whose rows hold numbers.
MEASURED = ("rl", "sft", "eval")
#: Folders that say nothing of the model in them without their own folder.
_COMMON = ("final", "hf", "model")


@dataclass(frozen=True)
class Evaluation:
    """The answers to all test problems at one point of a run."""

    step: int | None  # updates done by then; None where no training took part
    scores: Mapping[str, Any]  # as `trustclip.logs.answers.scores` makes them
    #: Correctness, ``{task: {problem: [0, 1, ...]}}``; empty where samples are gone.
    answers: Mapping[str, Mapping[str, list[int]]]
    texts: str = ""  # digest of all completions; empty where samples are gone
    #: Family of each problem, ``{task: {problem: family}}``; empty where problems are independent.
    families: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: K by task, where it is known beside the answers, of which some may be lost.
    asked: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> tuple[int, int]:
        """Answers that are missing, and how many there would be: K of every problem."""
        short = due = 0
        for task, problems in self.answers.items():
            k = self.asked.get(task) or usual([*problems.values()])
            short += sum(max(k - len(right), 0) for right in problems.values())
            due += k * len(problems)
        return short, due

    def place(self, task: str, problem: str) -> Any:
        """The benchmark of a problem, or (benchmark, family): `trustclip.stats.scores.Strata`."""
        if not self.families:
            return task
        return task, self.families.get(task, {}).get(problem, problem)

    @property
    def tasks(self) -> list[str]:
        return list(self.scores["tasks"])

    @property
    def metrics(self) -> list[str]:
        """Names of the scores: ``["mean@8", "pass@8"]``."""
        return [name for name in self.scores["average"] if "@" in name]

    @property
    def number(self) -> str:
        """Name of the score that is one number of its run, without answers; empty for none."""
        return next((name for name in self.metrics if name.endswith(OF_RUN)), "")

    def score(self, task: str | None, metric: str) -> Mapping[str, float] | None:
        """``{"value", "low", "high"}`` of a task, or of the average (None), if it was measured."""
        part = self.scores["average"] if task is None else self.scores["tasks"].get(task, {})
        return part.get(metric)


@dataclass(frozen=True)
class Run:
    """A run directory, or the log of another trainer's run."""

    path: Path  # the folder, or the log's file
    config: Mapping[str, Any]
    summary: Mapping[str, Any]  # its ``summary.json``, empty as long as there is none
    remarks: Sequence[str]  # on the state of this folder, for the reader of a report
    environment: Mapping[str, Any] = field(default_factory=dict)
    #: By stage; of a step logged twice, the later row.
    metrics: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    #: Complete ones, in order.
    evaluations: Sequence[Evaluation] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)  # where its completions are
    #: Its entry in its suite (label, model, seed, method), with the suite's reference and name and
    #: the score that it `reaches`; empty without one.
    entry: Mapping[str, Any] = field(default_factory=dict)
    log: Log | None = None  # where it was read from another trainer's
    marks: Marks = field(default_factory=Marks)  # of its settings
    scale: str = "percent"  # what its scores are shown in, 100 times as large as stored

    @property
    def command(self) -> str:
        return str(self.config.get("command") or self.summary.get("command") or "run")

    @property
    def name(self) -> str:
        """Name of the folder; of a log, that of its file, unless every run's is the same."""
        path = self.path.resolve()
        return path.parent.name if path.name == "trainer_state.json" else path.name

    @property
    def essential(self) -> dict[str, Any]:
        """Its settings without those that no result depends on."""
        return essential(self.config, self.marks)

    @property
    def seed(self) -> Any:
        return self.entry.get("seed", self.config.get("seed"))

    @property
    def model(self) -> str:
        """Name of the model that training began with, without its folders."""
        if self.command == "demo":
            return "tiny"
        model = self.entry.get("model") or self.config.get("model") or "model"
        if cached := cached_id(model):
            return cached.rpartition("/")[2]
        parts = Path(str(model)).parts
        return "/".join(parts[-2:]) if parts[-1] in _COMMON else parts[-1]

    @property
    def swept(self) -> Mapping[str, Any]:
        """Values of the settings that its suite sweeps, by their paths in the recipe."""
        return self.entry.get("swept") or {}

    @property
    def setting(self) -> str:
        """Model and swept values, in words; methods are compared within a setting."""
        return setting_of(self.model, self.swept)

    @property
    def method(self) -> Mapping[str, Any] | None:
        """Method and hyper-parameters, ``{"name": ..., ...}``; None where nothing was trained."""
        stage = self.config.get("rl") if self.command == "run" else self.config
        configured = stage.get("method") if isinstance(stage, Mapping) else None
        candidates = (self.entry.get("method"), self.summary.get("method"), configured)
        return next((m for m in candidates if m and isinstance(m, Mapping)), None)

    @property
    def finished(self) -> bool:
        return bool(self.summary and self.summary.get("finished", True))

    @property
    def training(self) -> Sequence[Row]:
        """Logged rows of reinforcement learning."""
        return self.metrics.get("rl", ())

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in self.training), default=0)

    @property
    def silence(self) -> str:
        """Why there is nothing to say of it, in one sentence; empty where something is logged."""
        rows = any(self.metrics.get(stage) for stage in MEASURED)
        if rows or self.evaluations or self.log is not None:
            return ""
        file = self.path / "metrics.jsonl"
        size = file.stat().st_size if file.exists() else -1
        state = "is missing" if size < 0 else "holds neither" if size else "is empty"
        return f"{self.path} has logged neither an update nor an evaluation: {file.name} {state}."

    @property
    def notices(self) -> list[Row]:
        """Warnings of the guards, oldest first."""
        return [*self.metrics.get("notice", ())]

    @property
    def initial(self) -> Evaluation | None:
        """The evaluation before any update."""
        return next((e for e in self.evaluations if e.step == 0), None)

    @cached_property
    def trained(self) -> list[Evaluation]:
        """The evaluations after some update, or of no training at all."""
        return [e for e in self.evaluations if e.step != 0]

    @property
    def final(self) -> Evaluation | None:
        """The last evaluation after training."""
        return self.trained[-1] if self.trained else None


def cached_id(model: object) -> str | None:
    """Hub id of a model that is named by its folder in the hub's cache; else None.

    Example:
      >>> cached_id("/home/me/.cache/models--Qwen--Qwen3-8B/snapshots/0a1b")
      'Qwen/Qwen3-8B'
    """
    match = re.search(r"models--([\w.-]+?)--([\w.-]+)/snapshots/", f"{model}/")
    return match and f"{match[1]}/{match[2]}"


def setting_of(model: str, swept: Mapping[str, Any]) -> str:
    """A model and swept values, in words.

    Example:
      >>> setting_of("tiny", {"rl.reward_noise": 0.1})
      'tiny, reward_noise 0.1'
    """
    return ", ".join([model, *in_words(swept)])


def in_words(swept: Mapping[str, Any]) -> list[str]:
    """Swept settings, each as its name and value.

    Example:
      >>> in_words({"rl.reward_noise": 0.1})
      ['reward_noise 0.1']
    """
    texts = {path: f"{v:g}" if isinstance(v, float) else v for path, v in swept.items()}
    return [f"{path.rpartition('.')[2]} {value}" for path, value in texts.items()]
