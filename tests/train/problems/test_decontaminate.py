"""Contamination: what counts as the same problem, what does not, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from trustclip.train.problems.alike import tokenize
from trustclip.train.problems.decontaminate import Decontaminate, by_state, decontaminate
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.sources import RowSelection, load_problems

ORCHARD = (
    "An orchard has $14$ rows of apple trees. Every row holds $23$ trees, and each tree gives "
    "$57$ kilograms in autumn. "
)
FIGURE = "[asy] " + "draw((0,0)--(9,9)); label(A, (3,4), NW); " * 5 + "[/asy]"


def problems(*texts: str, answer: str = "1", prefix: str = "p") -> list[Problem]:
    return [Problem(f"{prefix}{k}", text, answer) for k, text in enumerate(texts)]


def found(train: str, test: str) -> bool:
    return bool(decontaminate(problems(train), problems(test)))


def states(train: list[Problem], test: list[Problem]) -> dict[str, list[str]]:
    return by_state(decontaminate(train, test), test)


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
    assert states(train, test)["copies"] == ["t1"]


def test_boilerplate_does_not_make_twins_differ():
    tail = "What is the yield? Since the answer has the form k + m, give the value of k + m."
    text = ORCHARD + "How many kilograms is that?"
    strangers = [f"Field {k} is sown with {k} kinds of wheat. {tail}" for k in range(30)]
    test = problems(text, prefix="t")
    assert states(problems(ORCHARD + tail), test)["near"] == []
    assert states(problems(ORCHARD + tail, *strangers), test)["near"] == ["t0"]


def test_a_copy_has_the_text_and_the_answer_of_a_test_problem(tmp_path):
    text = "A word has $5$ letters, and (as here) 12 3 are its numbers. How many vowels has it?"
    train = [
        Problem("a", text.replace("$5$", r"\(5\)").replace(" and", "\n  and"), "1 8"),
        Problem("b", text, "19"),
        Problem("c", text.replace("(as here)", "as here"), "18"),
        Problem("d", text.replace("12 3", "1 23"), "18"),
        Problem("e", text.upper(), "18"),
        Problem("f", text, ""),
    ]
    test = [Problem("y", "What is 1+2?", "3"), Problem("x", text, "18")]
    pairs = decontaminate(train, test)
    assert by_state(pairs, test) == {"copies": ["x"], "near": [], "clean": ["y"]}
    assert {pair.train_id for pair in pairs if pair.copy} == {"a", "f"}
    assert {pair.train_id for pair in pairs} == set("abcef")  # numbers of d differ
    assert {pair.train_id for pair in pairs if not pair.same_answer} == {"b"}
    many = decontaminate(problems(*[text] * 200, answer="18"), problems(text, answer="18"))
    assert sum(pair.copy for pair in many) == 200  # copies of a problem are no boilerplate


def test_similarity_is_the_dice_coefficient_of_the_matching_tokens():
    train, test = problems("a b c d e f g h"), problems("a b c d e f x y z w")
    (pair,) = decontaminate(train, test, threshold=0.6)
    assert pair.similarity == round(2 * 6 / (8 + 10), 3)
    assert decontaminate(train, test, threshold=0.67) == []


def test_chinese_is_compared_character_by_character():
    text = "已知等差数列的前十项和为一百五十，公差为三，求首项。"
    assert found(text, text.replace("求首项", "试求其首项"))
    assert not found("设函数在区间上单调递增，求参数的取值范围。", text)


def test_tokens_leave_layout_out():
    assert tokenize(r"\left\{\dfrac{1}{2}\right\}") == tokenize(r"\{ \frac12 \}") != ()
    assert tokenize("x_{10} = $3.5$") == ("x", "10", "3", "5")


def test_a_sign_makes_another_text():
    assert tokenize("3 + 1 - 2") != tokenize("3 - 1 + 2") == tokenize("3 − 1 + 2")
    assert tokenize("a well-known number") == tokenize("a well known number")
    assert tokenize("5!") == ("5", "!") and tokenize("Hello, Ann!") == ("hello", "ann")


def test_spelling_of_numbers_and_formulas_makes_no_difference():
    assert tokenize("１２３ apples") == tokenize("123 apples")
    assert tokenize("1,234 and $5{,}678$") == tokenize("1234 and 5678")
    assert tokenize("1,23") == ("1", "23")
    assert tokenize(r"$x \le 3 \times y$") == tokenize("𝑥 ≤ 3 × 𝑦")


def test_numbers_in_words_are_the_same_numbers():
    words = ORCHARD.replace("$14$", "fourteen").replace("Every", "Each") + "How many kilograms?"
    assert tokenize("fifteen and zero, two or one") == ("15", "and", "0", "2", "or", "one")
    assert found(words, ORCHARD + "How many kilograms?")


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


def test_a_threshold_out_of_range_is_refused(tmp_path):
    with pytest.raises(ValueError, match="threshold"):
        Decontaminate(train="a", test="b", out=tmp_path / "c.json", threshold=1.1)


def command(tmp_path: Path, **options: Any) -> Decontaminate:
    text = ORCHARD + "How many kilograms is that?"
    rows = {
        "train": [
            {"id": "a", "problem": text, "answer": "18354", "solution": "14*23*57"},
            {"id": "b", "problem": "求 1+2", "answer": "3", "solution": "count", "t": [1]},
            {"id": "c", "problem": "no answer"},
        ],
        "test": [{"id": "x", "problem": text, "answer": "18354.0"}, {"problem": "q", "answer": 1}],
    }
    for name, lines in rows.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        options[name] = str(file)
    options.setdefault("out", tmp_path / "c.json")
    return Decontaminate(**options)


def test_command_writes_report_clean_set_and_quarantine(tmp_path, capsys):
    out, clean = tmp_path / "out" / "c.json", tmp_path / "out" / "clean.jsonl"
    command(tmp_path, out=out, write_clean=clean)()
    assert capsys.readouterr().out == (
        "1 of 2 test problems have a copy among 2 training problems, 0 more a near one: "
        f"{out}\n1 training problems are left: {clean}\n"
    )
    report = json.loads(out.read_text())
    assert (report["copies"], report["near"]) == (["x"], [])
    assert report["pairs"][0] | {"similarity": 1.0} == {
        "test_id": "x", "train_id": "a", "similarity": 1.0, "same_answer": True, "copy": True
    }  # fmt: skip
    kept = load_problems(str(clean), selection=RowSelection(further=True))
    assert kept == [Problem("b", "求 1+2", "3", "count", {"t": [1]})]
    (bad,) = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(bad)["line"] == 3


def test_command_refuses_to_write_over_a_source(tmp_path):
    train = tmp_path / "train.jsonl"
    for options, message in [
        ({"write_clean": train}, "is a source"),
        ({"write_clean": tmp_path / "c.json"}, "are both"),
        ({"out": tmp_path}, "is a folder"),
        ({"max_bad_rows": 0}, r"more bad rows than max_bad_rows allows \(0\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            command(tmp_path, **options)()
    assert len(train.read_text().splitlines()) == 3
    assert not (tmp_path / "c.json").exists()
