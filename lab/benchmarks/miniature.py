"""Table 3 of the paper in miniature: its table and what it says, from the committed runs alone.

    trustclip report runs/table3-tiny -o report/
    cp report/figures/{scores,figure2,figure3-clip-epsilon,quadrants}.svg \\
      lab/benchmarks/table3-tiny/
    python lab/benchmarks/miniature.py

The last command needs runs.parquet alone, one row for each run of the suite: its settings, every
evaluation's answers, a digest of its completions. It writes table.md beside it and, in
docs/lab/miniature.md and benchmarks/RESULTS.md, what is between ``<!-- NAME -->`` and
``<!-- /NAME -->``.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isnan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from trustclip import stats
from trustclip.findings.comparison import LEVEL, Compared, compare
from trustclip.findings.groups import Group, group_runs, shared_answers
from trustclip.findings.learning import Learning, learning, threshold, time_of
from trustclip.findings.scores import LEFT, collapsed, mean_of
from trustclip.logs.answers import of_answers
from trustclip.logs.run import Evaluation, Run
from trustclip.logs.samples import Samples
from trustclip.stats.scores import problem_scores
from trustclip.support import parquet
from trustclip.support.text import bracket, percent
from trustclip.train.suite.table import SuiteTable
from trustclip_lab.pages import filled
from trustclip_lab.stats.equivalence import sign_flip_p

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "lab/benchmarks/table3-tiny"
PAGES = ROOT / "docs/lab/miniature.md", ROOT / "benchmarks/RESULTS.md"
COMMAND = "trustclip suite recipes/suites/table3-tiny.yaml --max-parallel 2"
#: The score whose time is reported; of its suite.
REACHES = 0.9
SAMPLES = 8
SCORES = {"mean": "Mean@8", "pass": "Pass@8"}
REFERENCE, EXACT, TWIN, NONE = "atr", "exact-twin", "twin", "none"


#: 0 or 1 by run, problem and sample.
Answers = list[list[list[int]]]


def read_runs(path: Path) -> list[Run]:
    """The runs of the committed table."""
    return [_run(path, row) for row in parquet.rows(path)]


def _run(path: Path, row: Mapping[str, Any]) -> Run:
    record = json.loads(row["record"])
    averages = {"stage": "rl", "step": row["updates"], **dict(row["means"])}
    return Run(
        path=path / row["name"],
        config=record["config"],
        environment=record["environment"],
        summary=record["summary"],
        metrics={"rl": [averages], "notice": record["notices"]},
        evaluations=[_evaluation(one) for one in row["evaluations"]],
        samples=Samples(),
        remarks=record["remarks"],
        entry=record["entry"],
    )


def _evaluation(row: Mapping[str, Any]) -> Evaluation:
    answers: dict[str, dict[str, list[int]]] = {}
    for one in row["answers"]:
        answers.setdefault(one["task"], {})[one["id"]] = [int(right) for right in one["right"]]
    scores, others = of_answers(answers), json.loads(row["others"])
    for task, part in others["tasks"].items():
        scores["tasks"][task] |= part
    scores["average"] |= others["average"]
    return Evaluation(row["update"], scores, answers, row["texts"])


class Miniature:
    """The runs of the suite, read once.

    Args:
      path: the table of runs.
    """

    def __init__(self, path: Path = FOLDER / "runs.parquet") -> None:
        self.runs: list[Run] = read_runs(path)
        self.groups: list[Group] = group_runs(self.runs)

    @cached_property
    def by(self) -> dict[str, Group]:
        """Groups by their labels."""
        return {group.label: group for group in self.groups}

    @cached_property
    def seeds(self) -> int:
        """Seeds that every constraint has."""
        return len(set.intersection(*(set(group.seeds) for group in self.groups)))

    @cached_property
    def by_mean(self) -> list[Compared]:
        """Every constraint but the twins against the reference, by Mean@8 at the end."""
        return self.comparisons("mean")

    def comparisons(self, kind: str) -> list[Compared]:
        """The same by ``"mean"`` or ``"pass"``."""
        return [one for one in compare(self.groups, kind) if one.group.label not in (EXACT, TWIN)]

    @cached_property
    def ways(self) -> dict[str, Learning]:
        """Areas, collapses and times by label."""
        pairs = zip(self.groups, learning(self.groups, REACHES), strict=True)
        return {group.label: one for group, one in pairs if one is not None}

    def fallen(self, runs: Sequence[Run]) -> stats.Interval:
        """Share of runs that collapsed."""
        return stats.rate_interval(sum(map(collapsed, runs)), len(runs))

    def detectable(self, family: int = 1) -> list[float]:
        """The smallest gap that these seeds find with 80 % power, of each comparison, sorted.

        Args:
          family: comparisons that the level is divided by.
        """
        level, gaps = 1 - (1 - LEVEL) / family, []
        for one in self.by_mean:
            a, b, strata = self.answers(one.group)
            gaps.append(stats.required(a, b, strata, level=level, same_seeds=True).detectable)
        return sorted(gaps)

    def answers(self, group: Group) -> tuple[Answers, Answers, list[str]]:
        """Answers of a group and of the reference at the end, and the task of each problem."""
        both = [*group.evaluations("final"), *self.by[REFERENCE].evaluations("final")]
        answers, strata = shared_answers(both)
        many = len(group.scored)
        return answers[:many], answers[many:], strata

    def flips(self, kind: str) -> dict[str, float]:
        """Exact p of every comparison at the end by the signs of its seeds, after Holm, by label.

        Args:
          kind: ``"mean"`` or ``"pass"``.
        """
        k = None if kind == "mean" else SAMPLES
        exact = {}
        for group in self.groups:
            if group.label != REFERENCE:
                a, b, _ = self.answers(group)
                ours, theirs = (problem_scores(stats.tally(x), k).mean(axis=1) for x in (a, b))
                exact[group.label] = sign_flip_p(ours - theirs)
        return dict(zip(exact, stats.holm(list(exact.values())).tolist(), strict=True))

    def twin_gaps(self, label: str) -> dict[int, float]:
        """A twin minus the reference at the end, of the seeds in which completions differ."""
        pairs = zip(self.by[label].runs, self.by[REFERENCE].runs, strict=True)
        return {
            ours.seed: mean_of(ours.evaluations[-1]) - mean_of(theirs.evaluations[-1])
            for ours, theirs in pairs
            if any(
                not a.texts or a.texts != b.texts
                for a, b in zip(ours.evaluations, theirs.evaluations, strict=True)
            )
        }

    def cpu_seconds(self) -> list[float]:
        """CPU seconds of each run, without its fine-tuning."""
        return [run.summary["cpu_seconds"] for run in self.runs]


def table(mini: Miniature) -> str:
    """The table that the suite writes."""
    groups, entry = group_runs(mini.runs), mini.runs[0].entry
    about = {
        "name": entry["suite"],
        "command": COMMAND,
        "reference": entry["reference"],
        "reaches": threshold(groups, REACHES),
        "seeds": sorted({run.seed for run in mini.runs}),
        "recipes": [run.config for run in mini.runs],
    }
    return SuiteTable(about, groups).markdown()


def sentences(mini: Miniature) -> list[str]:
    """What the table says."""
    return [_ends(mini), _power(mini), _twin(mini), _collapses(mini), _best(mini), _way(mini)]


def _ends(mini: Miniature) -> str:
    many = len(mini.groups) - 1
    parts = [_differing(mini, kind) for kind in SCORES]
    return (
        f"**At the end**, after Holm's correction for {many} comparisons of each score: "
        f"{'; '.join(parts)}. A constraint that is not told from `{REFERENCE}` is not shown to be "
        "its equal."
    )


def _differing(mini: Miniature, kind: str) -> str:
    comparisons, name = mini.comparisons(kind), SCORES[kind]
    differing = sorted((one for one in comparisons if one.resolved), key=_value)
    if differing:
        verb = "differs" if len(differing) == 1 else "differ"
        exact = ", ".join(f"{mini.flips(kind)[one.group.label]:.2g}" for one in differing)
        return (
            f"in {name} {', '.join(map(_gap, differing))} {verb} from `{REFERENCE}`, in points, "
            f"by Student's test; exact sign flips of the seeds give p = {exact}"
        )
    nearest = min(comparisons, key=lambda one: one.difference.p if one.difference else 1.0)
    return f"in {name} none differs from `{REFERENCE}`, and {_gap(nearest)} comes nearest to it"


def _value(one: Compared) -> float:
    return 0.0 if one.difference is None else one.difference.value


def _gap(one: Compared) -> str:
    assert one.difference is not None
    d = one.difference
    p = "p < 0.001" if one.p_holm < 0.001 else f"p = {one.p_holm:.2g}"
    return f"`{one.group.label}` {_told(d)} ({p})"


def _told(number: stats.Difference | stats.Interval) -> str:
    return f"{percent(number.value)} {bracket(number.low, number.high)}".rstrip()


def _power(mini: Miniature) -> str:
    alone, corrected = mini.detectable(), mini.detectable(len(mini.by_mean) + 1)
    return (
        f"**What {mini.seeds} seeds find** with 80 % power: gaps of {percent(median(alone), 0)} "
        f"points before the correction (median over the constraints; from "
        f"{percent(alone[0], 0)} to {percent(alone[-1], 0)}), and of "
        f"{percent(median(corrected), 0)} where it takes a comparison as hardly as it can."
    )


def _twin(mini: Miniature) -> str:
    exact, rounded = mini.twin_gaps(EXACT), mini.twin_gaps(TWIN)
    which = " and ".join(f"{seed} ({percent(gap)} points)" for seed, gap in rounded.items())
    return (
        f"**The twin** of `{REFERENCE}`, clip-higher with its bounds to fifteen digits "
        f"(0.329028, 0.422217), wrote the very completions of all seven evaluations in "
        f"{mini.seeds - len(exact)} of {mini.seeds} seeds: nothing at the token level is special "
        "to k3 but where its bounds lie. With 0.329 and 0.422 it did so in "
        f"{mini.seeds - len(rounded)} of {mini.seeds}. In the seeds {which} the two parted, once a "
        "ratio fell between a rounded bound and the exact one: so far apart may two runs end that "
        "differ in one token of one update."
    )


def _collapses(mini: Miniature) -> str:
    rates = {label: mini.fallen(group.scored) for label, group in mini.by.items()}
    whole = sum(collapsed(run) for run in mini.runs)
    most = max(rates, key=lambda label: rates[label].value)
    stable = sum(not rate.value for rate in rates.values())
    more = rates[most].value > rates[NONE].value
    highest = f" The highest is {_told(rates[most])} (`{most}`)." if more else " No rate is higher."
    return (
        f"**Collapses**, runs that ended below {percent(LEFT, 0)} % of their best evaluation: "
        f"{whole} of {len(mini.runs)}, none under {stable} of {len(rates)} constraints. In percent "
        f"of the runs: {_told(rates[REFERENCE])} with `{REFERENCE}`, {_told(rates[TWIN])} with its "
        f"rounded twin, {_told(rates[NONE])} without any constraint.{highest} Rates of "
        f"{mini.seeds} runs leave much open."
    )


def _best(mini: Miniature) -> str:
    best = {label: fmean(_bests(group)) for label, group in mini.by.items()}
    end = {label: fmean(_finals(group)) for label, group in mini.by.items()}
    top, low = max(best, key=lambda x: best[x]), min(best, key=lambda x: best[x])
    place = sorted(best, key=lambda x: -best[x]).index(NONE) + 1
    worst = min(end, key=lambda x: end[x])
    return (
        f"**The best evaluation of a run**, which the paper reports, is between "
        f"{percent(best[low])} (`{low}`) and {percent(best[top])} (`{top}`), the end between "
        f"{percent(end[worst])} (`{worst}`) and {percent(max(end.values()))}: the best hides what "
        f"was lost after it. Without any constraint it is {percent(best[NONE])}, number {place} of "
        f"{len(best)}, and the end {percent(end[NONE])}."
    )


def _bests(group: Group) -> list[float]:
    return [max(map(mean_of, run.trained)) for run in group.scored]


def _finals(group: Group) -> list[float]:
    return [mean_of(run.final) for run in group.scored if run.final is not None]


def _way(mini: Miniature) -> str:
    differing = [
        f"`{label}` {_told(way.area_minus)}"
        for label, way in sorted(mini.ways.items(), key=lambda one: _area(one[1]))
        if way.area_minus and way.area_minus.p <= 1 - LEVEL
    ]
    times = {label: way.time.value for label, way in mini.ways.items() if way.time}
    fast, slow = min(times, key=lambda x: times[x]), max(times, key=lambda x: times[x])
    which = "; ".join(differing) if differing else "none"
    late = [
        f"`{label}`"
        for label, way in mini.ways.items()
        if way.time_minus and way.time_minus.p <= 1 - LEVEL
    ]
    beside = f"; the times of {', '.join(late)} differ from its" if late else ""
    hits = sum(not isnan(time_of(run, REACHES)) for run in mini.runs)
    return (
        f"**On the way**, in the area under the learning curve, these differ from `{REFERENCE}` "
        f"after the correction, in points: {which}. {hits} of {len(mini.runs)} runs reached "
        f"{percent(REACHES, 0)} % at an evaluation, `{REFERENCE}` after {times[REFERENCE]:.0f} "
        f"updates on average, `{fast}` after {times[fast]:.0f} and `{slow}` after "
        f"{times[slow]:.0f}, runs that never did counted with all of theirs{beside}."
    )


def _area(way: Learning) -> float:
    return way.area_minus.value if way.area_minus else 0.0


def describe_runs(mini: Miniature) -> str:
    """How many runs there are, and what they took."""
    seconds, seeds = mini.cpu_seconds(), sorted({run.seed for run in mini.runs})
    return (
        f"{len(mini.runs)} runs: {len(mini.groups)} constraints on the seeds {seeds[0]} to "
        f"{seeds[-1]}, from one fine-tuned model, 96 updates in 6 generations of 16, learning rate "
        f"3e-4. {fmean(seconds):.0f} CPU seconds a run on average ({min(seconds):.0f} to "
        f"{max(seconds):.0f}, as the runs recorded, the start of the "
        f"process left out), {sum(seconds) / 60:.0f} CPU minutes in all."
    )


def headline(mini: Miniature) -> str:
    """What docs/lab/paper.md says of it."""
    parts = [_names(mini, kind) for kind in SCORES]
    gap = percent(median(mini.detectable()), 0)
    return (
        f"Of {len(mini.groups)} constraints with {mini.seeds} seeds each, at one learning rate, "
        f"Holm's correction tells from ATR at the end {' and '.join(parts)}; gaps of {gap} points "
        "of Mean@8 are found with 80 % power before it."
    )


def _names(mini: Miniature, kind: str) -> str:
    exact = mini.flips(kind)
    names = [
        f"`{one.group.label}` (p = {one.p_holm:.2g}; exact sign flips {exact[one.group.label]:.2g})"
        for one in mini.comparisons(kind) if one.resolved
    ]  # fmt: skip
    return f"{', '.join(names) or 'none'} by {SCORES[kind]}"


def blocks(mini: Miniature) -> dict[str, str]:
    """What the pages say between their marks."""
    bullets = "\n".join(f"- {one}" for one in sentences(mini))
    return {"miniature-runs": describe_runs(mini), "miniature-says": bullets}


def main() -> None:
    """Write the table, and the parts of both pages."""
    mini = Miniature()
    (FOLDER / "table.md").write_text(table(mini), encoding="utf-8")
    texts = blocks(mini)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), texts), encoding="utf-8")
    print(texts["miniature-says"])
    print(f"docs/lab/paper.md: {headline(mini)}")


if __name__ == "__main__":
    main()
