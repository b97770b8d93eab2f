"""``trustclip compare``: runs against each other, in words, JSON, LaTeX and a figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from trustclip.findings.comparison import Compared, compare, difference_on, points
from trustclip.findings.conditions import require_equal_problems
from trustclip.findings.differences import cautions
from trustclip.findings.facts import LEVEL
from trustclip.findings.groups import Estimate, Group, group_runs, names, of_answers, units
from trustclip.findings.run import of_run
from trustclip.logs.choice import Choice
from trustclip.logs.reader import Run, find, read_run
from trustclip.logs.score_files import own_paths, read_all
from trustclip.report.draw.plots import forest_figure
from trustclip.report.results import p_text
from trustclip.report.tables import latex_text
from trustclip.stats import Difference, Interval
from trustclip.support.jsonl import plain, write_bytes
from trustclip.support.names import some, unknown
from trustclip.support.terminal import print_table
from trustclip.support.text import bracket, one_line, percent, plural, title_of

#: These verdicts are about a method; all others are about its difference from the reference.
STATES = ("identical", "not compared")


def print_comparison(
    folders: Sequence[Path],
    console: Console,
    choice: Choice | None = None,
    step: int | None = None,
    form: str = "text",
    figure: Path | None = None,
) -> list[Compared]:
    """Compare evaluations of runs, of suites or of other programs, and print what comes out.

    The method of the first is the reference. Evaluations are those of the update ``step``, or each
    run's last. The form is ``"text"`` (scores, differences and verdicts), ``"json"`` or ``"latex"``
    (a row for each comparison); ``figure`` is the file of a drawing, SVG or PDF.

    Returns:
      The comparisons: first those of Mean@K, then those of Pass@K.

    Raises:
      ValueError: fewer than two methods, or a run twice; a run without evaluation samples; runs
        evaluated at different updates or on different problems.
    """
    choice = choice or Choice()
    paths = list(find(folders)) if own_paths(folders, choice) else list(folders)
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"{twice[0]} is given twice; a comparison needs two runs.")
    groups = _arms([_at_step(run, step) for run in read_all(paths, choice)])
    runs = [run for group in groups for run in group.scored]
    _require_equal_updates(runs)
    require_equal_problems(runs)
    for group in groups:
        if not group.metrics:
            raise ValueError(f"the runs of {group.label} have different numbers of samples.")
    by_kind = {kind: compare(groups, kind) for kind in ("mean", "pass")}
    comparisons = [one for those in by_kind.values() for one in those]
    notes = [
        f"{some([run.path for run in runs if remark in run.remarks])}: {remark}."
        for remark in dict.fromkeys(remark for run in runs for remark in run.remarks)
    ]
    notes += [caution.text for caution in cautions(groups, comparisons)]
    if figure is not None:
        _draw(groups, by_kind["mean"], figure)
    if form == "json":
        console.print(_as_json(groups, comparisons, notes), soft_wrap=True, highlight=False)
    elif form == "latex":
        console.print(_as_latex(comparisons), soft_wrap=True, highlight=False)
    else:
        console.print(_heading(groups, by_kind), highlight=False)
        print_table(console, _table(groups, by_kind), keys=3)
        for line in [*map(_said, comparisons), *notes]:
            console.print(line, highlight=False)
    return comparisons


def _said(one: Compared) -> str:
    """The verdict of a comparison, and the gap that it could have found."""
    label, verdict = one.group.label, one.verdict
    if label not in verdict:
        verdict = f"{label}{' is' if verdict.startswith(STATES) else ':'} {verdict}"
    found = f" These runs find gaps of {100 * one.detectable:.1f} points in 4 of 5 cases."
    known = one.resolved and one.detectable < float("inf")
    return f"{title_of(one.metric)}: {verdict}.{found if known else ''}"


def _at_step(run: Run, step: int | None) -> Run:
    """A run cut to the evaluation to compare; refused if the answers are no longer stored."""
    if step is not None:
        steps = [e.step for e in run.trained]
        if step not in steps:
            at = ", ".join(map(str, steps)) or "none"
            raise ValueError(f"{run.path} was not evaluated at update {step}; updates: {at}.")
        run = replace(run, evaluations=[e for e in run.evaluations if e.step == step])
    if run.samples.odd:
        raise ValueError(f"{run.path}: {some(run.samples.odd)}; an answer is 0 or 1.")
    if run.final is None:
        raise ValueError(f"{run.path} holds no evaluation after training.")
    if not run.final.answers and not run.final.number:
        raise ValueError(f"{run.path} no longer holds the samples of its last evaluation.")
    return run


def _arms(runs: Sequence[Run]) -> list[Group]:
    """One group per method with its seeds pooled; copies of a run form separate groups."""
    groups: list[Group] = []
    for group in group_runs(runs):
        distinct = len(set(group.seeds)) == len(group.runs)
        groups += [group] if distinct else [replace(group, runs=[run]) for run in group.runs]
    if len(groups) < 2:
        arms = "; ".join(f"{g.label}, seeds {', '.join(map(str, g.seeds))}" for g in groups)
        raise ValueError(
            f"a comparison needs runs of at least two methods or settings; got one ({arms}). "
            "`trustclip report` shows the seeds of one method."
        )
    labels = names(groups)
    if len(set(labels)) < len(labels):
        short = len({run.name for run in runs}) == len(runs)
        labels = [
            f"{label} ({', '.join(run.name if short else str(run.path) for run in group.runs)})"
            for label, group in zip(labels, groups, strict=True)
        ]
    # One setting for all: runs named together are compared, whatever model each started from.
    groups = [
        replace(group, label=label, setting="", is_reference=runs[0] in group.runs)
        for label, group in zip(labels, groups, strict=True)
    ]
    return sorted(groups, key=lambda group: not group.is_reference)


def _require_equal_updates(runs: Sequence[Run]) -> None:
    last = {run.path: run.final.step for run in runs if run.final and run.final.step is not None}
    if len(set(last.values())) > 1:
        ends = ", ".join(f"{path} at {step}" for path, step in last.items())
        common = set.intersection(*({e.step for e in r.trained} for r in runs if r.path in last))
        steps = sorted(step for step in common if step is not None)
        hint = f" Compare them with --step {steps[-1]}." if steps else ""
        raise ValueError(f"the last evaluations are of different updates: {ends}.{hint}")


def _heading(groups: Sequence[Group], by_kind: Mapping[str, Sequence[Compared]]) -> str:
    finals = groups[0].evaluations("final")
    at = f" at update {finals[0].step}" if finals[0].step is not None else ""
    comparisons = by_kind["mean"]
    paired = [c for c in comparisons if c.same_seeds]
    by = units(groups, seeds=any(c.seeds > 1 for c in paired))
    how = f", paired by {by}" if by else ""
    if any(c.seeds < max(len(c.group.scored), len(c.reference.scored)) for c in paired):
        how += ", over the seeds that both have"
    tests = sum(c.difference is not None and c.p_holm == c.p_holm for c in comparisons)
    names = [title_of(those[0].metric) for those in by_kind.values() if those]
    apart = f", and those in {names[1]} apart" if len(names) > 1 else ""
    holm = f"Holm's correction counts {plural(tests, 'comparison')} in {names[0]}{apart}"
    return (
        f"Scores{at} are in {groups[0].scale}. Differences are to {groups[0].label}{how}. "
        f"Brackets hold {100 * LEVEL:.0f} % intervals. {holm if tests else 'No test is possible'}."
    )


def _table(groups: Sequence[Group], by_kind: Mapping[str, Sequence[Compared]]) -> Table:
    """A row for each score and method; of several tasks first the average, then each."""
    lost = any(group.lost for group in groups)
    unit = "%" if groups[0].scale == "percent" else "value"
    heads = "score", "task", "method", "seeds", *(["lost"] * lost), unit, "difference", "p (Holm)"
    table = Table(*(Column(head, overflow="fold") for head in heads), box=None, pad_edge=False)
    tasks = groups[0].evaluations("final")[0].tasks
    for kind, comparisons in by_kind.items():
        by_label = {c.group.label: c for c in comparisons}
        # Pass@k is of the k that is compared.
        of_k = [c.metric for c in comparisons if kind == "pass" and c.metric.startswith("pass@")]
        for task in [None, *tasks] if len(tasks) > 1 else [None]:
            for group in groups if comparisons else ():
                metric = of_k[0] if of_k else group.metrics[0 if kind == "mean" else 1]
                name = task or ("average" if len(tasks) > 1 else tasks[0])
                cells = [title_of(metric), name, group.label, str(len(group.scored))]
                cells += [group.lost] if lost else []
                e = _estimate(group, task, metric)
                cells.append(f"{percent(e.value)} {bracket(e.low, e.high)}".rstrip() if e else "-")
                if c := by_label.get(group.label):
                    d = c.difference if task is None else difference_on(c, kind, task)
                    cells.append(points(d) if d else "-")
                    # The average is what is tested; the tasks show where it comes from.
                    cells.append(p_text(c.p_holm) if task is None else "")
                table.add_row(*cells)
    return table


def _estimate(group: Group, task: str | None, metric: str) -> Estimate | Interval | None:
    """The score of a group, also of a k below its number of samples."""
    if metric in group.metrics:
        return group.estimate(task, metric)
    found = of_answers(group.evaluations("final"), task, metric)
    return Interval(found.value) if found is not None and group.unsteady else found


def _as_json(groups: Sequence[Group], comparisons: Sequence[Compared], notes: Sequence[str]) -> str:
    """Scores and comparisons, in shares of 1 or their own unit; null where not known."""
    factor = 1 if groups[0].scale == "percent" else 100
    scores = [
        {"arm": group.label, "score": metric, "runs": len(group.scored), **_times(factor, estimate)}
        for group in groups
        for metric in group.metrics
        if (estimate := group.estimate(None, metric)) is not None
    ]
    found = [
        {
            "score": one.metric,
            "arm": one.group.label,
            "runs": one.seeds,
            "paired_by_seed": one.same_seeds,
            "difference": one.difference and _times(factor, one.difference),
            "p_holm": one.p_holm,
            "detectable": factor * one.detectable,
            "lost_counted_as_wrong": one.counted,
            "resolved": one.resolved,
            "verdict": one.verdict,
        }
        for one in comparisons
    ]
    whole = {"reference": groups[0].label, "scores": scores, "comparisons": found, "notes": notes}
    return json.dumps(plain(whole), indent=2, ensure_ascii=False)


def _times(factor: int, numbers: Estimate | Difference) -> dict[str, float | None]:
    """The fields of an estimate or a difference, all but the p-value in another unit."""
    return {k: v if v is None or k == "p" else factor * v for k, v in vars(numbers).items()}


def _as_latex(comparisons: Sequence[Compared]) -> str:
    """A row for each comparison: arm, score, runs, difference with its interval, corrected p."""
    rows = ["% arm & score & runs & difference [95 % interval], points & p (Holm)"]
    for one in comparisons:
        gap = "-" if one.difference is None else points(one.difference)
        cells = [one.group.label, title_of(one.metric), str(one.seeds), gap, p_text(one.p_holm)]
        rows.append(" & ".join(map(latex_text, cells)) + r" \\")
    return "\n".join(rows)


def _draw(groups: Sequence[Group], compared: Sequence[Compared], path: Path) -> None:
    """Draw scores and differences with their intervals into a file, SVG or PDF.

    Raises:
      ValueError: the file has another ending.
    """
    if path.suffix not in (".svg", ".pdf"):
        raise ValueError(unknown("format", path.suffix, (".svg", ".pdf")))
    from trustclip.report.draw import figures

    figure = forest_figure(groups, compared)
    assert figure is not None  # runs without a score are refused before
    picture = figures.draw(figure)
    write_bytes(path, picture.svg.encode() if path.suffix == ".svg" else picture.pdf())


def explain(folder: Path) -> list[str]:
    """Describe what the gate did in a run directory or a log of another trainer.

    Returns:
      Paragraphs, each one line without control characters; the last ones suggest what to try next.

    Raises:
      ValueError: neither, a suite of several runs, or a run that has logged nothing.
    """
    folders = list(find([folder]))
    if len(folders) > 1:
        each = some([path.name for path in folders])
        raise ValueError(f"{folder} contains {len(folders)} runs; choose one: {each}.")
    run = read_run(folders[0])
    if run.silence:
        raise ValueError(run.silence)
    findings = of_run(run)
    lines = [finding.line for finding in findings]
    lines += [f"Next: {finding.advice}" for finding in findings if finding.advice]
    # Names and warnings come from files: none of them may control a terminal.
    return [one_line(line) for line in lines]
