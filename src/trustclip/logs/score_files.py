"""Scores and curves that other programs write, each as rows of the table of `scores`."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from trustclip.logs import tensorboard, wandb
from trustclip.logs.choice import Choice
from trustclip.logs.reader import read_runs
from trustclip.logs.run import Run
from trustclip.logs.score_forms import FORMS, PLAIN, Form, Row
from trustclip.logs.scores import Score, by_rule, in_families, number_of, runs_of
from trustclip.support import parquet
from trustclip.support.inside import Inside
from trustclip.support.jsonl import scan
from trustclip.support.names import some, unknown
from trustclip.support.reading import LONGEST, lines

SUFFIXES = (".jsonl", ".csv", ".parquet", ".eval")
#: Files of scores in a folder that are read.
MOST_FILES = 2000


class Given(NamedTuple):
    """A path as it was given: ``ARM@SEED=PATH``, ``ARM=PATH`` or a path."""

    path: Path
    arm: str = ""
    seed: str = ""


def given(text: Path) -> Given:
    """The name of an arm and a seed before a path, where there are any.

    Example:
      >>> one = given(Path("atr@1=out/results.jsonl"))
      >>> one.arm, one.seed, str(one.path)
      ('atr', '1', 'out/results.jsonl')
    """
    match = re.fullmatch(r"([^=/]+)=(.+)", str(text))
    if match is None or text.exists():
        return Given(text)
    arm, _, seed = match[1].partition("@")
    return Given(Path(match[2]), arm, seed)


def read_all(paths: Sequence[Path], choice: Choice) -> list[Run]:
    """Runs of our own, and those that scores of other programs make.

    Raises:
      ValueError: a path is neither, or a row is not what it should be.
    """
    each = [given(path) for path in paths]
    foreign = [one for one in each if _is_foreign(one, choice)]
    own = read_runs([one.path for one in each if one not in foreign])  # names one that is missing
    if own and foreign:
        raise ValueError(
            f"{foreign[0].path} holds scores of another program; compare them with scores alone, "
            "not with run directories."
        )
    runs = [in_families(run, choice) for run in own] or runs_of(_rows(foreign, choice), choice)
    answered = choice.by != "end" and not any(run.final and run.final.number for run in runs)
    return [by_rule(run, choice.by) for run in runs] if answered else runs


def own_paths(paths: Sequence[Path], choice: Choice) -> bool:
    """Whether every path is a run directory, a suite or a log."""
    return not any(_is_foreign(given(path), choice) for path in paths)


def _is_foreign(one: Given, choice: Choice) -> bool:
    if (one.path / "config.yaml").is_file() or (one.path / "suite.yaml").is_file():
        return False
    if choice.curve or choice.column_of or one.arm or one.path.suffix == ".csv":
        return True
    return any(True for file in _files(one.path) if _form(next(_raw(file), {})))


def _rows(paths: Sequence[Given], choice: Choice) -> Iterator[Score]:
    paths = [*dict.fromkeys(paths)]
    names = [arm or _name(path) for path, arm, seed in paths if not seed]
    for number, (path, arm, seed) in enumerate(paths, start=1):
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}.")
        name = arm or _name(path)
        if not seed and names.count(name) > 1:
            if not arm:
                raise ValueError(f"several paths have the name {name!r}; name each: A={path}.")
            seed = f"{number} of those given"
        one = Given(path, name, seed)
        if choice.curve:
            yield from _points(one.path, one.arm, one.seed, choice)
            continue
        files = [*_files(one.path)]
        if not files:
            raise ValueError(f"{one.path} holds no file of scores: {', '.join(SUFFIXES)}.")
        for file in files:
            yield from _of_file(file, one, choice)


def _points(path: Path, arm: str, seed: str, choice: Choice) -> Iterator[Score]:
    """Points of the curve ``choice.curve`` in a log of one run, or in a folder with one.

    Raises:
      ValueError: there is no such log, or no such curve in it.
    """
    names: set[str] = set()
    found = False
    for step, values in _logged(path):
        names |= values.keys()
        if (value := values.get(choice.curve)) is not None and abs(value) < 1e12:
            found = True
            yield Score(str(path), arm, seed or "0", step, choice.curve, None, None, value)
    if not found:
        raise ValueError(f"{path}: {unknown('curve', choice.curve, names)}")


def _logged(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    folders = [folder for folder in sorted(path.glob("**/")) if Inside(path).holds(folder)]
    events = [path] if "tfevents" in path.name else [
        file for folder in folders for file in tensorboard.files(folder)
    ]  # fmt: skip
    runs = [path] if path.suffix == ".wandb" else [
        file for folder in folders for file in Inside(folder).files("*.wandb")
    ]  # fmt: skip
    if len(runs) + len({file.parent for file in events}) != 1:
        raise ValueError(
            f"{path} holds {len(runs)} offline runs of wandb and {len(events)} event files of "
            "TensorBoard; give the log of one run. Curves in CSV or JSON lines are given with "
            "--columns step=...,score=..."
        )
    for file in events:
        for step, tag, value in tensorboard.events(file):
            if isinstance(value, float):
                yield step, {tag: value}
    for file in runs:
        yield from wandb.history(file, [])


def _name(path: Path) -> str:
    """Name of an arm: of its folder, or of its file where that is not the program's own."""
    if path.is_dir():
        return path.resolve().name
    generic = re.fullmatch(
        r"\d+|results|traces|trajectories|samples_.*|details_.*|eval_.*", path.stem
    )
    return path.resolve().parent.name if generic else path.stem


def _files(path: Path) -> Iterator[Path]:
    """A file, or the files of scores in a folder."""
    if path.is_file():
        if path.suffix in SUFFIXES:
            yield path
        return
    found = [
        file
        for suffix in SUFFIXES
        for depth in ("*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*")
        for file in sorted(path.glob(depth + suffix))
        if Inside(path).holds(file) and file.is_file()
    ]
    if len(found) > MOST_FILES:
        raise ValueError(f"{path} holds {len(found)} files of scores; at most {MOST_FILES}.")
    yield from found


def _of_file(path: Path, one: Given, choice: Choice) -> Iterator[Score]:
    rows = enumerate(_raw(path), start=1)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} holds no row.")
    form = _form(first[1]) or PLAIN
    columns: dict[str, str] = {}
    task = re.fullmatch(form.path, path.stem) if form.path else None
    name = task[1] if task else "scores"
    fixed = Score("", one.arm, one.seed or "0", None, name, None, None, None)
    filters = set()
    for number, written in chain([first], rows):
        row = form.flat(written)
        if row is None:
            continue
        columns = columns or _columns(path, form, row, choice)
        filters.add(row.get("filter"))
        if form.name == "lm-eval" and len(filters) > 1 and "filter" not in choice.values:
            raise ValueError(
                f"{path} has scores of the filters {some(sorted(map(str, filters)))}; choose one, "
                f"such as --where filter={sorted(map(str, filters))[0]}."
            )
        yield from _of_row(path, (number, row), form, columns, fixed, choice)


def _columns(path: Path, form: Form, row: Row, choice: Choice) -> dict[str, str]:
    """The column of each part; refused where one that is named is not there."""
    found = {
        part: next(name for name in names if name in row)
        for part, names in form.columns.items()
        if any(name in row for name in names)
    }
    named = {**choice.column_of}
    if choice.cluster and not choice.in_ids:
        named["family"] = choice.cluster
    if form.score is not None:
        named.pop("score", None)
    for name in (*named.values(), *choice.values):
        if name not in row:
            raise ValueError(f"{path}: {unknown('column', name, row)}")
    found |= named
    if "score" not in found and form.score is None:
        raise ValueError(
            f"{path} has the columns {some(list(row), 12)}, and none is called `score`; say which "
            "is what, such as --columns arm=model,seed=run,problem=id,score=correct."
        )
    return found


def _of_row(
    path: Path,
    numbered: tuple[int, Row],
    form: Form,
    columns: Mapping[str, str],
    fixed: Score,
    choice: Choice,
) -> Iterator[Score]:
    number, row = numbered
    where = f"{path}, row {number}"
    if any(str(row.get(name)) != value for name, value in choice.values.items()):
        return

    def part(name: str, default: object = None) -> Any:
        return row.get(columns[name], default) if name in columns else default

    lost = form.lost and row.get(form.lost)
    if form.score is not None and not lost:
        try:
            score = form.score(row, choice.column_of.get("score", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{where}: {error}") from None
    else:
        score = part("score")
    problem, sample, step = part("problem"), part("sample"), part("step")
    if "problem" in columns and problem in (None, ""):
        raise ValueError(f"{where} names no problem.")
    if step is not None:
        try:
            step = int(str(step).removesuffix(".0"))  # a whole number in a column of floats
        except ValueError:
            raise ValueError(f"{where}: the step {str(step)[:40]!r} is no whole number.") from None
    of_curve = problem is None
    arm = part("arm")
    common = fixed._replace(
        where=where,
        arm=fixed.arm if arm in (None, "") else str(arm),
        seed=fixed.seed if part("seed") is None else str(part("seed")),
        step=step,
        task=str(part("task", fixed.task)),
        problem=None if of_curve else _identity(problem),
        sample="only" if form.once else sample if isinstance(sample, int | None) else str(sample),
        family=None if part("family") is None else str(part("family")),
    )
    if lost:
        yield common
    elif "of" in columns:
        yield from _counted(common, score, part("of"))
    else:
        value = _plain(score, where) if of_curve else number_of(score, where, choice.right)
        yield common._replace(score=value)


def _identity(problem: object) -> str:
    """An id: a text or number; of lighteval the task's own id in the problem, or its text."""
    if isinstance(problem, Mapping):
        problem = problem.get("id") or problem.get("query") or problem
    return problem if isinstance(problem, str) else json.dumps(problem, default=str)


def _plain(score: object, where: str) -> float | None:
    """A value of a curve, which may be any finite number; None where it is missing."""
    try:
        value = float(str(score)) if score not in (None, "") else float("nan")
    except ValueError:
        raise ValueError(f"{where}: the score {str(score)[:40]!r} is no number.") from None
    return value if abs(value) < 1e12 else None


def _counted(row: Score, right: object, of: object) -> Iterator[Score]:
    """Rows of so many right answers out of so many."""
    try:
        hits, count = (int(str(value)) for value in (right, of))
    except ValueError:
        hits, count = 1, 0
    if not 0 <= hits <= count <= 10**6:
        raise ValueError(f"{row.where}: {right} and {of} must be counts, right answers of all.")
    for number in range(count):
        yield row._replace(sample=number, score=float(number < hits))


def _form(row: Row) -> Form | None:
    """The program that wrote a row; None where it may be any table."""
    return next((form for form in (*FORMS, PLAIN) if form.needs <= row.keys()), None)


def _raw(path: Path) -> Iterator[Row]:
    """Rows of a file of any kind, within the bounds of `trustclip.support.reading`."""
    if path.suffix == ".csv":
        yield from _csv(path)
    elif path.suffix == ".parquet":
        yield from parquet.rows(path)
    elif path.suffix == ".eval":
        yield from _inspect(path)
    else:
        for line in scan(path):
            if line.row is None and not line.torn:
                raise ValueError(f"{path}, line {line.number}: this is no JSON object.")
            if line.row is None:
                raise ValueError(f"{path} is cut: its last line is half written.")
            yield line.row


def _csv(path: Path) -> Iterator[Row]:
    """Rows of a CSV file by the names in its first line; a short row is one that was cut."""
    sign = max(b",;\t", key=next(lines(path), b"").count)  # of equal ones the comma
    text = (line.decode("utf-8-sig") for line in lines(path))
    csv.field_size_limit(LONGEST)
    reader = csv.reader(text, delimiter=chr(sign))
    try:
        head = next(reader, [])
        for number, cells in enumerate(reader, start=1):
            if cells and len(cells) != len(head):
                raise ValueError(
                    f"{path}, row {number} has {len(cells)} cells, and its head {len(head)}: it is "
                    f"cut, or has a {chr(sign)!r} without quotes."
                )
            if cells:
                yield dict(zip(head, cells, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as CSV in UTF-8: {error}.") from error


def _inspect(path: Path) -> Iterator[Row]:
    """Samples of a log of Inspect, by its own package."""
    try:
        from inspect_ai.log import read_eval_log  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"{path} is a log of Inspect; install inspect-ai to read it.") from None
    try:
        log = read_eval_log(str(path))
    except Exception as error:
        raise ValueError(f"{path} cannot be read by inspect_ai: {error}.") from error
    for sample in log.samples or ():
        scores = {name: score.value for name, score in (sample.scores or {}).items()}
        yield {
            "task": log.eval.task,
            "sample_id": sample.id,
            "epoch": sample.epoch,
            "scores": scores,
            "error": None if scores else sample.error or "no score",
        }
