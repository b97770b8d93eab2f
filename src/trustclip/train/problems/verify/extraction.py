r"""Final answers cut out of completions, in time linear in their length.

The answer region is found by a single pass over the text; nothing here backtracks, recurses or
interprets mathematics. Three prompt styles are known (see `trustclip.train.problems.prompts`), and
``"any"`` tries them in turn before it settles for a final number.
"""

import re
from itertools import pairwise
from typing import Literal, get_args

from trustclip.support.names import unknown

Style = Literal["solution", "boxed", "answer", "any"]

MAX_TEXT = 200_000
MAX_ANSWER = 256
MAX_DEPTH = 32
TAIL = 1_000

_OPEN, _CLOSE, _END_OF_WORK = "<SOLUTION>", "</SOLUTION>", "<end_working_out>"
_BRACES = re.compile(r"\\(?:boxed|fbox)[ \t]{0,4}\{|\\[\\{}]|[{}]")
_ANSWER = re.compile(r"\b(?:[Aa]nswer|ANSWER)[ \t*_]{0,8}[:：][\s*_]{0,16}([^\n]*)")
_SEPARATOR = re.compile(
    r"(?:[\s$,;.*_&]|\\[()\[\],;! \\]|\\q?quad"
    r"|\\text\s?\{[\s,]*(?:and|or)?[\s,]*\}|\b(?:and|or)\b)*"
)
_LIST, _OR = re.compile(r",|\band\b"), re.compile(r"\bor\b")
_FEW_SHOT = re.compile(r"(?is).*\bfinal answer(?: is:?|:)\s*(\S.*?)\.?\s*$")
_DOUBLE_BACKSLASH = re.compile(r"(?<!\\)\\\\(?:boxed|fbox)[ \t]{0,4}\{")
_STATEMENT = re.compile(
    r"(?is)^(?!\\)(?:[^\\$={}]|\$[^$]*\$)*\b(?:is|are|equals)\b[ \t]*:?\s+(\S.*)$"
)
_MATH = re.compile(
    r"(?<!\\)\$\$(.{1,256}?)\$\$|\\\[(.{1,256}?)\\\]|\\\((.{1,256}?)\\\)"
    r"|(?<![\\$])\$ ?(?![\s$])([^$\n]{1,256})(?<![\s\\]) ?\$(?!\d)",
    re.DOTALL,
)
_NUMBER = re.compile(r"(?:(?<![\w)}\]])[-−–])?[0-9](?:[0-9,]|\{,\}|\\,)*(?:\.[0-9]+)?")
# Control, zero-width, bidirectional and surrogate characters make a text look unlike what it is.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
SPECIAL_TOKEN = re.compile(r"<\|\w{1,40}\|>")
_PLAIN = re.compile(r"-?[0-9]{1,64}")
_PAIRS = (
    ('"', '"'),
    ('\\"', '\\"'),
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("**", "**"),
    ("`", "`"),
)


def extract_answer(text: str, style: Style = "any") -> str | None:
    r"""Final answer of a completion, as text, or None where there is no single one.

    - ``"solution"``: the last complete ``<SOLUTION>...</SOLUTION>`` after ``<end_working_out>``
      (after the start of the text where that marker is missing). The prompt asks for one tag, so
      two with different contents are no answer.
    - ``"boxed"``: the last balanced ``\boxed{...}``. Boxes with only commas or "and" between them
      are one list; with nothing or "or" between them they are no answer if they differ. An earlier
      box elsewhere is working. Doubled backslashes (``\\boxed``) are read as single ones.
    - ``"answer"``: the last ``Answer: ...`` line, with the same rule for adjacent lines.
    - ``"any"``: the first of these three that occurs in the text; otherwise the final formula or
      number that stands alone in the last 1,000 characters, unless a tag or box was begun and not
      finished. The few-shot phrase "The final answer is ... I hope it is correct." goes before
      boxes, as does "Final Answer: ... I hope it is correct."

    Markdown, math delimiters, a nested box, a trailing full stop and "... is" are removed. An
    answer longer than 256 characters, nested deeper than 32 braces or with invisible characters
    (NUL, zero-width, bidirectional) is none. Only the last 200,000 characters are read.

    Returns:
      The answer, never empty, or None.

    Raises:
      ValueError: unknown style.

    Example:
      >>> extract_answer(r"so 3+4=7. <end_working_out><SOLUTION> $7$ </SOLUTION>", "solution")
      '7'
      >>> extract_answer(r"First \boxed{12}, hence \boxed{\frac{1}{2}}.", "boxed")
      '\\frac{1}{2}'
      >>> extract_answer("<SOLUTION>1</SOLUTION><SOLUTION>2</SOLUTION>") is None
      True
      >>> extract_answer("**Answer:** 34.")
      '34'
    """
    check_style(style)
    text = text[-MAX_TEXT:]
    if _DOUBLE_BACKSLASH.search(text):
        text = text.replace("\\\\", "\\")
    sources = (_solution, _few_shot, _boxed, _answer) if style == "any" else (_REGIONS[style],)
    for regions_of in sources:
        if regions := regions_of(text):
            return _common_answer(regions)
    if style != "any":
        return None
    return _final_statement(text)


def check_style(style: str) -> None:
    """Raise ValueError with the nearest name unless `style` is an extraction style."""
    allowed = get_args(Style)
    if style not in allowed:
        raise ValueError(unknown("style", style, allowed))


def clean(region: str) -> str | None:
    """The bare answer inside an answer region, or None if it is empty or not fit to be judged."""
    answer = region.strip()
    if _PLAIN.fullmatch(answer):
        return answer
    answer = SPECIAL_TOKEN.split(answer, maxsplit=1)[0].strip()
    if len(answer) > 4 * MAX_ANSWER or INVISIBLE.search(answer):
        return None
    for _ in range(4):
        before = answer
        if not answer.endswith(("...", "\\right.")):
            answer = answer.rstrip(".。,;: \n\t")
        answer = _unwrap(answer.strip())
        if boxes := _boxed(answer):
            return _common_answer(boxes)
        if statement := _STATEMENT.match(answer):
            answer = statement[1]
        if answer == before:
            break
    answer = re.sub(r"(?<!\\)\$|\\[()\[\]]", " ", answer).strip()
    return answer if answer and len(answer) <= MAX_ANSWER and _well_nested(answer) else None


def _unwrap(answer: str) -> str:
    for left, right in _PAIRS:
        inner = answer[len(left) : -len(right)]
        enclosed = answer.startswith(left) and answer.endswith(right)
        if enclosed and inner and left not in inner and not inner.endswith("\\"):
            return inner.strip()
    return answer.strip("*_").strip()


def _well_nested(answer: str) -> bool:
    """Whether braces balance and no bracket is deeper than `MAX_DEPTH`.

    Round and square brackets need not match: intervals mix them.
    """
    braces = depth = 0
    for token in re.findall(r"\\[{}]|[{}()\[\]]", answer):
        braces += (token == "{") - (token == "}")
        depth += (token[-1] in "{([") - (token[-1] in "})]")
        if braces < 0 or max(braces, depth) > MAX_DEPTH:
            return False
    return braces == 0


def _common_answer(regions: list[str]) -> str | None:
    """The answer that all regions give; None if there is no region or they differ."""
    if not regions:
        return None
    if len(set(regions)) == 1:
        return clean(regions[-1])
    answers = {clean(region) for region in regions}
    return answers.pop() if len(answers) == 1 else None


def _solution(text: str) -> list[str]:
    _, marker, after = text.rpartition(_END_OF_WORK)
    parts = (after if marker else text).split(_CLOSE)[:-1]
    return [part.rpartition(_OPEN)[2] for part in parts if _OPEN in part]


def _boxed(text: str) -> list[str]:
    """Contents of the last balanced box, and of the boxes joined to it: a list is one region."""
    spans: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int] | None] = []
    start = min(
        (at for name in ("\\boxed", "\\fbox") if (at := text.find(name)) >= 0), default=None
    )
    if start is None:
        return []
    while start and text[start - 1] == "\\":
        start -= 1
    for token in _BRACES.finditer(text, start):
        if token[0].endswith("{") and token[0] != "\\{":
            stack.append(None if token[0] == "{" else token.span())
        elif token[0] == "}" and stack and (box := stack.pop()):
            while spans and spans[-1][0] > box[0]:
                spans.pop()
            spans.append((*box, token.start()))
    group = _last_group(text, spans)
    contents = [text[inside:end] for _, inside, end in group]
    gaps = [text[before[2] + 1 : after[0]] for before, after in pairwise(group)]
    if 0 < len(gaps) < MAX_ANSWER and all(_LIST.search(g) and not _OR.search(g) for g in gaps):
        answers = dict.fromkeys(clean(content) or "" for content in contents)
        return [", ".join(answers)] if all(answers) else contents
    return contents


def _few_shot(text: str) -> list[str]:
    end = text.rfind("I hope it is correct")
    phrase = _FEW_SHOT.match(text[max(0, end - 2 * MAX_ANSWER) : end]) if end > 0 else None
    return [phrase[1]] if phrase else []


def _answer(text: str) -> list[str]:
    spans = [(m.start(), m.start(1), m.end(1)) for m in _ANSWER.finditer(text) if m[1].strip()]
    return [text[inside:end] for _, inside, end in _last_group(text, spans)]


def _last_group(text: str, spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The last (start, inside, end) span and those joined to it by separators alone, in order."""
    group = spans[-1:]
    for span in reversed(spans[:-1]):
        gap = text[span[2] : group[-1][0]].removeprefix("}")
        if len(gap) > 40 or not _SEPARATOR.fullmatch(gap):
            break
        group.append(span)
    return group[::-1]


def _final_statement(text: str) -> str | None:
    """The last formula, or the last number that is no part of anything else."""
    if _OPEN in text or _CLOSE in text or "\\boxed{" in text:
        return None  # begun and not finished: it may hold half a number
    tail = text[-TAIL:]
    numbers, formulas = list(_NUMBER.finditer(tail)), list(_MATH.finditer(tail))
    if not numbers:
        return None
    number, formula = numbers[-1], formulas[-1] if formulas else None
    if formula and formula.start() <= number.start() < formula.end():
        return clean(formula[formula.lastindex or 0])
    before, after = tail[: number.start()][-1:], tail[number.end() :][:1]
    part_of_more = re.match(r"[\w^_{\\/+*.()−–-]", before) or re.match(r"[\w^_})!/]", after)
    return None if part_of_more else clean(number[0])


_REGIONS = {"solution": _solution, "boxed": _boxed, "answer": _answer}
