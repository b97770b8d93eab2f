"""Generated problems in words with whole-number answers, for small models that read English.

Every worked solution has one short line per step, and its last number is the answer: a model of a
hundred million parameters learns the format from a few hundred of them and is then right sometimes,
which is what reinforcement learning needs.
"""

import random
from abc import abstractmethod
from itertools import accumulate

from trustclip.train.problems.arithmetic import Generated
from trustclip.train.problems.problem import Problem

_NAMES = (
    *("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ivy", "Jon", "Kim", "Leo"),
    *("Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Uma", "Vera", "Will", "Yara", "Zoe"),
)
_THINGS = (
    *("apples", "beads", "books", "buttons", "cards", "coins", "cups", "eggs", "keys", "marbles"),
    *("nuts", "pens", "plums", "ribbons", "shells", "stamps", "stickers", "stones", "toys"),
)
_MORE = ("buys {} more", "finds {} more", "gets {} from a friend", "picks up {} more", "wins {}")
#: Largest total of a `WordSums`.
LARGEST = 50
_LESS = ("gives {} away", "loses {}", "sells {}", "leaves {} at home", "hands {} to a friend")


class WordProblems(Generated):
    """Problems with a solution of short lines."""

    @abstractmethod
    def _lines(self, rng: random.Random) -> tuple[str, list[str], int]:
        """A problem, the lines of its solution, and its answer."""

    def _draw(self, rng: random.Random) -> Problem:
        text, lines, answer = self._lines(rng)
        name = f"{type(self).__name__}: {text}"
        return Problem(id=name, problem=text, answer=str(answer), solution="\n".join(lines))


class WordSums(WordProblems):
    """Short stories of two additions or subtractions whose totals all lie in 1 to 50.

    Example:
      >>> problem = WordSums().train(1)[0]
      >>> print(problem.problem)
      Cleo has 17 stamps. Cleo finds 4 more. Cleo gives 5 away. How many stamps does Cleo have now?
      >>> print(problem.solution)
      17 + 4 = 21
      21 - 5 = 16
    """

    stream = "WordSums-"

    def _lines(self, rng: random.Random) -> tuple[str, list[str], int]:
        name, things = rng.choice(_NAMES), rng.choice(_THINGS)
        total = rng.randint(1, LARGEST)
        story, lines = [f"{name} has {total} {things}."], []
        for _ in range(2):
            more = total < 2 or (total < LARGEST and rng.random() < 0.5)
            change = rng.randint(1, LARGEST - total if more else total - 1)
            after = total + change if more else total - change
            story.append(f"{name} {rng.choice(_MORE if more else _LESS).format(change)}.")
            lines.append(f"{total} {'+' if more else '-'} {change} = {after}")
            total = after
        return " ".join([*story, f"How many {things} does {name} have now?"]), lines, total


class LetterCounts(WordProblems):
    """How often a letter stands in a made-up word of 5 to 8 letters; the solution counts them.

    Example:
      >>> problem = LetterCounts().train(1)[0]
      >>> print(problem.problem)
      How many times does the letter "k" stand in the word "kononuno"?
      >>> print(problem.solution)
      k 1, o 1, n 1, o 1, n 1, u 1, n 1, o 1
      1
    """

    stream = "LetterCounts-"

    def _lines(self, rng: random.Random) -> tuple[str, list[str], int]:
        # Few letters, so that most occur more than once.
        letters = rng.sample("bcdfgklmnprst", 2), rng.sample("aeiou", 2)
        length = rng.randint(5, 8)
        word = "".join(rng.choice(letters[place % 2]) for place in range(length))
        letter = rng.choice(word)
        counts = accumulate(int(own == letter) for own in word)
        spelled = [f"{own} {count}" for own, count in zip(word, counts, strict=True)]
        question = f'How many times does the letter "{letter}" stand in the word "{word}"?'
        return question, [", ".join(spelled), str(word.count(letter))], word.count(letter)


class DigitSums(WordProblems):
    """The sum of the digits of a number of five; the solution keeps the running total.

    Example:
      >>> problem = DigitSums().train(1)[0]
      >>> print(problem.problem)
      What is the sum of the digits of 99402?
      >>> print(problem.solution)
      9 + 9 = 18
      18 + 4 = 22
      22 + 0 = 22
      22 + 2 = 24
    """

    stream = "DigitSums-"

    def _lines(self, rng: random.Random) -> tuple[str, list[str], int]:
        number = [rng.randint(1, 9), *(rng.randint(0, 9) for _ in range(4))]
        totals = list(accumulate(number))
        lines = [
            f"{before} + {digit} = {total}"
            for before, digit, total in zip(totals, number[1:], totals[1:], strict=False)
        ]
        return f"What is the sum of the digits of {''.join(map(str, number))}?", lines, totals[-1]
