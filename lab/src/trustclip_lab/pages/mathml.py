"""Formulas as MathML, which browsers draw themselves: no script and no network."""

from latex2mathml.converter import convert


def mathml(latex: str, display: str = "inline") -> str:
    r"""A formula as MathML.

    Args:
      latex: the formula, without its dollars.
      display: ``"inline"`` or ``"block"``.

    Raises:
      ValueError: it cannot be translated.

    Example:
      >>> mathml(r"\delta").partition("<mi>")[2].partition("</mi>")[0]
      '&#x003B4;'
    """
    # Within \text the translator takes every character literally.
    text = " ".join(latex.split()).replace("\\_", "_")
    try:
        markup = convert(text, display=display)
    except Exception as error:  # the converter's errors share no base class
        raise ValueError(f"formula not translated: {text} ({error})") from error
    # An unknown command comes through as its own name.
    if "\\" in markup:
        raise ValueError(f"formula not understood: {text}")
    return markup
