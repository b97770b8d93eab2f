"""A problem's text as tokens, and without its layout."""

import re
import unicodedata

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
# A hyphen inside or before a word is no minus, and the mark after a word no factorial.
_TOKEN = re.compile(
    r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+|\d+|[+*/<>≤≥±]|(?<![a-z]{2})-(?!-|[a-z]{2})"
    r"|(?<=[\d)])!|(?<=[^a-z][a-z])!"
)
# "One" is a pronoun more often than a number.
_WORDS = "zero two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
_NUMBERS = {word: str(n + (n > 0)) for n, word in enumerate(_WORDS.split())}
#: Marks around formulas; spaces that no two words or numbers need between them.
_MARKS, _GAPS = re.compile(r"\$|\\[()\[\]]"), re.compile(r"(?<!\w) | (?!\w)")


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


def bare(problem: str) -> str:
    r"""A problem's text without the marks around formulas and without needless white space.

    Nothing else is taken away: brackets, case and symbols may be what a problem is about.

    Example:
      >>> bare(r"What is \(2 + 2\)?") == bare("What is $2+2$?") != bare("What is 2+(2)?")
      True
    """
    return _GAPS.sub("", " ".join(_MARKS.sub("", problem).split()))
