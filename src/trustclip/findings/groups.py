"""Groups of runs that differ only in their seed: a row of a table, a colour."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from trustclip import stats
from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import interval
from trustclip.findings.course import Course
from trustclip.findings.facts import ENOUGH_RUNS
from trustclip.findings.scores import answers_of, collapsed
from trustclip.logs.answers import whole
from trustclip.logs.identity import flat
from trustclip.logs.reader import Evaluation, Run

#: Hyper-parameters that a label always shows; others only where they differ from the default.
THRESHOLDS = ("delta", "epsilon", "low", "high")
_SYMBOLS = {"delta": "δ", "epsilon": "ε"}


@dataclass(frozen=True)
class Estimate:
    """A score over the runs of a group, in shares of 1.

    Args:
      low: of the 95 % interval clustered by problem and, with several runs, by seed; None where
        it is not known, or would not cover (`Group.unsteady`).
      std: sample standard deviation over runs, None for a single one.
      best: mean over runs of the best evaluation after training began; None with a single one.
    """

    value: float
    low: float | None
    high: float | None
    std: float | None = None
    best: float | None = None


@dataclass(frozen=True)
class Group:
    """Runs of one method in one setting.

    Args:
      label: its name in the report, unique among the groups of its setting.
      model: where its training began.
      setting: the model and what its suite sweeps, in words: what groups are compared within.
      runs: one for each seed.
      series: number of its colour.
      is_reference: whether the other groups of the setting are compared with it.
    """

    label: str
    model: str
    setting: str
    runs: Sequence[Run]
    series: int = 0
    is_reference: bool = False

    @property
    def seeds(self) -> list[Any]:
        return [run.seed for run in self.runs]

    @property
    def scale(self) -> str:
        """The unit of its scores, in words."""
        return self.runs[0].scale

    @cached_property
    def method(self) -> Method | None:
        """The method, where it is one of the library's or may be imported."""
        return self._course.method

    @property
    def unreadable(self) -> str:
        """Why the method cannot be read; empty where it can, or where there is none."""
        return self._course.unreadable

    @cached_property
    def _course(self) -> Course:
        return Course(self.runs[0])

    def interval(self, p_old: Tensor | None = None) -> tuple[Tensor | float, Tensor | float] | None:
        """The ratio interval of the method; None where it has none, or needs ``p_old``."""
        try:
            return None if self.method is None else interval(self.method, p_old)
        except ValueError:
            return None

    @cached_property
    def scored(self) -> list[Run]:
        """Runs whose final scores count: the finished ones, or all if none is finished."""
        answered = [run for run in self.runs if run.final is not None]
        return [run for run in answered if run.finished] or answered

    @property
    def unit(self) -> str:
        """What intervals and pairs are of: a problem, or a family where problems come in some."""
        return "family" if any(e.families for e in self.evaluations("final")) else "problem"

    @property
    def partial(self) -> str:
        """Why the scores are not final for all runs, in words; empty if they are."""
        unfinished = [run for run in self.scored if not run.finished]
        if unfinished:
            steps = sorted({run.final.step for run in unfinished if run.final and run.final.step})
            return f"unfinished, at step {', '.join(map(str, steps))}" if steps else "unfinished"
        missing = len(self.runs) - len(self.scored)
        return f"{missing} of {len(self.runs)} runs not finished" if missing else ""

    @property
    def lost(self) -> str:
        """How many answers of its final evaluations are missing, of how many; empty for none."""
        parts = [e.lost for e in self.evaluations("final")]
        missing, due = (sum(part[i] for part in parts) for i in (0, 1))
        return f"{missing} of {due}" if missing else ""

    def evaluations(self, moment: str) -> list[Evaluation]:
        """Evaluations of the scored runs, ``moment`` being ``"initial"`` or ``"final"``."""
        runs = self.scored if moment == "final" else self.runs
        evaluations = [getattr(run, moment) for run in runs]
        return [evaluation for evaluation in evaluations if evaluation is not None]

    @cached_property
    def metrics(self) -> list[str]:
        """Scores that every final (or, before there is one, initial) evaluation has."""
        evaluations = self.evaluations("final") or self.evaluations("initial")
        candidates = evaluations[0].metrics if evaluations else []
        return [m for m in candidates if all(m in e.metrics for e in evaluations)]

    def estimate(self, task: str | None, metric: str, moment: str = "final") -> Estimate | None:
        """Score of a task, or of the average (None); None where a run lacks it."""
        evaluations = self.evaluations(moment)
        estimate = pooled(evaluations, task, metric, self._best(task, metric, moment))
        if estimate is None or moment != "final" or not self.unsteady:
            return estimate
        return replace(estimate, low=None, high=None)

    @cached_property
    def unsteady(self) -> bool:
        """Whether some of several, but few, runs collapsed: no interval of their mean covers."""
        few = 1 < len(self.scored) < ENOUGH_RUNS
        return few and any(collapsed(run) for run in self.scored)

    def _best(self, task: str | None, metric: str, moment: str) -> float | None:
        """Mean over runs of the best trained evaluation; None where there is only the final one."""
        if moment != "final" or max((len(run.trained) for run in self.scored), default=0) < 2:
            return None
        best = []
        for run in self.scored:
            scores = [score for e in run.trained if (score := e.score(task, metric))]
            if scores:
                best.append(max(score["value"] for score in scores))
        return sum(best) / len(best) if best else None


def pooled(
    evaluations: Sequence[Evaluation], task: str | None, metric: str, best: float | None = None
) -> Estimate | None:
    """Score over one evaluation of each run of a group; None where one of them lacks it."""
    scores = [evaluation.score(task, metric) for evaluation in evaluations]
    values = [score["value"] for score in scores if score is not None]
    if not values or len(values) < len(scores):
        return None
    if len(values) == 1 and scores[0] is not None:
        return Estimate(values[0], scores[0]["low"], scores[0]["high"], best=best)
    runs = stats.RunSummary.of(values)
    interval = of_answers(evaluations, task, metric)
    if interval is None and metric == evaluations[0].number and len(values) > 2:
        interval = runs.interval()
    if interval is None:
        return Estimate(runs.mean, None, None, runs.std, best)
    return Estimate(interval.value, interval.low, interval.high, runs.std, best)


def of_answers(
    evaluations: Sequence[Evaluation], task: str | None, metric: str
) -> stats.Interval | None:
    """A score with its interval, from all samples; None where these are gone.

    It may be Pass@k of a k below their number.
    """
    answers, strata = shared_answers(evaluations, task)
    kind, _, k = metric.partition("@")
    if not answers:
        return None
    if kind == "mean":
        return stats.mean_interval(answers, strata)
    answers, strata = whole(answers, strata, int(k))
    return stats.pass_interval(answers, int(k), strata)


def shared_answers(
    evaluations: Sequence[Evaluation], task: str | None = None, lost: int | None = None
) -> tuple[list[list[list[int]]], list[Any]]:
    """Answers [runs, problems, samples] and the place of each problem, see `Evaluation.place`.

    Both empty where samples are gone, the evaluations' problems differ, or none was answered by
    all. A problem that one of them did not answer at all is left out; or, with ``lost`` answers to
    each problem, those that are missing are wrong.
    """
    flat = [
        {key: correct for key, correct in answers_of(evaluation).items() if task in (None, key[0])}
        for evaluation in evaluations
    ]
    if not flat or not flat[0] or any(answers.keys() != flat[0].keys() for answers in flat):
        return [], []
    if lost is not None:
        flat = [{key: r + [0] * (lost - len(r)) for key, r in answers.items()} for answers in flat]
    keys = [key for key in flat[0] if all(answers[key] for answers in flat)]
    places = [evaluations[0].place(*key) for key in keys]
    return [[answers[key] for key in keys] for answers in flat if keys], places


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs, labelled, coloured, with a reference per setting.

    The reference is the suite's, or the first.
    """
    by_identity: dict[str, list[Run]] = {}
    for run in runs:
        by_identity.setdefault(_identity(run), []).append(run)
    members = [sorted(runs, key=lambda run: str(run.seed)) for runs in by_identity.values()]
    labels = _labels([runs[0] for runs in members])
    colours = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    groups = [
        Group(label, runs[0].model, runs[0].setting, runs, colours[label])
        for label, runs in zip(labels, members, strict=True)
    ]
    for here in by_setting(groups).values():
        entries = ((group, group.runs[0].entry) for group in here)
        of_suite = (group for group, e in entries if e and e.get("label") == e.get("reference"))
        chosen = next(of_suite, here[0])
        groups[groups.index(chosen)] = replace(chosen, is_reference=True)
    return groups


def units(groups: Sequence[Group], *, seeds: bool) -> str:
    """What intervals and pairs are of, in words: curves have no problems; empty for nothing."""
    curves = any(one.number for one in groups[0].evaluations("final"))
    return " and ".join([groups[0].unit] * (not curves) + ["seed"] * seeds)


def trained_on(group: Group) -> int:
    """How many training problems that are test problems a run of the group was trained on."""
    return max(
        sum(
            stage["problems"]
            for stage in (run.summary.get("overlap") or {}).values()
            if isinstance(stage, Mapping) and stage.get("excluded") is False
        )
        for run in group.runs
    )


def common_seeds(arms: Sequence[Sequence[Run]]) -> list[list[Run]]:
    """Of each arm the runs whose seeds all of them have, in one order."""
    by_seed = [{run.seed: run for run in arm} for arm in arms]
    shared = [seed for seed in by_seed[0] if all(seed in own for own in by_seed)]
    return [[own[seed] for seed in shared] for own in by_seed]


def by_setting(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each setting."""
    members: dict[str, list[Group]] = {}
    for group in groups:
        members.setdefault(group.setting, []).append(group)
    return members


def names(groups: Sequence[Group]) -> list[str]:
    """Unique names of the groups: the label, and the setting where it differs."""
    if len(by_setting(groups)) < 2:
        return [group.label for group in groups]
    if len({group.model for group in groups}) > 1:
        return [f"{group.label}, {group.setting}" for group in groups]
    return [f"{g.label} at {g.setting.removeprefix(f'{g.model}, ')}" for g in groups]


def _identity(run: Run) -> str:
    if run.entry:
        identity = [run.entry.get(key) for key in ("model", "label", "swept")]
        return json.dumps([str(run.path.resolve().parent), *identity])
    return json.dumps([run.method, _seedless(run)], sort_keys=True, default=str)


def _seedless(run: Run) -> dict[str, Any]:
    """Settings that the runs of a group share: all that results depend on but the seed."""
    return {key: value for key, value in run.essential.items() if key != "seed"}


def _labels(runs: Sequence[Run]) -> list[str]:
    """A label for each, extended where another run has the same label and setting."""
    plain = [_label(run) for run in runs]
    pairs = [(run.setting, label) for run, label in zip(runs, plain, strict=True)]
    labels = []
    for run, label, pair in zip(runs, plain, pairs, strict=True):
        alike = [r for r, other in zip(runs, pairs, strict=True) if other == pair]
        if len(alike) > 1:
            label = f"{label} ({_difference(run, alike) or run.name})"
        labels.append(label)
    if len({(run.setting, label) for run, label in zip(runs, labels, strict=True)}) < len(runs):
        labels = [f"{label} ({run.name})" for run, label in zip(runs, labels, strict=True)]
    return labels


def _label(run: Run) -> str:
    if run.entry.get("label"):
        return str(run.entry["label"])
    if run.method is None:
        return run.model if run.command == "eval" else f"{run.command} {run.name}"
    return describe(run.method)


def _difference(run: Run, others: Sequence[Run]) -> str:
    settings = [flat(_seedless(other)) for other in others]
    own = flat(_seedless(run))
    keys = [key for key in own if len({json.dumps(setting.get(key)) for setting in settings}) > 1]
    return ", ".join(f"{key.rpartition('.')[2]} {own[key]}" for key in keys[:3])


def describe(method: Mapping[str, Any]) -> str:
    """A method and the hyper-parameters worth naming.

    Example:
      >>> describe({"name": "clip_higher", "low": 0.2, "high": 0.28, "side": "outward"})
      'clip_higher low=0.2 high=0.28'
      >>> describe({"name": "atr", "delta": 0.05, "level": "sequence"})
      'atr δ=0.05 level=sequence'
    """
    kind = "controller" if "controller" in method and "name" not in method else "name"
    name = str(method.get(kind, "unnamed"))
    cls = methods().get(name)
    defaults = {f.name: f.default for f in fields(cls)} if cls else {}  # type: ignore[arg-type]
    arguments = {**{k: defaults[k] for k in THRESHOLDS if k in defaults}, **method}
    arguments.pop(kind, None)
    parts = {
        _SYMBOLS.get(key, key): describe(value) if isinstance(value, Mapping) else value
        for key, value in arguments.items()
        if (key in THRESHOLDS and value is not None) or defaults.get(key, ...) != value
    }
    texts = {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in parts.items()}
    return " ".join([name, *(f"{key}={text}" for key, text in texts.items())])
