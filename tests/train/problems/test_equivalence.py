"""Equivalence without algebra: integers are exact, refusals are safe, the rest is left open."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip.train.problems.verify.equivalence import compare, parse_integer

INTEGERS = [
    ("034", 34),
    ("+34", 34),
    ("−34", -34),
    ("-0", 0),
    (r"11,\! 111,\! 111", 11_111_111),
    ("14 {, }916", 14_916),
    ("1\u00a0234\u00a0567", 1_234_567),
    *((text, 34) for text in ("x_1 = 34", "34 = n", "x=34", "[34]")),
    *((text, 34) for text in (r"34\text{ dollars}", "34 apples", r"34\,\mathrm{cm}")),
]

NO_INTEGERS = [
    *("32, 349", "1, 234, 567"),
    *("", " ", "-", ".", "34.5", "33.9999999", "3 4", "1,2", "12,34", "1,23,456", "1234,567"),
    *("1,234,56", ",123", "--34", "3-4", "1e3", "0x22", "٣٤", "３４", "3⁴", "②", "34x", "34i"),
    *("34 million", "34 thousand", "3 dozen", r"34\text{k}", r"34\text{ or more}", "34!", "34%"),
    *(r"\frac{68}{2}", r"\pm 34", "34 or 35", "34 and 35", "f(x)=34", "x^2=34", "34/1", "three"),
]


@pytest.mark.parametrize(("text", "value"), INTEGERS)
def test_reads_integers(text, value):
    assert parse_integer(text) == value


@pytest.mark.parametrize("text", NO_INTEGERS)
def test_reads_nothing_else_as_an_integer(text):
    assert parse_integer(text) is None


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    st.integers(-(10**40), 10**40),
    st.sampled_from([",", "{,}", "\\,", "\\!", " ", ",\\!", "\u202f"]),
    st.sampled_from(["{}", "{}.", "{}.00", "({})", "{}^\\circ", "n = {}", "{} cm", "\\${}"]),
)
def test_every_way_to_write_an_integer_gives_it_back(value, separator, frame):
    text = frame.replace("{}", f"{value:,}".replace(",", separator))
    assert parse_integer(text) == value
    assert compare(str(value), text) is True
    assert compare(str(value + 1), text) is False


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("034", "34", True),
        ("10{,}000", "10000", True),
        (r"\frac{1}{2}", r" \frac{1}{2} ", True),
        ("9007199254740993", "9007199254740992", False),
        ("34", "34.5", False),
        ("34", r"34\text{ (35)}", False),
        ("3", r"\begin{vmatrix} 2 & 1 \\ 1 & 2 \end{vmatrix} = 3", None),
        ("34", r"34\text{ if }x>0, 35\text{ otherwise}", False),
        ("34", "3'4", False),
        (r"\frac{1}{2}", r"\phantom{\frac{1}{2}}", False),
        (r"\frac12", "0.50", None),
        (r"\frac{1}{3}", "0.333334", False),
        (r"\{1,2\}", "(1,2)", False),
        (r"\{1,2\}", r"\{2,1\}", None),
        ("34", r"x\in\{34\}", None),
        (r"\{(1,2)\}", r"(1,2), (3,4)", None),
        ("2:30", "2/30", False),
        ("2:30", r"2:30\text{ p.m.}", None),
        # Words are compared as text.
        ("silent", "listen", False),
        ("New York", "  new  york.", True),
        (r"\text{even}", r"\textbf{Even}", True),
        ("well-known", "well known", True),
        ("北京", "北京。", True),
        ("cold", r"\frac{1}{2}", False),
        ("x y", "y x", None),
        ("$mn$", r"m \cdot n", None),
        (r"\text{TV}", "VT", False),
        ("pi", "3.14", None),
        ("2 cats", r"\frac{4}{2}", None),
    ],
)
def test_decides_only_what_needs_no_algebra(gold, answer, verdict):
    assert compare(gold, answer) is verdict


EXPLOSIVE = [
    "9^{9^{9}}",
    "9^(9^9)",
    "2^{-99999}",
    "2^{10!}",
    "(10^9)!",
    "9!!",
    r"\binom{10^9}{2}",
    r"\sum_{k=1}^{n} k",
    r"\int_0^1 x dx",
    r"\lim_{n\to\infty} n",
]


@pytest.mark.parametrize("answer", EXPLOSIVE)
def test_refuses_to_expand_unless_the_gold_is_of_that_kind(answer):
    assert compare("2", answer) is False
    assert compare(r"\frac{1}{2}", answer) is False
    assert compare("9^{9^{8}}", answer) is None
    assert compare(answer, answer) is True


@pytest.mark.parametrize(
    "answer", ["2^{10}", "x^2+y^2", "5!", r"\binom{5}{2}", r"\binom{n}{2}", "e^{-x}", "2^{n+1}"]
)
def test_ordinary_powers_factorials_and_binomials_are_judged(answer):
    assert compare(r"\frac{1}{2}", answer) is None


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.text(alphabet="0123456789.,-+^{}()\\ !xfracbinomsqt=", max_size=60), st.integers(0, 99))
def test_never_confuses_different_integers(answer, gold):
    if compare(str(gold), answer):
        digits = answer.partition(".")[0] if "." in answer else answer
        assert int("".join(c for c in digits if c.isdigit())) == gold
