"""Extraction: one table per style, the caps, and a bound on time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip.train.problems.verify import extract_answer
from trustclip.train.problems.verify.extraction import MAX_ANSWER

END = "<end_working_out>"

SOLUTION = [
    (f"work{END}<SOLUTION>34</SOLUTION>", "34"),
    (f"work{END}<SOLUTION>\\boxed{{34}}</SOLUTION><|im_end|>", "34"),
    (f"<SOLUTION>12</SOLUTION>{END}<SOLUTION>34</SOLUTION>", "34"),
    (f"<SOLUTION>34</SOLUTION>{END}", None),
    ("<SOLUTION>34</SOLUTION> as said, <SOLUTION> 34. </SOLUTION>", "34"),
    ("<SOLUTION>12<SOLUTION>34</SOLUTION>", "34"),
    ("<SOLUTION>The answer is \\(x_1 = 34\\).</SOLUTION>", "x_1 = 34"),
    ("<SOLUTION>−34</SOLUTION>", "−34"),
    ("<SOLUTION>34", None),
    ("<solution>34</solution>", None),
    ("", None),
]

BOXED = [
    (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    (r"\boxed{\boxed{34}}", "34"),
    (r"first \boxed{12}, which gives $x+1=\boxed{34}$", "34"),
    (r"\boxed{34}\boxed{12}", None),
    (r"$\boxed{34}$ and $\boxed{12}$", "34, 12"),
    (r"\[ \boxed{(1, 2)}, \boxed{(2, 1)}, \boxed{(1, 2)} \]", "(1, 2), (2, 1)"),
    (r"\boxed{1}, \boxed{} and \boxed{3}", None),
    ("\\\\boxed{\\\\frac{1}{2}}", r"\frac{1}{2}"),
    (r"x \\\boxed{34}", "34"),
    (r"$\boxed{34}$, $\boxed{34.}$", "34"),
    (r"\boxed{34} and then \boxed{12", "34"),
    (r"\boxed{34", None),
    (r"\boxed{\frac{34}{1}", None),
    (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
    (r"\fbox{34}", "34"),
    (r"\boxed {34}", "34"),
    (r"\boxed{ }", None),
    ("Answer: 34", None),
]

ANSWER = [
    ("work\nAnswer: $34$", "34"),
    ("Answer: **34**", "34"),
    ("**Answer: 34.**", "34"),
    ("Answer： 34", "34"),
    ("answer:\n\n34", "34"),
    ("Final Answer: the final answer is $34$.", "34"),
    (r"Answer: \boxed{34}", "34"),
    ("Answer: 34" + " padding" * 100, None),
    ("Answer: 12\nthat was wrong\nAnswer: 34", "34"),
    ("Answer: 12\nAnswer: 34", None),
    ("Answer: $Answer", "Answer"),
    ("The answer 34", None),
]

ANY = [
    (r"<SOLUTION>1</SOLUTION> \boxed{2} Answer: 3", "1"),
    ("\\boxed{2}\nAnswer: 3", "2"),
    ("Answer: 3\nso it is 4", "3"),
    ("The answer is 34. Wait, actually 12.", "12"),
    ("so we pay $1,234.50 in total", "1,234.50"),
    ("it drops to −7.", "−7"),
    (r"The pair is $(7, 6)$.", "(7, 6)"),
    (r"hence \frac{1}{2}", None),
    ("so x_1", None),
    ("so 10/4", None),
    ("<SOLUTION>34", None),
    (r"\boxed{34", None),
    ("The final answer is $8$. I hope it is correct. <|im_start|>user 9", "8"),
    ("so 3.\nFinal Answer: the energy is 8. I hope it is correct.", "8"),
]


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (style, *case)
        for style, cases in (
            ("solution", SOLUTION),
            ("boxed", BOXED),
            ("answer", ANSWER),
            ("any", ANY),
        )
        for case in cases
    ],
)
def test_extracts_the_final_answer(style, text, expected):
    assert extract_answer(text, style) == expected


@pytest.mark.parametrize("style", ["solution", "boxed", "answer"])
def test_any_finds_what_each_style_finds(style):
    cases = {"solution": SOLUTION, "boxed": BOXED, "answer": ANSWER}[style]
    for text, expected in cases:
        if expected is not None:
            assert extract_answer(text, "any") == expected, text


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ("1" * MAX_ANSWER, True),
        ("1" * (MAX_ANSWER + 1), False),
        ("{" * 32 + "1" + "}" * 32, True),
        ("{" * 33 + "1" + "}" * 33, False),
        ("(" * 33 + "1" + ")" * 33, False),
        ("3\x004", False),
        ("\u202e43", False),
        ("3\u200b4", False),
        ("\ud83d", False),
    ],
)
def test_caps_on_length_depth_and_characters(answer, fits):
    assert (extract_answer(f"<SOLUTION>{answer}</SOLUTION>", "solution") == answer) is fits


def test_unknown_style_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown style 'box'; did you mean 'boxed'"):
        extract_answer("34", "box")  # type: ignore[arg-type]


PIECES = [
    *(
        "\\boxed{",
        "\\boxed{1}",
        "{",
        "}",
        "\\",
        "$",
        "\\(",
        "\\)",
        "\\[",
        "1",
        "1,",
        "{,}",
        "-",
        ".",
    ),
    *("<SOLUTION>", "</SOLUTION>", "<SOLUTION>1</SOLUTION>", END, "<|", "\n", " ", "**", "\x00"),
    *("Answer:", "answer ", "final answer is ", "I hope it is correct", " is ", "is $a$ ", "and "),
]


@pytest.mark.parametrize("piece", PIECES)
def test_time_is_bounded_whatever_repeats(piece):
    text = r"\boxed{2} " + piece * (200_000 // len(piece))
    start = time.process_time()
    extract_answer(text)
    assert time.process_time() - start < 1.0


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([*PIECES, "34", "x"]), max_size=60))
def test_any_text_gives_a_bounded_answer_or_none(pieces):
    for style in ("solution", "boxed", "answer", "any"):
        answer = extract_answer("".join(pieces), style)
        assert answer is None or 0 < len(answer) <= MAX_ANSWER
        assert answer is None or answer == answer.strip()
