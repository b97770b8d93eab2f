"""Test problems that occur in a training set: an n-gram index, then a close comparison."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from trustclip.train.problems.alike import Tokens, are_distinct, digits, frame, tokenize, unsigned
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.sources import load_problems

# More training problems than this with one text but for its numbers are a family, as a generator
# makes them: there numbers alone make a problem, so all of them have to be the same, in order.
_FAMILY = 5
# A phrase of this many training problems, or of one in a thousand, is boilerplate.
_COMMON_COUNT, _COMMON_SHARE = 20, 1e-3
# A candidate shares this part of the test problem's distinctive n-grams.
_CANDIDATE_SHARE = 0.1
_FEWEST_DISTINCTIVE = 5
# A text inside a longer one: at least this share of it matches in runs of an n-gram or longer, and
# it has at least this many tokens, since short phrases occur in many texts.
_CONTAINED_SHARE, _FEWEST_CONTAINED = 0.9, 8
# Tokens in the runs that count where sentences stand in another order.
_SHORTEST = 3
# Where a text has at least this many numbers and another has the same ones in the same order, its
# clauses may be rephrased: the threshold is this much lower, for the words in any order.
_MANY_NUMBERS, _REPHRASED = 5, 0.1
# From this similarity on, numbers on one side only (the other may spell them out) do no harm.
_NEARLY_EQUAL = 0.9


@dataclass(frozen=True)
class Pair:
    """A test problem and a training problem that are the same.

    Args:
      similarity: share of their distinctive tokens that match in order, in [0, 1].
      numbers: share of their distinctive numbers that match, in [0, 1].
      same_answer: the golds are equal, so a reward teaches exactly the test's answer.
    """

    test_id: str
    train_id: str
    similarity: float
    numbers: float
    same_answer: bool


@dataclass(frozen=True)
class Report:
    """Which test problems occur in the training set.

    Args:
      contaminated: ids of the test problems with a match, in test order.
      pairs: every match; a test problem may have several.
      clean: ids of the other test problems, in test order.
    """

    contaminated: list[str]
    pairs: list[Pair] = field(repr=False)
    clean: list[str]

    @property
    def same_answer(self) -> list[str]:
        """Ids of the test problems with a match of the same gold, in test order."""
        same = {pair.test_id for pair in self.pairs if pair.same_answer}
        return [id for id in self.contaminated if id in same]

    @property
    def train_ids(self) -> set[str]:
        """Ids of the training problems to leave out."""
        return {pair.train_id for pair in self.pairs}

    def write(self, path: Path) -> None:
        """Write the report as one JSON object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def decontaminate(
    train: Sequence[Problem],
    test: Sequence[Problem],
    *,
    ngram: int = 4,
    threshold: float = 0.7,
    number_threshold: float = 0.6,
) -> Report:
    r"""Find the test problems that occur in a training set, word for word or with a new question.

    Candidates share distinctive n-grams with the test problem, from an inverted index. Each is
    then compared closely: with $m$ of a text's $n$ distinctive tokens inside `difflib`'s matching
    blocks, the similarity is the Dice coefficient
    $(m_\text{test} + m_\text{train}) / (n_\text{test} + n_\text{train})$, or that of their runs of
    three tokens if it is higher, since sentences may stand in another order. Where all numbers,
    five or more, are the same in the same order, it is at least that of all words in any order, and
    the threshold is 0.1 lower, since clauses may be reordered. For a text that lies within a longer
    one, a prompt or a story around it, it is the share of that text that matches. Otherwise equal
    texts are different problems if they differ in an operator, in the word whose letters the
    problem is about or, where the text is short, in the figure.

    A token is distinctive unless it occurs in an n-gram that many training problems share. Such
    boilerplate ("where m and n are relatively prime", "give the value of k + m") makes unrelated
    problems alike, and copies with a rewritten question different. Numbers are compared once more,
    as multisets: the members of a problem family differ in nothing else. An n-gram counts as
    boilerplate from 21 different texts on, so a small training set has none. Where more than five
    training problems have the test problem's text but for the numbers, they are a generator's
    family, in which all numbers must agree.

    Args:
      train: the training problems.
      test: the test problems.
      ngram: tokens in an n-gram, at least 2; a shorter text is one n-gram.
      threshold: least similarity of a match, in (0, 1]. On AMC 2022/23 against DAPO-Math-17k the
        lowest true match has 0.75 (0.69 with all numbers in order) and the highest false one 0.63.
      number_threshold: least share of matching numbers, in [0, 1].

    Returns:
      The report. It errs towards reporting a sibling (same figures, another question) rather than
      missing a copy: read the pairs of low similarity before quoting a count.

    Raises:
      ValueError: an argument is out of its range.

    Example:
      >>> train = [Problem("t", "A bag holds 7 red and 9 blue marbles. Find the count.", "16")]
      >>> test = [Problem("a", "A bag holds $7$ red and $9$ blue marbles. How many?", "16"),
      ...         Problem("b", "What is the largest prime below 30?", "29")]
      >>> report = decontaminate(train, test)
      >>> report.contaminated, report.clean, report.same_answer
      (['a'], ['b'], ['a'])
    """
    if ngram < 2:
        raise ValueError(f"ngram is {ngram}, must be at least 2 tokens")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}, must be in (0, 1]")
    if not 0 <= number_threshold <= 1:
        raise ValueError(f"number_threshold is {number_threshold}, must be in [0, 1]")
    twins: dict[Tokens, list[Problem]] = {}
    for problem in train:
        twins.setdefault(unsigned(tokenize(problem.problem)), []).append(problem)
    texts = [unsigned(tokenize(problem.problem)) for problem in test]
    common = max(_COMMON_COUNT, int(_COMMON_SHARE * len(twins)))
    candidates = _candidates(twins, texts, ngram, common)
    distinctive = _distinctive(twins, set(texts).union(*candidates), ngram, common)
    families = Counter(map(frame, twins))
    pairs = []
    for problem, text, others in zip(test, texts, candidates, strict=True):
        of_family = families[frame(text)] > _FAMILY
        for other in sorted(others):
            if of_family and digits(text) != digits(other):
                continue
            scores = _scores(text, distinctive[text], other, distinctive[other], ngram)
            least = threshold
            if len(digits(text)) >= _MANY_NUMBERS and digits(text) == digits(other):
                in_any_order = (Counter(text) & Counter(other)).total()
                likeness = _ratio(2 * in_any_order, len(text) + len(other))
                scores, least = (max(scores[0], likeness), 1.0), threshold - _REPHRASED
            if scores[0] >= least and scores[1] >= number_threshold:
                pairs += [
                    _pair(problem, twin, scores)
                    for twin in twins[other]
                    if not are_distinct(problem.problem, twin.problem)
                ]
    hits = {pair.test_id for pair in pairs}
    ids = [problem.id for problem in test]
    return Report([id for id in ids if id in hits], pairs, [id for id in ids if id not in hits])


def _grams(tokens: Tokens, n: int) -> list[Tokens]:
    return [tokens[k : k + n] for k in range(max(len(tokens) - n, 0) + 1)] if tokens else []


def _candidates(
    train: Iterable[Tokens], test: Sequence[Tokens], n: int, common: int
) -> list[set[Tokens]]:
    index: dict[Tokens, list[Tokens]] = {gram: [] for text in test for gram in _grams(text, n)}
    for text in train:
        for gram in set(_grams(text, n)):
            if gram in index:
                index[gram].append(text)
    similar = []
    for text in test:
        # A phrase that no training problem has is the test's own, such as a prompt template.
        rare = [index[gram] for gram in set(_grams(text, n)) if 0 < len(index[gram]) <= common]
        shared = Counter(other for texts in rare for other in texts)
        similar.append({other for other, k in shared.items() if k >= _CANDIDATE_SHARE * len(rare)})
    return similar


def _distinctive(
    train: Iterable[Tokens], texts: set[Tokens], n: int, common: int
) -> dict[Tokens, list[bool]]:
    """Which tokens of each text occur in no n-gram of more than `common` training texts."""
    grams = {gram for text in texts for gram in _grams(text, n)}
    counts: Counter[Tokens] = Counter()
    for text in train:
        counts.update(grams.intersection(_grams(text, n)))
    flags = {}
    for text in texts:
        flags[text] = [True] * len(text)
        for k, gram in enumerate(_grams(text, n)):
            if counts[gram] > common:
                flags[text][k : k + n] = [False] * len(gram)
        if sum(flags[text]) < _FEWEST_DISTINCTIVE:  # too little left to distinguish problems
            flags[text] = [True] * len(text)
    return flags


def _scores(
    a: Tokens, keep_a: list[bool], b: Tokens, keep_b: list[bool], n: int
) -> tuple[float, float]:
    """Similarity and share of matching numbers of two texts."""
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    in_a, in_b = (
        [sum(keep[at : at + m.size]) for m in blocks for at in [m.a if keep is keep_a else m.b]]
        for keep in (keep_a, keep_b)
    )
    similarity = _ratio(sum(in_a) + sum(in_b), sum(keep_a) + sum(keep_b))
    similarity = max(similarity, _reordered(a, keep_a, b, keep_b))
    numbers_a, numbers_b = _numbers(a, keep_a), _numbers(b, keep_b)
    if not (numbers_a and numbers_b):
        numbers_a, numbers_b = _numbers(a), _numbers(b)
    shared, totals = (numbers_a & numbers_b).total(), (numbers_a.total(), numbers_b.total())
    if similarity < _NEARLY_EQUAL:
        shorter, inside = (keep_a, in_a) if sum(keep_a) <= sum(keep_b) else (keep_b, in_b)
        runs = sum(k for k, m in zip(inside, blocks, strict=True) if m.size >= n)
        contained = _ratio(runs, sum(shorter))
        if sum(shorter) >= _FEWEST_CONTAINED and contained >= _CONTAINED_SHARE:
            return contained, _ratio(shared, totals[shorter is keep_b])
    elif min(totals) == 0:
        return similarity, 1.0
    return similarity, _ratio(2 * shared, sum(totals))


def _reordered(a: Tokens, keep_a: list[bool], b: Tokens, keep_b: list[bool]) -> float:
    """Dice coefficient of the distinctive n-grams: sentences may stand in another order."""
    grams = [
        Counter(g for k, g in enumerate(_grams(text, _SHORTEST)) if any(keep[k : k + _SHORTEST]))
        for text, keep in ((a, keep_a), (b, keep_b))
    ]
    if min(gram.total() for gram in grams) < _FEWEST_CONTAINED:
        return 0.0
    return 2 * (grams[0] & grams[1]).total() / (grams[0].total() + grams[1].total())


def _numbers(text: Tokens, keep: list[bool] | None = None) -> Counter[str]:
    tokens = text if keep is None else compress(text, keep)
    return Counter(token for token in tokens if token.isdigit())


def _ratio(matched: int, total: int) -> float:
    return matched / total if total else 1.0


def _pair(test: Problem, train: Problem, scores: tuple[float, float]) -> Pair:
    same = "".join(test.answer.split()) == "".join(train.answer.split())
    return Pair(test.id, train.id, round(scores[0], 3), round(scores[1], 3), same)


@config_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class DecontaminateConfig:
    """Find the test problems that occur in a training set."""

    train: str
    """Training problems: a file, a known name or a hub id; a hub set's training split is used."""
    test: str
    """Test problems, likewise; a hub set's test split is used."""
    out: Path
    """JSON report: contaminated ids, matching pairs with their scores, clean ids."""
    write_clean: Path | None = None
    """JSON-lines file for the training problems that match no test problem."""
    ngram: Annotated[int, Field(ge=2)] = 4
    """Tokens in an n-gram of the index."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Minimum similarity of a match."""
    number_threshold: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Minimum share of matching numbers."""
    max_bad_rows: Annotated[int, Field(ge=0)] = 100
    """Maximum number of bad rows per source; they go to quarantine.jsonl next to the report."""


def run(config: DecontaminateConfig) -> int:
    """Run ``trustclip decontaminate``; finding matches is not a failure.

    Raises:
      ValueError: a source cannot be read or has too many bad rows, or an output is one of the
        sources.
    """
    _check_outputs(config)
    quarantine = config.out.parent / "quarantine.jsonl"
    load = partial(load_problems, max_bad_rows=config.max_bad_rows, quarantine=quarantine)
    train, test = load(config.train, use="train"), load(config.test, use="test")
    report = decontaminate(
        train,
        test,
        ngram=config.ngram,
        threshold=config.threshold,
        number_threshold=config.number_threshold,
    )
    report.write(config.out)
    print(
        f"{len(report.contaminated)} of {len(test)} test problems occur among {len(train)} training"
        f" problems, {len(report.same_answer)} with the same answer: {config.out}"
    )
    if config.write_clean is not None:
        clean = [problem for problem in train if problem.id not in report.train_ids]
        _write_problems(config.write_clean, clean)
        print(f"{len(clean)} training problems match no test problem: {config.write_clean}")
    return 0


def _check_outputs(config: DecontaminateConfig) -> None:
    sources = {Path(config.train).resolve(), Path(config.test).resolve()}
    outputs = [path for path in (config.out, config.write_clean) if path is not None]
    for path in outputs:
        if path.is_dir():
            raise ValueError(f"{path} is a folder, an output must be a file")
        if path.resolve() in sources:
            raise ValueError(f"{path} is a source, writing to it would destroy it")
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise ValueError(f"out and write_clean are both {config.out}")


def _write_problems(path: Path, problems: Iterable[Problem]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for problem in problems:
            row = {key: value for key, value in asdict(problem).items() if value not in (None, {})}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
