"""Conversion of a row of any source into a problem: columns, texts and gold answer."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trustclip.train.problems.verify.equivalence import alternatives
from trustclip.train.problems.verify.extraction import INVISIBLE

# The instruction that DAPO-Math-17k puts before and after each problem.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'

MAX_PROBLEM_CHARS = 32_768
MAX_ANSWER_CHARS = 256
MAX_ID_CHARS = 256
LARGEST_EXACT_INTEGER = 2**53

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_INTEGRAL_FLOAT = re.compile(r"([+-]?\d+)\.0+", re.ASCII)
_INTEGER_WRAPPING = re.compile(r"^\$|\\boxed\{|\}$|\^\{?\\circ\}?\$?$|\$$")
_MISSING_MARKS = {"nan", "none", "null", "n/a"}
_NUMERIC = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Fields:
    """Columns that may hold the parts of a row: the first one present and not null is taken.

    A dot enters a nested column, unless it is part of a name: ``"reward_model.ground_truth"``.

    Args:
      id: names of the identifier.
      problem: names of the problem text, or of a chat with one user message.
      answer: names of the gold answer. A text with ``#### n`` (GSM8K) is a worked solution
        whose gold is ``n``; the same holds for ``solution`` where there is no answer column.
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
        "final_answer",
    )
    solution: tuple[str, ...] = ("solution", "generated_solution")


def is_numeric(answer: object) -> bool:
    """True where a gold is a plain finite number, given as a number or as text.

    Example:
      >>> is_numeric("-3.5"), is_numeric(r"\\frac{1}{2}"), is_numeric("nan")
      (True, False, False)
    """
    return not isinstance(answer, bool) and _NUMERIC.fullmatch(str(answer)) is not None


#: Names by which a mapping may call the parts of `Fields`.
PARTS = {
    **{part: part for part in ("id", "problem", "answer", "solution")},
    "prompt": "problem",
    "question": "problem",
}


def map_columns(fields: Fields, columns: Mapping[str, str]) -> Fields:
    """The columns to look in, some of them named by the user, by part (see `PARTS`).

    Other keys are further columns.

    Raises:
      ValueError: two names of one part.

    Example:
      >>> map_columns(Fields(), {"prompt": "input", "tests": "test_list"}).problem
      ('input',)
    """
    names: dict[str, tuple[str, ...]] = {}
    for key, name in columns.items():
        if (part := PARTS.get(key)) is None:
            continue
        if part in names:
            raise ValueError(f"`columns` names the {part} twice: {dict(columns)}.")
        names[part] = (name,)
    return replace(fields, **names)


class RowError(ValueError):
    """Reason why a row cannot be used as a problem."""


@dataclass(frozen=True)
class ParsedRow:
    """The parts of a row, by its columns; the gold still as in the source."""

    id: str | None
    problem: str
    answer: Any
    solution: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)


def parse_row(row: Any, fields: Fields, answers: bool = True) -> ParsedRow:
    """Find a row's parts and check its problem text and id.

    A chat prompt gives its user message, DAPO's template is stripped, ``\\r\\n`` becomes ``\\n``,
    and outer white space goes; other characters stay as they are. Without ``answers`` a row needs
    no gold, and ``answer`` is None where there is none.

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
    optional = worked or not answers
    answer = _lookup(row, fields.answer) if optional else _first(row, fields.answer, "answer")
    answer = solution if answer is None and worked else answer
    if isinstance(answer, str) and "####" in answer:
        solution = solution or answer
        answer = answer.rpartition("####")[2].replace(",", "").strip()
    return ParsedRow(_row_id(_lookup(row, fields.id)), problem, answer, solution)


def further(row: Mapping[str, Any], fields: Fields, columns: Mapping[str, str]) -> dict[str, Any]:
    """Columns of a row besides its parts, for reward functions.

    ``columns`` are new names, and for nested columns their only ones; see `map_columns`.

    Example:
      >>> further({"prompt": "1+2", "tests": "a", "hard": 1}, Fields(), {"checks": "tests"})
      {'hard': 1, 'checks': 'a'}
    """
    parts = {*fields.id, *fields.problem, *fields.answer, *fields.solution}
    own = {key: name for key, name in columns.items() if key not in PARTS}
    rest = {k: v for k, v in row.items() if k not in parts and k not in own.values()}
    return rest | {key: _lookup(row, (name,)) for key, name in own.items()}


def clean_answer(answer: object, *, integer: bool = False) -> str:
    """The gold answer as text.

    Args:
      answer: the gold as in the source; a list holds alternatives, any of which is right.
      integer: the gold must be an integer of at most 2^53 in size; ``070``, ``$1,234$``,
        ``\\boxed{204}`` and ``336^\\circ`` are taken for the integers they show.

    Returns:
      The text; an integer-valued float loses its fraction. Several alternatives become a JSON
      list, which `trustclip.train.problems.verify.Verifier` reads.

    Raises:
      RowError: no gold, or one that cannot be compared with.

    Example:
      >>> clean_answer(142.0), clean_answer("-4.0"), clean_answer("070", integer=True)
      ('142', '-4', '70')
      >>> clean_answer("['9.6\\\\n']"), clean_answer(["1", "2"])
      ('9.6', '["1", "2"]')
    """
    if answer is None:
        raise RowError("answer is missing")
    values = alternatives(answer) if isinstance(answer, str) else answer
    if isinstance(values, list):
        return _alternatives(values, integer)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise RowError(f"answer must be text or a number, not {_kind(answer)}")
    if isinstance(answer, float):
        answer = _float_text(answer)
    text = _INTEGRAL_FLOAT.sub(r"\1", _clean_text(str(answer), "answer", MAX_ANSWER_CHARS))
    if text.lower() in _MISSING_MARKS:
        raise RowError(f"answer {text!r} means a missing value")
    if INVISIBLE.search(text):
        raise RowError(f"answer {text!r} contains an invisible character: no answer can equal it")
    bare = text.replace(r"\{", "").replace(r"\}", "")
    if bare.count("{") != bare.count("}"):
        raise RowError(f"answer {text!r} has unbalanced braces")
    return _integer_text(text) if integer else text


def _alternatives(values: list[Any], integer: bool) -> str:
    if not values or any(isinstance(one, list) for one in values):
        raise RowError(f"answer {values!r:.60} is not a list of texts or numbers")
    texts = list(dict.fromkeys(clean_answer(one, integer=integer) for one in values))
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


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
    text = value.strip().removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX)
    return _clean_text(text.replace("\r\n", "\n"), "problem", MAX_PROBLEM_CHARS)


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
    return _clean_text(str(value), "id", MAX_ID_CHARS)


def _clean_text(text: str, name: str, max_chars: int) -> str:
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
        raise RowError(
            f"no {part} in {', '.join(names)}; the row has {columns}: name the one to take in "
            f"`columns`, as {{{part}: NAME}}"
        )
    return value


def _lookup(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        value: Any = row
        for part in [name] if name in row else name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value)) or f"{type(value).__name__} {value!r:.40}"
