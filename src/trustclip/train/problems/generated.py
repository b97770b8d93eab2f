"""Generated problems, by the names that take the place of a data set's."""

from trustclip.train.problems.arithmetic import Arithmetic, Generated
from trustclip.train.problems.words import DigitSums, LetterCounts, WordSums

#: A new task is a class in this folder and a line here.
GENERATED: dict[str, type[Generated]] = {
    "arithmetic": Arithmetic,
    "word-sums": WordSums,
    "letter-counts": LetterCounts,
    "digit-sums": DigitSums,
}
#: For fine-tuning alone: chain arithmetic with solutions that are mostly terse and wrong.
PRIMER = "arithmetic-primer"
