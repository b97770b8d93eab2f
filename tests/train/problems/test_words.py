"""Generated problems in words: right answers, worked lines, training and test problems apart."""

import re

import pytest

from trustclip.train.problems.generated import GENERATED
from trustclip.train.problems.verify.extraction import extract_answer
from trustclip.train.problems.words import DigitSums, LetterCounts, WordSums

WORDED = {name: made for name, made in GENERATED.items() if name != "arithmetic"}


@pytest.mark.parametrize("name", WORDED)
def test_the_last_number_of_a_solution_is_the_answer(name: str) -> None:
    for problem in [*WORDED[name](seed=3).train(200), *WORDED[name]().test(50)]:
        assert problem.solution and extract_answer(problem.solution, "any") == problem.answer


@pytest.mark.parametrize("name", GENERATED)
def test_problems_are_distinct_and_training_is_apart_from_testing(name: str) -> None:
    made = GENERATED[name]
    tests = {problem.problem for problem in made().test(128)}
    assert len(tests) == 128
    for seed in (0, 1):
        problems = made(seed=seed).train(600)
        train = {problem.problem for problem in problems}
        assert len(train) == len({problem.id for problem in problems}) == 600
        assert not tests & train and problems[:20] == made(seed=seed).train(20)
    assert made(seed=0).train(5) != made(seed=1).train(5)


def test_every_line_of_a_word_sum_is_a_true_equation_that_the_story_asks_for() -> None:
    for problem in WordSums().train(200):
        assert problem.solution is not None
        numbers = [int(n) for n in re.findall(r"\d+", problem.problem)]
        total = numbers[0]
        for line, change in zip(problem.solution.split("\n"), numbers[1:], strict=True):
            before, sign, step, result = re.fullmatch(r"(\d+) ([+-]) (\d+) = (\d+)", line).groups()  # type: ignore[union-attr]
            assert (int(before), int(step)) == (total, change)
            total = total + change if sign == "+" else total - change
            assert int(result) == total and 1 <= total <= 50


def test_letters_and_digits_are_counted() -> None:
    for problem in LetterCounts().train(100):
        letter, word = re.findall(r'"(\w+)"', problem.problem)
        assert int(problem.answer) == word.count(letter) and 5 <= len(word) <= 8
    for problem in DigitSums().train(100):
        number = re.findall(r"\d+", problem.problem)[0]
        assert len(number) == 5 and int(problem.answer) == sum(map(int, number))
