"""Contamination: what counts as the same problem, what does not, and the command."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from trustclip.train.problems.alike import tokenize
from trustclip.train.problems.decontaminate import DecontaminateConfig, decontaminate, run
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.sources import load_problems

SHARED = Path(__file__).parents[4] / "shared" / "data"

ORCHARD = (
    "An orchard has $14$ rows of apple trees. Every row holds $23$ trees, and each tree gives "
    "$57$ kilograms in autumn. "
)
FIGURE = "[asy] " + "draw((0,0)--(9,9)); label(A, (3,4), NW); " * 5 + "[/asy]"


def problems(*texts: str, answer: str = "1", prefix: str = "p") -> list[Problem]:
    return [Problem(f"{prefix}{k}", text, answer) for k, text in enumerate(texts)]


def found(train: str, test: str) -> bool:
    return bool(decontaminate(problems(train), problems(test)).contaminated)


@pytest.mark.parametrize(
    "train",
    [
        ORCHARD + "How many kilograms is that?",
        ORCHARD.upper() + "HOW MANY KILOGRAMS IS THAT?",
        ORCHARD.replace("$", "") + "Find the number of kilograms.",
        ORCHARD.replace("$14$", r"\(14\)").replace(" has ", "\n has\t") + "What is the total mass?",
        "Consider this. " + ORCHARD + "How many kilograms is that? " + FIGURE,
    ],
)
def test_reworded_question_is_the_same_problem(train):
    assert found(train, ORCHARD + "How many kilograms is that?")


@pytest.mark.parametrize(
    "train",
    [
        "A train leaves at $14$ past noon with $23$ coaches of $57$ seats. How many seats?",
        ORCHARD.replace("14", "15").replace("23", "24").replace("57", "58") + "How many kilograms?",
        "How many kilograms is that?",
        "",
    ],
)
def test_other_problem_is_not(train):
    assert not found(train, ORCHARD + "How many kilograms is that?")


def test_boilerplate_does_not_make_strangers_alike():
    tail = (
        " The final answer can be written in the form m/n, where m and n are relatively prime "
        "positive integers. What is the value of m plus n? Provide the answer as one integer."
    )
    trees = ("ash", "birch", "elm", "fir", "oak", "pine", "yew")
    train = problems(*(f"{a} meets {b}." + tail for a in trees for b in trees if a != b))
    test = problems("quince follows lime." + tail, "oak meets pine." + tail, prefix="t")
    assert decontaminate(train, test).contaminated == ["t1"]


def test_boilerplate_does_not_make_twins_differ():
    tail = "What is the yield? Since the answer has the form k + m, give the value of k + m."
    text = ORCHARD + "How many kilograms is that?"
    strangers = [f"Field {k} is sown with {k} kinds of wheat. {tail}" for k in range(30)]
    test = problems(text, prefix="t")
    assert decontaminate(problems(ORCHARD + tail), test).contaminated == []
    assert decontaminate(problems(ORCHARD + tail, *strangers), test).contaminated == ["t0"]


def test_copies_of_a_problem_are_no_boilerplate():
    text = ORCHARD + "How many kilograms is that?"
    report = decontaminate(problems(*[text] * 200), problems(text, prefix="t"))
    assert len(report.train_ids) == 200
    assert report.clean == []


def test_report_holds_each_pair_and_whether_the_answers_agree(tmp_path):
    text = ORCHARD + "How many kilograms is that?"
    train = [Problem("a", text, "18 354"), Problem("b", text + " Halve it.", "9177")]
    test = [Problem("y", "What is 1+2?", "3"), Problem("x", text, "18354")]
    report = decontaminate(train, test)
    assert (report.contaminated, report.clean, report.same_answer) == (["x"], ["y"], ["x"])
    assert {(p.train_id, p.same_answer) for p in report.pairs} == {("a", True), ("b", False)}
    assert {p.train_id: p.similarity for p in report.pairs}["a"] == 1.0
    report.write(tmp_path / "deep" / "c.json")
    written = json.loads((tmp_path / "deep" / "c.json").read_text())
    assert list(written) == ["contaminated", "pairs", "clean"]
    assert written["pairs"][0] == {
        "test_id": "x",
        "train_id": "a",
        "similarity": 1.0,
        "numbers": 1.0,
        "same_answer": True,
    }


def test_similarity_is_the_dice_coefficient_of_the_matching_tokens():
    train, test = problems("a b c d e f g h"), problems("a b c d e f x y z w")
    (pair,) = decontaminate(train, test, threshold=0.6).pairs
    assert pair.similarity == round(2 * 6 / (8 + 10), 3)
    assert decontaminate(train, test, threshold=0.67).pairs == []
    numbers = problems("a b c d e f 1 1 2"), problems("a b c d e f 1 2 3 4")
    (pair,) = decontaminate(*numbers, number_threshold=0.5).pairs
    assert pair.numbers == round(2 * 2 / (3 + 4), 3)
    assert decontaminate(*numbers, number_threshold=0.58).pairs == []


def test_chinese_is_compared_character_by_character():
    text = "已知等差数列的前十项和为一百五十，公差为三，求首项。"
    assert found(text, text.replace("求首项", "试求其首项"))
    assert not found("设函数在区间上单调递增，求参数的取值范围。", text)


def test_tokens_leave_layout_out():
    assert tokenize(r"\left\{\dfrac{1}{2}\right\}") == tokenize(r"\{ \frac12 \}") != ()
    assert tokenize("x_{10} = $3.5$") == ("x", "10", "3", "5")


def test_a_sign_makes_another_problem():
    text = "What is the smallest $n$ such that all roots of $z^4 {} z^2 + 1 = 0$ are roots of one?"
    plus, minus = text.replace("{}", "+"), text.replace("{}", "-")
    assert tokenize(plus) != tokenize(minus)
    assert found(plus, plus) and not found(plus, minus)
    assert not found(plus, text.replace("{}", "−"))
    assert found(minus, text.replace("{}", "−"))
    assert tokenize("3 + 1 - 2") != tokenize("3 - 1 + 2")
    assert tokenize("a well-known number") == tokenize("a well known number")


def test_spelling_of_numbers_and_formulas_makes_no_difference():
    assert tokenize("１２３ apples") == tokenize("123 apples")
    assert tokenize("1,234 and $5{,}678$") == tokenize("1234 and 5678")
    assert tokenize("1,23") == ("1", "23")
    assert tokenize(r"$x \le 3 \times y$") == tokenize("𝑥 ≤ 3 × 𝑦")
    assert tokenize("$xy$") == tokenize("$x y$")


def test_in_a_generated_family_all_numbers_must_agree():
    text = "A farmer has {} rows of {} trees and each gives {} kilograms. What is the harvest?"
    family = [text.format(14, 23, k) for k in range(31, 51)]
    test = problems(text.format(14, 23, 57), text.format(14, 23, 40), prefix="t")
    assert decontaminate(problems(*family), test).contaminated == ["t1"]
    assert decontaminate(problems(*family[:3]), test).contaminated == ["t0", "t1"]
    sums = [f"{a} + {b} - {c}" for a in range(1, 6) for b in range(1, 6) for c in range(1, 6)]
    report = decontaminate(problems(*sums[::2]), problems(*sums[1::2], sums[0]))
    assert report.contaminated == [f"p{len(sums[1::2])}"]


def test_a_factorial_makes_another_problem():
    text = "What is the remainder when $1 + 2 + 3 + 4 + 5 + 6 + 7$ is divided by $9$?"
    factorials = re.sub(r"([1-7])", r"\1!", text)
    assert tokenize(text) != tokenize(factorials) and tokenize("5!") == ("5", "!")
    assert tokenize("Hello, Ann!") == ("hello", "ann")
    assert found(factorials, factorials) and not found(text, factorials)


def test_the_word_whose_letters_are_counted_makes_another_problem():
    text = "Determine the number of ways in which to arrange the letters of the word {}."
    assert found(text.format("ALFALFA"), text.format("ALFALFA").replace("Determine", "Find"))
    assert found(text.format("ALFALFA").upper(), text.format("ALFALFA"))
    assert not found(text.format("ALFALFA"), text.format("BARBAR"))
    assert not found(text.format(r'"$\text{ALFALFA}$"'), text.format("BARBAR"))


def test_a_short_text_is_told_by_its_figure():
    text = "In the diagram, what is the area of the shaded triangle, in square centimetres? "
    here = "[asy] draw((0,0)--(12,0)--(7,9)); label(A, (3,4)); [/asy]"
    there = "[asy] draw((1,5)--(28,6)--(31,55)); label(B, (2,8)); [/asy]"
    assert found(text + here, text + here.replace(" ", "\n"))
    assert found(text + here, text)
    assert not found(text + here, text + there)


def test_numbers_in_words_and_sentences_in_another_order_are_the_same_problem():
    words = ORCHARD.replace("$14$", "fourteen").replace("Every", "Each") + "How many kilograms?"
    assert tokenize("fifteen and zero, two or one") == ("15", "and", "0", "2", "or", "one")
    assert found(words, ORCHARD + "How many kilograms?")
    parts = [
        "A printer makes $23$ sheets a minute and rests for $7$ minutes in every hour.",
        "Its tray takes $510$ sheets, and whoever fills it needs $41$ seconds.",
        "How many sheets has it printed after $9$ hours of work?",
    ]
    assert found(" ".join(parts[::-1]), " ".join(parts))
    assert not found(
        " ".join(parts[::-1])
        .replace("23", "29")
        .replace("510", "640")
        .replace("41", "17")
        .replace("9", "5"),
        " ".join(parts),
    )


def test_clauses_turned_round_are_the_same_problem_where_many_numbers_agree():
    """A question that comes first, and one that comes last: half of the words match in order."""
    first = (
        "What is the sum of the first and second coordinate of the point to which $(-4, 7)$ moves "
        r"when rotated by $135^{\circ}$ clockwise about the point $(6, -2)$?"
    )
    last = (
        r"The point $(-4, 7)$ is rotated by $135^{\circ}$ clockwise about the point $(6, -2)$. "
        "To which point does it move? Give the sum of the first and the second coordinate."
    )
    assert found(first, last) and found(last, first)
    assert not found(first, last.replace("135", "225"))
    assert not found(first, last.replace("$(6, -2)$", "$(-2, 6)$"))  # in another order
    other = (
        "A line through $(-4, 7)$ meets, at an angle of $135$ degrees and clockwise about the "
        "point $(6, -2)$, the axes. How long is the part of it between them, in units?"
    )
    assert not found(first, other)


@pytest.mark.parametrize("swap", [False, True])
def test_a_problem_inside_a_prompt_or_a_story_is_the_same_problem(swap):
    text = ORCHARD + "How many kilograms is that?"
    prompt = (
        "You are a careful assistant. Solve the mathematics problem below, explain every step of "
        f"your reasoning, and check the result before you state it.\n\n{text}\n\nPut the final "
        "answer within \\boxed{} on the last line, and write nothing behind that line at all."
    )
    train, test = (prompt, text) if swap else (text, prompt)
    assert found(train, test)
    other = ORCHARD.replace("14", "15").replace("23", "24").replace("57", "58")
    assert not found(prompt.replace(ORCHARD, other), text)


def test_numbers_missing_on_one_side_do_not_hide_a_copy():
    text = "Alice and Bob share {} apples so that both get whole apples and Alice gets more. In how"
    text += " many ways can they do that if the order of the apples does not matter to them?"
    assert found(text.replace("{}", "seven"), text.replace("{}", "7"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ngram": 1}, "ngram is 1"),
        ({"threshold": 0}, "threshold is 0"),
        ({"threshold": 1.1}, "threshold is 1.1"),
        ({"number_threshold": -0.1}, "number_threshold is -0.1"),
    ],
)
def test_arguments_out_of_range(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        decontaminate([], [], **arguments)
    with pytest.raises(ValueError, match=next(iter(arguments))):
        DecontaminateConfig(train="a", test="b", out=tmp_path / "c.json", **arguments)


def command(tmp_path: Path, **options: Any) -> DecontaminateConfig:
    text = ORCHARD + "How many kilograms is that?"
    rows = {
        "train": [
            {"id": "a", "problem": text, "answer": "18354", "solution": "14*23*57"},
            {"id": "b", "problem": "求 1+2", "answer": "3", "solution": "count"},
            {"id": "c", "problem": "no answer"},
        ],
        "test": [{"id": "x", "problem": text, "answer": "18354.0"}, {"problem": "q", "answer": 1}],
    }
    for name, lines in rows.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        options[name] = str(file)
    options.setdefault("out", tmp_path / "c.json")
    return DecontaminateConfig(**options)


def test_command_writes_report_clean_set_and_quarantine(tmp_path, capsys):
    out, clean = tmp_path / "out" / "c.json", tmp_path / "out" / "clean.jsonl"
    assert run(command(tmp_path, out=out, write_clean=clean)) == 0
    assert capsys.readouterr().out == (
        "1 of 2 test problems occur among 2 training problems, 1 with the same answer: "
        f"{out}\n1 training problems match no test problem: {clean}\n"
    )
    assert json.loads(out.read_text())["contaminated"] == ["x"]
    assert load_problems(str(clean)) == [Problem("b", "求 1+2", "3", "count")]
    (bad,) = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(bad)["line"] == 3


def test_command_refuses_to_write_over_a_source(tmp_path):
    train = tmp_path / "train.jsonl"
    for options, message in [
        ({"write_clean": train}, "is a source"),
        ({"write_clean": tmp_path / "c.json"}, "are both"),
        ({"out": tmp_path}, "is a folder"),
        ({"max_bad_rows": 0}, "1 bad rows, at most 0 allowed"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(command(tmp_path, **options))
    assert len(train.read_text().splitlines()) == 3
    assert not (tmp_path / "c.json").exists()


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared problem sets")
@pytest.mark.slow
def test_real_amc_and_aime_against_dapo():
    # All pairs of AMC were read: 55 are the same problem, 46 of them ask for the same answer.
    # An earlier count by another method had 53 and 44.
    train = load_problems(str(SHARED / "dapo_math_17k.jsonl"))
    start = time.process_time()
    amc = decontaminate(train, load_problems(str(SHARED / "amc23_83.jsonl")))
    assert time.process_time() - start < 20
    assert (len(amc.contaminated), len(amc.same_answer), len(amc.clean)) == (55, 46, 28)
    assert min(pair.similarity for pair in amc.pairs) >= 0.69
    for name in ("aime24", "aime25"):
        assert decontaminate(train, load_problems(str(SHARED / f"{name}.jsonl"))).pairs == []
    kept = [problem for problem in train if problem.id not in amc.train_ids]
    assert decontaminate(kept, load_problems(str(SHARED / "amc23_83.jsonl"))).pairs == []
    # Of MATH-500's 27, 19 are the same problem, 5 siblings, 3 others: no more may be added.
    math = decontaminate(train, load_problems(str(SHARED / "math500.jsonl")))
    assert (len(math.contaminated), len(math.same_answer)) == (27, 11)
