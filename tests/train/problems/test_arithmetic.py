"""Generated arithmetic: right by an independent evaluation, split for good, wrong on purpose."""

import operator
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip.train.problems.arithmetic import Arithmetic, split_of, terse
from trustclip.train.problems.problem import Problem

OPERATORS = {"+": operator.add, "-": operator.sub}
DIGEST = (
    "import hashlib\n"
    "from trustclip.train.problems.arithmetic import Arithmetic\n"
    "a = Arithmetic(seed=3)\n"
    "print(hashlib.sha256(repr((a.train(50), a.test(50), a.primer(50))).encode()).hexdigest())\n"
)


def totals(expression: str) -> list[int]:
    """Partial results of ``a + b - c``, read token by token."""
    first, *rest = expression.split()
    results = [int(first)]
    for sign, operand in zip(rest[::2], rest[1::2], strict=True):
        results.append(OPERATORS[sign](results[-1], int(operand)))
    return results


def solution_of(problem: Problem) -> str:
    assert problem.solution is not None
    return problem.solution


def stated(problem: Problem) -> str:
    """The answer that a solution states."""
    return re.findall(r"<SOLUTION>(.*?)</SOLUTION>", solution_of(problem))[-1]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(3, 20), st.integers(0, 10**6))
def test_answers_are_exact_and_partial_results_stay_in_range(operations, largest, seed):
    arithmetic = Arithmetic(operations=operations, largest=largest, seed=seed)
    for problem in arithmetic.train(8) + arithmetic.test(2):
        results = totals(problem.problem)
        assert len(results) == operations + 1
        assert problem.answer == str(results[-1]) == stated(problem)
        assert all(0 <= result <= largest for result in results)


def test_every_step_of_a_worked_solution_is_true():
    for problem in Arithmetic(largest=20).train(200):
        (chain,) = re.findall(r"<start_working_out>(.*)<end_working_out>", solution_of(problem))
        total, *steps = re.split(r"(?=[+-])", chain)
        for step in steps:
            ((sign, operand, result),) = re.findall(r"^([+-])(\d+)=(\d+)$", step)
            assert OPERATORS[sign](int(total), int(operand)) == int(result)
            total = result
        assert total == problem.answer
        assert len(steps) == 5


def test_one_problem_in_eight_is_a_test_problem():
    texts = [f"{a} + {b}" for a in range(100) for b in range(100)]
    share = sum(split_of(text) == "test" for text in texts) / len(texts)
    assert share == pytest.approx(1 / 8, abs=0.015)


def test_draws_are_equal_in_processes_with_other_hash_seeds():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_the_primer_mixes_worked_and_mostly_wrong_terse_solutions():
    problems = Arithmetic().primer(3000)
    long = [p for p in problems if "<start_working_out>" in solution_of(p)]
    short = [p for p in problems if p.solution == terse(int(stated(p)))]
    assert len(long) + len(short) == 3000
    assert len(long) / 3000 == pytest.approx(0.25, abs=0.03)
    assert all(stated(p) == p.answer for p in long)
    right = sum(stated(p) == p.answer for p in short) / len(short)
    assert right == pytest.approx(0.1, abs=0.03)
    assert {int(stated(p)) for p in short} == set(range(5))


@pytest.mark.parametrize("n", [90, 10**12])
def test_more_problems_than_exist_are_refused(n):
    with pytest.raises(ValueError, match=f"n.*{n}"):
        Arithmetic(operations=1, largest=9).train(n)


def test_all_problems_of_a_small_task_can_be_drawn():
    def count(draw: Callable[[int], list[Problem]]) -> int:
        n = 0
        with pytest.raises(ValueError, match="more than"):
            while True:
                draw(n + 1)
                n += 1
        return n

    arithmetic = Arithmetic(operations=1, largest=9)
    assert count(arithmetic.train) + count(arithmetic.test) == 10 * 9
