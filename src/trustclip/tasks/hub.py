"""Known problem sets on the Hugging Face hub, and how a row of any source becomes a problem."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trustclip.tasks.problem import Problem


@dataclass(frozen=True)
class Fields:
    """Columns a row may keep its parts in: the first one present and not null is taken.

    A dot enters a nested column: ``"reward_model.ground_truth"``.

    Args:
      id: names of the identifier.
      problem: names of the problem text, or of a chat with one user message.
      answer: names of the gold answer. A text with ``#### n`` (GSM8K) is a worked solution
        whose gold is ``n``; the same holds for ``solution`` where no answer column stands.
      solution: names of the worked solution; a value that is no text is left out.

    Example:
      >>> Fields().problem
      ('problem', 'question', 'prompt')
    """

    id: tuple[str, ...] = ("id", "unique_id", "uuid", "source_id", "extra_info.index")
    problem: tuple[str, ...] = ("problem", "question", "prompt")
    answer: tuple[str, ...] = (
        "answer",
        "expected_answer",
        "ground_truth",
        "reward_model.ground_truth",
    )
    solution: tuple[str, ...] = ("solution", "generated_solution")


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub, with the rules its rows obey.

    Args:
      path: hub id, ``owner/name``.
      split: default split.
      config: configuration name, or None for the default one.
      fields: the columns.
      kind: ``"benchmark"`` (every row counts: none may be bad), ``"rl"`` (training problems), or
        ``"sft"`` (worked solutions: rows without a numeric gold are left out, and one problem may
        stand with several solutions).
      integer: every gold is an integer of at most 2^53 in size. Larger ones went through a
        float on their way and are wrong in their last digits.
    """

    path: str
    split: str = "train"
    config: str | None = None
    fields: Fields = field(default_factory=Fields)
    kind: Literal["benchmark", "rl", "sft"] = "rl"
    integer: bool = False


HUB_SOURCES: Mapping[str, HubSource] = {
    # Its `id` column repeats (49 distinct values in 83 rows), hence row numbers as ids.
    "amc23": HubSource(
        "AI-MO/aimo-validation-amc", fields=Fields(id=()), kind="benchmark", integer=True
    ),
    "aime24": HubSource("HuggingFaceH4/aime_2024", kind="benchmark", integer=True),
    "aime25": HubSource("math-ai/aime25", split="test", kind="benchmark", integer=True),
    "math500": HubSource("HuggingFaceH4/MATH-500", split="test", kind="benchmark"),
    "gsm8k": HubSource("openai/gsm8k", split="test", config="main", kind="benchmark", integer=True),
    # About 1.79 M rows: 17,917 problems, each about a hundred times.
    "dapo": HubSource("BytedTsinghua-SIA/DAPO-Math-17k", integer=True),
    "dapo_en": HubSource(
        "open-r1/DAPO-Math-17k-Processed",
        config="en",
        # Here `solution` holds the bare gold.
        fields=Fields(answer=("solution",), solution=()),
        integer=True,
    ),
    "openmath": HubSource("unsloth/OpenMathReasoning-mini", split="cot", kind="sft"),
}

DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'

MAX_PROBLEM_CHARS = 32_768
MAX_ANSWER_CHARS = 256
MAX_ID_CHARS = 256
LARGEST_EXACT_INTEGER = 2**53

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_INTEGRAL_FLOAT = re.compile(r"([+-]?\d+)\.0+", re.ASCII)
_INTEGER_WRAPPING = re.compile(r"^\$|\\boxed\{|\}$|\^\{?\\circ\}?\$?$|\$$")
_MISSING_MARKS = {"nan", "none", "null", "n/a"}
_NUMERIC = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def hub_source(source: str) -> HubSource | None:
    """The hub data set a text names: a known name, or ``owner/name`` or ``owner/name:config``.

    Returns:
      The table's entry for a known name or known hub id, a plain entry for another hub id, None
      for a text that is neither.

    Example:
      >>> hub_source("gsm8k").path, hub_source("owner/set:en").config, hub_source("gsm 8k")
      ('openai/gsm8k', 'en', None)
    """
    if source in HUB_SOURCES:
        return HUB_SOURCES[source]
    if not _HUB_ID.fullmatch(source):
        return None
    path, _, config = source.partition(":")
    known = next((entry for entry in HUB_SOURCES.values() if entry.path == path), HubSource(path))
    return replace(known, config=config) if config else known


def named_after(stem: str) -> HubSource | None:
    """The known data set a file is named after, whose rules then hold for the file.

    Returns:
      The entry whose name is the file's stem, or begins it before ``_``, ``-`` or ``.``; or None.

    Example:
      >>> named_after("dapo_math_17k").path, named_after("amc2023")
      ('BytedTsinghua-SIA/DAPO-Math-17k', None)
    """
    names = [name for name in HUB_SOURCES if re.match(rf"{name}($|[_.-])", stem)]
    return HUB_SOURCES[max(names, key=len)] if names else None


def hub_rows(source: HubSource, split: str | None = None) -> Iterator[Any]:
    """Rows of a hub data set, through ``datasets`` (imported here, downloads or uses its cache).

    Args:
      source: the data set.
      split: a split other than its default.

    Yields:
      One mapping per row.

    Raises:
      ValueError: ``datasets`` is not installed, or the data set, configuration or split cannot
        be had.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"{source.path}: reading the hub needs datasets: pip install 'trustclip[train]'"
        ) from error
    split = split or source.split
    try:
        data: Any = datasets.load_dataset(source.path, name=source.config, split=split)
        for batch in data.iter(batch_size=1000):  # a tenth of the time of row by row
            rows = zip(*batch.values(), strict=True)
            yield from (dict(zip(batch, row, strict=True)) for row in rows)
    except (OSError, ValueError) as error:
        place = f"{source.path} (config {source.config or 'default'}, split {split})"
        raise ValueError(f"cannot load {place}: {error}. Without network, use a file") from error


def is_numeric(answer: object) -> bool:
    """True where a gold is a plain finite number, given as a number or as text.

    Example:
      >>> is_numeric("-3.5"), is_numeric(r"\\frac{1}{2}"), is_numeric("nan")
      (True, False, False)
    """
    return not isinstance(answer, bool) and _NUMERIC.fullmatch(str(answer)) is not None


def strip_dapo_template(prompt: str) -> str:
    """A prompt without the instruction DAPO-Math-17k puts before and after each problem.

    Example:
      >>> strip_dapo_template(DAPO_PREFIX + "1+2" + DAPO_SUFFIX)
      '1+2'
    """
    return prompt.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX)


def select_for_sft(
    problems: Iterable[Problem], *, max_seq_length: int, count_tokens: Callable[[Problem], int]
) -> list[Problem]:
    """Format-priming examples: the Unsloth Qwen3 GRPO notebook's filter of OpenMathReasoning.

    Kept are problems with a numeric gold and a worked solution whose example is at most half of
    ``max_seq_length`` long; ``<think>`` tags go, the thoughts between them stay.

    Args:
      problems: worked problems.
      max_seq_length: tokens a training sequence may have.
      count_tokens: tokens of the whole example made of a problem, chat template included.

    Returns:
      The kept problems in their order, solutions without tags.

    Raises:
      ValueError: ``max_seq_length`` below 2.

    Example:
      >>> shown = Problem("a", "1+2", "3", "<think>one and two</think>\\nthree")
      >>> proof = Problem("b", "prove it", "proved", "thus")
      >>> kept = select_for_sft([shown, proof], max_seq_length=8,
      ...                       count_tokens=lambda p: len(p.solution.split()))
      >>> [p.solution for p in kept]
      ['one and two\\nthree']
    """
    if max_seq_length < 2:
        raise ValueError(f"max_seq_length is {max_seq_length}, must be at least 2 tokens")
    untagged = (
        replace(item, solution=item.solution.replace("<think>", "").replace("</think>", "").strip())
        for item in problems
        if item.solution and is_numeric(item.answer)
    )
    return [item for item in untagged if count_tokens(item) <= max_seq_length / 2]


class RowError(ValueError):
    """Why a row is no problem."""


@dataclass(frozen=True)
class ParsedRow:
    """The parts of a row, found by its columns; the gold still as the source has it."""

    id: str | None
    problem: str
    answer: Any
    solution: str | None


def parse_row(row: Any, fields: Fields) -> ParsedRow:
    """Finds a row's parts and checks its problem text and id.

    Args:
      row: a mapping from column to value.
      fields: the columns to look in.

    Returns:
      The parts. A chat prompt gives its user message, DAPO's template is stripped, ``\\r\\n``
      becomes ``\\n``, and outer white space goes; other characters stay as they are.

    Raises:
      RowError: the row is no mapping, or its problem, gold or id is missing or unusable.

    Example:
      >>> parse_row({"question": "1+2", "answer": "one more: 3 #### 3"}, Fields()).answer
      '3'
    """
    if not isinstance(row, Mapping):
        raise RowError(f"not an object but {_kind(row)}")
    problem = _problem_text(_first(row, fields.problem, "problem"))
    solution = _lookup(row, fields.solution)
    solution = solution if isinstance(solution, str) and _is_clean(solution) else None
    worked = solution is not None and "####" in solution
    answer = _lookup(row, fields.answer) if worked else _first(row, fields.answer, "answer")
    answer = solution if answer is None else answer
    if isinstance(answer, str) and "####" in answer:
        solution = solution or answer
        answer = answer.rpartition("####")[2].replace(",", "").strip()
    return ParsedRow(_row_id(_lookup(row, fields.id)), problem, answer, solution)


def clean_answer(answer: object, *, integer: bool = False) -> str:
    """The gold answer as text.

    Args:
      answer: the gold as the source has it.
      integer: the gold must be an integer of at most 2^53 in size; ``070``, ``$1,234$``,
        ``\\boxed{204}`` and ``336^\\circ`` are taken for the integers they show.

    Returns:
      The text; an integer-valued float loses its fraction.

    Raises:
      RowError: no gold, or one that cannot be compared with.

    Example:
      >>> clean_answer(142.0), clean_answer("-4.0"), clean_answer("070", integer=True)
      ('142', '-4', '70')
    """
    if answer is None:
        raise RowError("answer is missing")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise RowError(f"answer must be text or a number, not {_kind(answer)}")
    if isinstance(answer, float):
        answer = _float_text(answer)
    text = _INTEGRAL_FLOAT.sub(r"\1", _checked(str(answer), "answer", MAX_ANSWER_CHARS))
    if text.lower() in _MISSING_MARKS:
        raise RowError(f"answer {text!r} stands for a missing value")
    bare = text.replace(r"\{", "").replace(r"\}", "")
    if bare.count("{") != bare.count("}"):
        raise RowError(f"answer {text!r} has unbalanced braces")
    return _integer_text(text) if integer else text


def _integer_text(text: str) -> str:
    bare = text
    while (shorter := _INTEGER_WRAPPING.sub("", bare)) != bare:
        bare = shorter
    bare = bare.replace(",", "").strip()
    if not _INTEGER.fullmatch(bare):
        raise RowError(f"answer {text!r} is no integer, all golds of this source are")
    if abs(int(bare)) > LARGEST_EXACT_INTEGER:
        raise RowError(f"answer {text} is beyond 2^53: its last digits were lost in a float")
    return str(int(bare))


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        raise RowError(f"answer is {value}")
    if not value.is_integer():
        return repr(value)
    if abs(value) > LARGEST_EXACT_INTEGER:
        raise RowError(f"answer {value!r} is a float beyond 2^53: its last digits are lost")
    return str(int(value))


def _problem_text(value: Any) -> str:
    if isinstance(value, list):
        value = _user_message(value)
    if not isinstance(value, str):
        raise RowError(f"problem must be text or a chat, not {_kind(value)}")
    text = strip_dapo_template(value.strip()).replace("\r\n", "\n")
    return _checked(text, "problem", MAX_PROBLEM_CHARS)


def _user_message(chat: list[Any]) -> Any:
    if not all(isinstance(turn, Mapping) and {"role", "content"} <= set(turn) for turn in chat):
        raise RowError("problem is a list, but no chat of role and content")
    users = [turn["content"] for turn in chat if turn["role"] == "user"]
    others = {turn["role"] for turn in chat} - {"user", "system"}
    if len(users) != 1 or others:
        raise RowError("problem is a chat of more than a system and one user message")
    return users[0]


def _row_id(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError(f"id must be text or an integer, not {_kind(value)}")
    return _checked(str(value), "id", MAX_ID_CHARS)


def _checked(text: str, name: str, max_chars: int) -> str:
    text = text.strip()
    if not text:
        raise RowError(f"{name} is empty")
    if len(text) > max_chars:
        raise RowError(f"{name} has {len(text)} characters, at most {max_chars} are allowed")
    if "\0" in text:
        raise RowError(f"{name} contains a NUL character")
    if not _is_clean(text):
        raise RowError(f"{name} contains invalid UTF-8 or a lone surrogate")
    return text


def _is_clean(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _first(row: Mapping[str, Any], names: tuple[str, ...], part: str) -> Any:
    value = _lookup(row, names)
    if value is None:
        columns = ", ".join(str(name) for name in row) or "nothing"
        raise RowError(f"no {part} in {', '.join(names)}; the row has {columns}")
    return value


def _lookup(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        value: Any = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value)) or f"{type(value).__name__} {value!r:.40}"
