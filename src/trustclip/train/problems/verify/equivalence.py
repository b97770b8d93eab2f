r"""Comparison of two answers without algebra: integers, words, plain fractions, and refusals.

`compare` decides in microseconds and in Python integers; where it returns None the question needs
a computer-algebra system, which `trustclip.train.problems.verify.pool` keeps in a process that can
be killed.
"""

import ast
import re
from fractions import Fraction

_MINUS = str.maketrans({c: "-" for c in "−–－"} | {c: " " for c in "\u00a0\u2009\u202f~"})
# A comma and a plain space separate two numbers.
_THOUSANDS = r"(?:,|(?: ?\{, ?\}|\\[,!: ]|,\\!)[ ]?| )"
_NUMBER = rf"[0-9]{{1,3}}(?:{_THOUSANDS}[0-9]{{3}})+|[0-9]+"
_PLAIN = re.compile(r"-?[0-9]{1,64}")
_VARIABLE = r"[A-Za-z](?:_(?:\w|\{\w{1,8}\}))?"
_DEGREE = r"\^\s?\\circ|\^\s?\{\s?\\circ\s?\}|°|\\degree"
_UNIT = r"(?:\\,)?\s?\\(?:text|mathrm|mbox)\s?\{[A-Za-z .]*\}|\s[A-Za-z]{2,}(?:\s[A-Za-z]{2,}){0,2}"
_INTEGER = re.compile(
    rf"(?:{_VARIABLE}\s?=\s?)?(?:\\?\$\s?)?(?P<sign>[+-]?)\s?(?:\\?\$\s?)?(?P<digits>{_NUMBER})(?:\.0*)?"
    rf"\s?(?:{_DEGREE}|(?P<unit>{_UNIT}))?(?:\s?=\s?{_VARIABLE})?"
)
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s?\{([^{}]*)\}")
_COMMAND = re.compile(r"\\(?:begin|end)\{[A-Za-z*]{1,16}\}|\\[A-Za-z]+")
_RELATION = re.compile(r"=|\\approx|\\equiv|≈|\\to\b|\\Rightarrow|\\implies")
# Words that change the number next to them, or that name a second candidate.
_UNSAFE_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        or and not no nor neither either both wrong incorrect false except plus minus divided point
        if when where unless otherwise else
        between to from least most more less than over under greater fewer up mod modulo base pi
        half halves third thirds quarter quarters fourths fifths sixths sevenths eighths ninths
        tenths hundredths thousandths squared cubed factorial score dozen ten tens hundred hundreds
        thousand thousands million millions billion billions bn trillion lakh crore k M B
        """,
    )
)
_ALGEBRA_WORDS = frozenset(
    re.findall(
        r"\w+",
        "sqrt frac log ln exp sin cos tan abs min max gcd lcm ceil floor cm mm km kg ft in",
    )
)
# Names of functions and constants: a text that holds one is a formula, though all letters.
_FORMULA_WORDS = _ALGEBRA_WORDS | {"pi", "theta", "infty", "arcsin", "arccos", "arctan", "mod"}
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s?\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|\\q?quad(?![A-Za-z])|[~$]")
_TEXT_ANSWER = re.compile(r"[^\W\d_]+(?:[\s,.;:!?'’\"()/&-]+[^\W\d_]+)*[.!?。)\"]*")
_PRODUCT = re.compile(r"(?i)[b-df-hj-np-tv-z]{2,4}")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-5][0-9]")
_RATIONAL = re.compile(
    r"(?P<sign>-?)(?:(?P<decimal>[0-9]+\.?[0-9]*|\.[0-9]+)"
    r"|(?P<a>[0-9]+)\s?/\s?(?P<b>[0-9]+)"
    r"|\\[dt]?frac\s?(?:\{(?P<c>[0-9]+)\}\s?\{(?P<d>[0-9]+)\}|(?P<e>[0-9])(?P<f>[0-9])))"
)
# The last alternatives are a number in another base, and floats: an integer is not written so.
_AMBIGUOUS = re.compile(
    r"\\(?:pm|mp|neg|lnot|not|neq?|vee|lor|dots|ldots|cdots|sim|prime)(?![A-Za-z])|±|…|\.\.\.|['′’]"
    r"|[0-9]\s*_(?!\s*\{?\s*10(?![0-9]))|[0-9.][eE][+-]?[0-9]"
)
_EXPLOSIVE = re.compile(
    r"\\(?:sum|prod|coprod|i{1,4}nt|oint|lim|bigcup|bigcap)(?![A-Za-z])"
    r"|[0-9]{5,}\s*!|[)\]}!]\s*!"
    r"|\\[dt]?binom(?!\s*\{[^{}^!]{1,4}\}\s*\{[^{}^!]{1,4}\})"
    r"|(?:\^|\*\*)[\s{(]*[-+]?[0-9]{5,}"
    r"|(?:\^|\*\*)[\s{(]+[^{}()]*(?:\^|\*\*|!)"
    r"|(?:\^|\*\*)\s*\w+\s*(?:\^|\*\*)"
)


def parse_integer(text: str) -> int | None:
    r"""The integer that `text` denotes, or None if it denotes none or only algebra can decide.

    Read as integers: thousands separators (``1,234``, ``1{,}234``, ``1\,234``, ``1 234``: groups of
    three only), U+2212 and dashes as minus, leading zeros, a trailing dot or ``.0``, a degree sign,
    a currency sign, enclosing brackets, ``n = 34`` and a unit in words.

    Example:
      >>> parse_integer(r"1{,}234.0"), parse_integer("−034."), parse_integer(r"34^\circ")
      (1234, -34, 34)
      >>> parse_integer("12,34"), parse_integer("3 4"), parse_integer("34 million")
      (None, None, None)
    """
    if _PLAIN.fullmatch(text):
        return int(text)
    text = " ".join(text.translate(_MINUS).split())
    while text and _BRACKETS.get(text[0]) == text[-1]:
        text = text[1:-1].strip()
    match = _INTEGER.fullmatch(text)
    if match is None or _words(match["unit"] or "") & _UNSAFE_WORDS:
        return None
    return int(match["sign"] + re.sub(r"[^0-9]", "", match["digits"]))


def alternatives(gold: str) -> list[str] | None:
    """The texts of a gold that is a list of quoted ones, any of which is right; else None.

    Example:
      >>> alternatives("['9.6']"), alternatives('["1", "2"]'), alternatives("[1, 2]")
      (['9.6'], ['1', '2'], None)
    """
    if not re.fullmatch(r"\[\s*['\"].*['\"]\s*,?\s*\]", gold.strip(), re.DOTALL):
        return None
    try:
        texts = ast.literal_eval(gold.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return texts if all(isinstance(text, str) for text in texts) else None


def plain_text(answer: str) -> str | None:
    r"""Normalised words of an answer that is not mathematics, or None if it may be.

    Words are letters with spaces and punctuation, ``\text{...}`` around them or not, at least one
    of two letters or more, and none the name of a function. A few consonants (``xy``) are a product
    of variables. Case, spaces and punctuation do not count.

    Example:
      >>> plain_text("New  York."), plain_text(r"\text{True}"), plain_text("x"), plain_text("2 cm")
      ('new york', 'true', None, None)
    """
    bare = _SPACING.sub(" ", _WRAPPED.sub(r" \1 ", answer)).strip()
    if not _TEXT_ANSWER.fullmatch(bare) or _PRODUCT.fullmatch(answer.strip(" $")):
        return None
    words = re.findall(r"[^\W\d_]+", bare.casefold())
    if max(map(len, words)) < 2 or _FORMULA_WORDS.intersection(words):
        return None
    return " ".join(words)


def compare(gold: str, answer: str) -> bool | None:
    r"""Whether `answer` equals `gold`, or None if only algebra can decide.

    A gold of plain words is compared as text (`plain_text`): anagrams are no products. Equal texts
    and equal integers are equal; a decimal equals a fraction if it is exact or the fraction rounded
    to its digits. Different integers are not, nor is anything that
    states several candidates, changes its number by a word ("34 million") or would have to be
    expanded to be judged (towers of powers, large factorials and binomials, sums, integrals) when
    the gold is not of that kind.

    Example:
      >>> compare("1000", r"1\,000"), compare("34", "34 or 35"), compare("34", r"\frac{68}{2}")
      (True, False, None)
      >>> compare("2", "9^{9^{9^{9}}}")
      False
    """
    if gold.strip() == answer.strip():
        return True
    if (words := plain_text(gold)) is not None:
        return words == plain_text(answer)
    if "phantom" in answer or (_CLOCK.fullmatch(gold.strip()) and ":" not in answer):
        return False  # what is not shown is no answer; a time is no ratio
    integer = parse_integer(gold)
    if integer is not None:
        value = parse_integer(answer)
        if value is not None:
            return value == integer
        if _no_integer(answer):
            return False
    elif _misrounded(gold, answer) or (gold.strip().startswith("\\{") and _ordered(answer)):
        return False
    return False if _EXPLOSIVE.search(answer) and not _EXPLOSIVE.search(gold) else None


def _rational(text: str) -> tuple[Fraction, int | None] | None:
    """A plain decimal or fraction with its number of decimals (None for a fraction)."""
    match = _RATIONAL.fullmatch(" ".join(text.translate(_MINUS).split()))
    if match is None or len(text) > 64:
        return None
    top, bottom = match["a"] or match["c"] or match["e"], match["b"] or match["d"] or match["f"]
    sign = -1 if match["sign"] else 1
    if decimal := match["decimal"]:
        return sign * Fraction(decimal), len(decimal.partition(".")[2])
    return (sign * Fraction(int(top), int(bottom)), None) if int(bottom) else None


def _misrounded(gold: str, answer: str) -> bool:
    """True for a decimal that is neither the gold's value nor that value rounded to its digits."""
    expected, actual = _rational(gold), _rational(answer)
    if expected is None or actual is None or actual[1] is None:
        return False
    return abs(expected[0] - actual[0]) > Fraction(1, 2 * 10 ** actual[1])


def _ordered(answer: str) -> bool:
    """True for a pair or an interval, in which order counts, unlike in the gold's set."""
    bare = answer.replace("\\left", "").replace("\\right", "").strip()
    return re.fullmatch(r"[(\[][^()\[\]{}]*,[^()\[\]{}]*[)\]]", bare) is not None


def _words(text: str) -> set[str]:
    words = re.findall(r"[A-Za-z]+", _COMMAND.sub(" ", text))
    return {word if len(word) == 1 else word.lower() for word in words}


def _no_integer(answer: str) -> bool:
    """True if a text that is no plain integer cannot be an expression for exactly one either."""
    if not re.search(r"[0-9]|\\[A-Za-z]", answer):
        return True
    if re.fullmatch(r"[0-9\s.,;:+-]*[0-9\s.,;:]", answer) and not re.search(
        r"[0-9]\s*[+-]", answer
    ):
        return True
    if _AMBIGUOUS.search(answer) or _words(answer) & _UNSAFE_WORDS:
        return True
    quoted, formula = "".join(_TEXT.findall(answer)), _TEXT.sub("", answer)
    if re.search("[0-9]", quoted) and re.search("[0-9]", formula):
        return True
    if {word for word in _words(formula) if len(word) > 1} - _ALGEBRA_WORDS:
        return True
    values = {parse_integer(side) for side in _RELATION.split(answer)} - {None}
    return len(values) > 1
