"""Numbers and texts as people read them: percent, intervals, time, Markdown."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

#: Control characters, line separators and marks that change the direction of what follows: in a
#: terminal they move the cursor or set the title, in a page they hide text.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
#: The same without line ends and tabs.
_INSIDE = re.compile(_CONTROL.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))
#: Markdown's markup. For some it depends on the context: ``clip_higher`` and ``[0, 1]`` are text.
_MARKUP = re.compile(r"[\\`*|~$#]|(?<!\w)_|_(?!\w)|(?<=\])[(\[:]|(?<!\w)@|:(?=//)|(?<=\bwww)\.")
_ENTITY = re.compile(r"&(?=#?\w+;)")


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, or ``"-"`` where it is unknown.

    Example:
      >>> percent(0.125), percent(-0.5, 0), percent(-0.0001), percent(None)
      ('12.5', '−50', '0.0', '-')
    """
    if share is None or math.isnan(share):
        return "-"
    return f"{100 * share:z.{digits}f}".replace("-", "−")


def bracket(low: float | None, high: float | None) -> str:
    """An interval in percent, or nothing where it is unknown.

    Example:
      >>> bracket(0.081, 0.18), bracket(None, None)
      ('[8.1, 18.0]', '')
    """
    return "" if "-" in (percent(low), percent(high)) else f"[{percent(low)}, {percent(high)}]"


def interval_text(interval: Mapping[str, float]) -> str:
    """A share and its interval in percent.

    Example:
      >>> interval_text({"value": 0.125, "low": 0.081, "high": 0.18})
      '12.5 [8.1, 18.0]'
    """
    return f"{percent(interval['value'])} {bracket(interval['low'], interval['high'])}".rstrip()


def signed(share: float) -> str:
    """A difference of shares in points, with its sign.

    Example:
      >>> signed(0.012), signed(-0.05)
      ('+1.2', '−5.0')
    """
    return f"{100 * share:+.1f}".replace("-", "−")


def join_words(parts: Sequence[str]) -> str:
    """Parts of a sentence, the last one after an "and".

    Example:
      >>> join_words(["clip", "atr", "dppo"])
      'clip, atr and dppo'
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def plural(count: int, noun: str) -> str:
    """A number of things in words: 1 seed, 3 seeds."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def title_of(metric: str) -> str:
    """Heading of a metric.

    Example:
      >>> title_of("mean@8"), title_of("acc (area)@0")
      ('Mean@8', 'acc (area)')
    """
    name = metric.removesuffix("@0")  # of a number of a whole run
    return name if name != metric else metric[:1].upper() + metric[1:]


def duration(seconds: float | None) -> str:
    """A time in the two largest units that matter, or ``"-"`` where it is unknown.

    Example:
      >>> [duration(s) for s in (42, 620, 7500, None)]
      ['42 s', '10 min 20 s', '2 h 5 min', '-']
    """
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def one_line(value: object) -> str:
    r"""A value as text in one line, without control characters.

    Example:
      >>> one_line("a\n b\x1b]0;title\x07")
      'a b ]0;title'
    """
    return " ".join(_CONTROL.sub(" ", str(value)).split())


def show_controls(text: str) -> str:
    r"""A text with each control character as its code point, so that a terminal does not obey it.

    Example:
      >>> show_controls("\x1b[2J")
      '<U+001B>[2J'
    """
    return _CONTROL.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def harmless(text: str) -> str:
    r"""`show_controls` of each line: line ends and tabs stay.

    Example:
      >>> harmless("a\tb\r\n\x1b[2J")
      'a\tb<U+000D>\n<U+001B>[2J'
    """
    return _INSIDE.sub(lambda match: show_controls(match[0]), text)


def markdown_text(value: object) -> str:
    r"""A value as one line of Markdown that renders as itself: no markup, HTML, link or mention.

    Example:
      >>> print(markdown_text("a|b <script>[x](y)\n# no title, clip_higher [0, 1]"))
      a\|b &lt;script&gt;[x]\(y) \# no title, clip_higher [0, 1]
    """
    line = _ENTITY.sub("&amp;", _MARKUP.sub(r"\\\g<0>", one_line(value)))
    return line.replace("<", "&lt;").replace(">", "&gt;")


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
) -> str:
    """A table in GitHub's Markdown; its cells are Markdown already, see `markdown_text`.

    Example:
      >>> print(markdown_table(["what", "ms"], [["a", "1.23"]], numbers=True))
      | what | ms |
      |---|---:|
      | a | 1.23 |
    """
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    rest = ("---:|" if numbers else "---|") * (len(header) - 1)
    lines.insert(1, "|---|" + rest)
    return "\n".join(lines)
