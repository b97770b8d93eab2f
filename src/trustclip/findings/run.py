"""The findings of one run: its subjects, in the order in which they are read."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from trustclip.findings import (
    entropy,
    gate,
    movement,
    sampler,
    scores,
    shadows,
    signals,
    start,
)
from trustclip.findings.course import Course
from trustclip.findings.finding import Finding
from trustclip.findings.groups import describe
from trustclip.findings.rows import values
from trustclip.logs.run import Run
from trustclip.support.inside import Inside
from trustclip.support.text import join_words, plural

Subject = Callable[[Course], Iterable[Finding]]

#: The subjects of a run, in this order. A new subject is one file and its entry here.
SUBJECTS: tuple[Subject, ...] = (
    lambda course: start.of_run(course.run),
    gate.of_run,
    movement.of_run,
    entropy.of_run,
    sampler.of_run,
    movement.drift,
    signals.of_run,
    lambda course: scores.of_run(course.run),
    shadows.of_run,
    lambda course: _notices(course.run),
)
#: What a log must hold to be called usual: any metric of each kind.
_READ = {
    "a share of clipped tokens": ("gated", "gated/positive_above", "gated/negative_below"),
    "a ratio or divergence of the update": ("k1", "k3", "ratio", "ratio_q99", "off_policy"),
    "a distance from the sampler": ("sampler/k3", "sampler/abs", "sampler/k1"),
}


def of_run(run: Run) -> list[Finding]:
    """All findings of a run: on the page, in ``explain``, at the end of a training."""
    course = Course(run)
    findings = [_subject(course)]
    for subject in SUBJECTS:
        findings += subject(course)
    findings[1:1] = _shortened(course.run)
    return [*findings, *_usual(course, findings), *_of_files(course)]


def _subject(course: Course) -> Finding:
    run, log, rows = course.run, course.log, course.rows
    state = "" if run.finished else ", unfinished"
    if log is not None:
        size = plural(len(log.rows), course.row)
        if log.digest:
            size += f", {log.digest.completions:,} completions, {log.digest.tokens:,} tokens"
        text = f"{run.name}: {log.trainer}, {log.kind}, {size}{state}."
    elif run.method is None:
        steps = max((row["step"] for row in run.metrics.get("sft", ())), default=0)
        tuned = f"{steps} steps" if steps and not run.evaluations else "an evaluation"
        many = f"{plural(run.last_step, 'update')}{state}" if rows else tuned
        text = f"{run.name}: {run.command} of {run.model}, {many}. It has no constraint."
    else:
        none = "its log holds no update" if run.finished else "no update logged yet"
        many = f"{plural(run.last_step, 'update')}{state}" if rows else none
        text = f"{run.name}: {describe(run.method)} on {run.model}, {many}."
    return Finding("run/subject", "note", text)


def _notices(run: Run) -> Iterator[Finding]:
    """The warnings of the guards that a run has logged, oldest first."""
    for row in run.notices:
        kind, text = f"guard/{row.get('notice')}", str(row.get("text"))
        yield Finding(kind, "warning", text, step=row["step"])


def _shortened(run: Run) -> Iterator[Finding]:
    """Records that are shorter than when the run ended, so that what is said is of a part."""
    recorded = run.summary.get("hashes")
    for name, at_end in recorded.items() if isinstance(recorded, Mapping) else ():
        whole = at_end.get("bytes") if isinstance(at_end, Mapping) else None
        if not isinstance(whole, int) or not name.endswith(".jsonl"):
            continue
        file = Inside(run.path).file(name)
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            text = f"{name} is missing. It had {whole:,} bytes when the run ended."
        elif size < whole:
            text = (
                f"{name} has been cut: it has {size:,} of the {whole:,} bytes that it had when the "
                "run ended. These findings rest on the part that is left."
            )
        else:
            continue
        advice = "restore the file; trustclip verify names every file that has changed."
        yield Finding("files/cut", "fault", text, advice)


def _usual(course: Course, findings: Iterable[Finding]) -> Iterator[Finding]:
    """That nothing calls for advice, of a run whose constraint could have called for some."""
    kinds = {one.kind for one in findings}
    if any(one.troubles or one.advice for one in findings):
        return
    if course.log is not None:
        kinds = list(_READ.items())[: 2 if course.log.two_policies else 3]
        lacking = [what for what, names in kinds if not any(values(course.rows, n) for n in names)]
        if not lacking:
            yield Finding("run/usual", "ok", "This log shows nothing unusual.")
        elif len(lacking) == len(kinds):
            text = "Nothing can be said of the constraint, good or bad."
            yield Finding("run/unknown", "warning", text, f"log {join_words(lacking)}.")
        else:
            text = (
                "This log shows nothing unusual, but it cannot show whether the run is healthy: it "
                f"lacks {join_words(lacking)}."
            )
            yield Finding("run/unknown", "note", text, f"log {join_words(lacking)}.")
    elif "entropy/solved" in kinds:
        text = "Nothing unusual was found: entropy fell as answers became correct."
        yield Finding("run/usual", "ok", text)
    elif course.full and "gate/often" not in kinds:
        advice = "compare with other methods over several seeds (trustclip suite)."
        yield Finding("run/usual", "ok", "Nothing unusual was found.", advice)


def _of_files(course: Course) -> Iterator[Finding]:
    """The state of the files, and what those of another trainer cannot answer."""
    # That an unfinished run is one, the first remark of it, stands in the first sentence.
    for remark in course.run.remarks[not (course.log or course.run.finished) :]:
        yield Finding("files/remark", "note", f"About the files: {remark}.")
    if course.log is not None and course.log.unknown:
        text = f"This log does not say: {'; '.join(course.log.unknown)}."
        yield Finding("files/unknown", "note", text)
