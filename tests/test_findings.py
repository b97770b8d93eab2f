"""What is said of a run: the sentences of `golden_runs`, each one read before it was committed."""

from golden_runs import GOLDEN, golden


def test_the_sentences_of_the_golden_runs_are_those_that_were_read() -> None:
    """`python tests/golden_runs.py` writes the file anew; read its difference."""
    assert golden().splitlines() == GOLDEN.read_text().splitlines()
