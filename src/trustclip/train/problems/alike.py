"""A problem's text as tokens, and how two texts with nearly the same ones can differ."""

import re
import unicodedata
from collections import Counter
from difflib import SequenceMatcher

Tokens = tuple[str, ...]

_FIGURE = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_LAYOUT = re.compile(r"\\(left|right|text|mathrm|mathbf|textbf|emph|displaystyle|overline)\b")
_SHORT_FRACTION = re.compile(r"frac\s*(\d)\s*(\d)")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|,\\!)(?=\d{3}(?!\d))")
# Adjacent letters without a vowel are a product of variables; where they are not, no harm is done.
_PRODUCT = re.compile(r"(?<![\\a-z])[b-df-hj-np-tv-z]{2,4}(?![a-z])")
# Spellings of one operator; what follows `\le` in `\left` is a letter.
_OPERATORS = (
    (re.compile(r"\\(?:times|cdot)(?![a-z])|[×·⋅]"), "*"),
    (re.compile(r"\\(?:le|leq|leqslant)(?![a-z])|<="), "≤"),
    (re.compile(r"\\(?:ge|geq|geqslant)(?![a-z])|>="), "≥"),
    (re.compile(r"\\pm(?![a-z])"), "±"),
    (re.compile(r"\\div(?![a-z])|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
)
_SIGNS = frozenset("+-*/<>≤≥±!")
# A hyphen inside or before a word is no minus, and the mark after a word no factorial.
_TOKEN = re.compile(
    r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+|\d+|[+*/<>≤≥±]|(?<![a-z]{2})-(?!-|[a-z]{2})"
    r"|(?<=[\d)])!|(?<=[^a-z][a-z])!"
)
# "One" is a pronoun more often than a number.
_WORDS = "zero two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
_NUMBERS = {word: str(n + (n > 0)) for n, word in enumerate(_WORDS.split())}
# What a problem about the letters of a word is about.
_ABOUT = re.compile(
    r"\b(?:word|letters|string)s?\b(?: in| of)?[\s\"“$\\{]*(?:text\w*\{)?([A-Z]{3,})\b"
)
# A text of fewer tokens than this leaves the problem to its figure.
_BRIEF = 24


def tokenize(problem: str) -> Tokens:
    r"""Words, numbers, operators and CJK characters of a problem, without layout and figures.

    Lower case; compatibility forms (full-width digits, mathematical letters) as plain ones; number
    words as digits; thousands separators removed; adjacent variables of a formula apart (``xy`` as
    ``x y``). Equal tokens mean the same problem: two that differ in a sign differ here too.

    Example:
      >>> tokenize(r"Find $\dfrac13 + x_2$ [asy] draw((0,0)); [/asy]")
      ('find', 'frac', '1', '3', '+', 'x', '2')
      >>> tokenize("$xy-1$") == tokenize("$x y − 1$") != tokenize("$xy+1$")
      True
    """
    text = unicodedata.normalize("NFKC", _FIGURE.sub(" ", problem))
    text = _LAYOUT.sub(" ", text).lower().replace("dfrac", "frac").replace("tfrac", "frac")
    for spelling, operator in _OPERATORS:
        text = spelling.sub(f" {operator} ", text)
    text = _THOUSANDS.sub("", text)
    text = _PRODUCT.sub(lambda product: " ".join(product[0]), text)
    tokens: list[str] = _TOKEN.findall(_SHORT_FRACTION.sub(r"frac \1 \2", text))
    return tuple(_NUMBERS.get(token, token) for token in tokens)


def unsigned(tokens: Tokens) -> Tokens:
    """Words and numbers alone: operators are frequent and would make unrelated problems alike."""
    return tuple(token for token in tokens if token not in _SIGNS)


def frame(text: Tokens) -> Tokens:
    """A text with a placeholder for each number."""
    return tuple("#" if token.isdigit() else token for token in text)


def digits(text: Tokens) -> Tokens:
    """The numbers of a text, in order."""
    return tuple(filter(str.isdigit, text))


def are_distinct(a: str, b: str) -> bool:
    """Whether two similar texts are different problems: another sign, word or figure."""
    about = [set(_ABOUT.findall(text)) for text in (a, b)]
    if all(about) and not about[0] & about[1]:
        return True
    signed = tokenize(a), tokenize(b)
    return _signs_differ(*signed) or (min(map(len, signed)) < _BRIEF and _figures_differ(a, b))


def _figures_differ(a: str, b: str) -> bool:
    """Whether both texts have a figure, and less than half of the figures' numbers are alike."""
    numbers = [Counter(re.findall(r"\d+", " ".join(_FIGURE.findall(text)))) for text in (a, b)]
    total = numbers[0].total() + numbers[1].total()
    return all(numbers) and 2 * (numbers[0] & numbers[1]).total() < 0.5 * total


def _signs_differ(a: Tokens, b: Tokens) -> bool:
    """Whether the two texts differ in an operator between matching surroundings."""
    if unsigned(a) == unsigned(b):
        # A product may be written without its sign, and a fraction without its stroke.
        return [t for t in a if t not in "*/"] != [t for t in b if t not in "*/"]
    changes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return any(
        {*a[a1:a2], *b[b1:b2]} <= (_SIGNS if kind == "replace" else {"!"})
        for kind, a1, a2, b1, b2 in changes
        if kind != "equal"
    )
