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

from trustclip.support.checked import UpToOne, Whole, checked
from trustclip.support.jsonl import plain, write_json, write_text
from trustclip.support.marks import Dotted, Metavar
from trustclip.train.problems.alike import Tokens, bare, tokenize
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.sources import RowSelection, load_problems

#: Tokens in an n-gram of the index; a shorter text is one n-gram.
NGRAM = 4
#: A phrase of this many training problems, or of one in a thousand, is boilerplate.
COMMON_COUNT, COMMON_SHARE = 20, 1e-3
#: A candidate shares this part of the test problem's distinctive n-grams.
CANDIDATE_SHARE = 0.1
#: If a text has fewer distinctive tokens than this, all its tokens are compared.
FEWEST_DISTINCTIVE = 5
#: A text lies inside a longer one if this share of it, and so many tokens, match in whole n-grams.
CONTAINED_SHARE, FEWEST_CONTAINED = 0.9, 8
#: At least this share of the numbers must agree.
NUMBER_SHARE = 0.6


@dataclass(frozen=True)
class Pair:
    """A training problem that is like a test problem.

    Args:
      similarity: share of their distinctive tokens that match in order, in [0, 1].
      same_answer: the golds are equal, or one of the problems has none.
      copy: text and answer are the same.
    """

    test_id: str
    train_id: str
    similarity: float
    same_answer: bool
    copy: bool


def decontaminate(
    train: Sequence[Problem], test: Sequence[Problem], *, threshold: float = 0.7
) -> list[Pair]:
    r"""Find the training problems that are copies of test problems, or near them.

    A *copy* has the same text, but for white space and marks of formulas, and the same answer. A
    *near* problem may be reworded, have another question or lie within a longer text; or it is
    another problem of the same template. A comparison of texts cannot tell these apart.

    Near problems share distinctive n-grams with the test problem, from an inverted index. With
    $m$ of a text's $n$ distinctive tokens inside `difflib`'s matching blocks, the similarity is the
    Dice coefficient $(m_\text{test} + m_\text{train}) / (n_\text{test} + n_\text{train})$, and the
    numbers of both, as multisets, must agree to 60 %. For a text that lies within a longer one it
    is the share of that text that matches. A token is distinctive unless it occurs in an n-gram
    of more than 20 training problems, and of more than one in a thousand of them.

    Args:
      train: the training problems.
      test: the test problems.
      threshold: least similarity of a near problem, in (0, 1].

    Returns:
      Every match; a test problem may have several.

    Example:
      >>> train = [Problem("s", "A bag holds 7 red and 9 blue marbles. Find the count.", "16"),
      ...          Problem("t", "What is the largest prime below $30$?", "29")]
      >>> test = [Problem("a", "A bag holds $7$ red and $9$ blue marbles. How many?", "16"),
      ...         Problem("b", "What is the largest prime below 30?", "29")]
      >>> [(pair.test_id, pair.train_id, pair.copy) for pair in decontaminate(train, test)]
      [('a', 's', False), ('b', 't', True)]
    """
    twins: dict[Tokens, list[Problem]] = {}
    for problem in train:
        twins.setdefault(tokenize(problem.problem), []).append(problem)
    texts = [tokenize(problem.problem) for problem in test]
    common = max(COMMON_COUNT, int(COMMON_SHARE * len(twins)))
    candidates = _candidates(twins, texts, common)
    distinctive = _distinctive(twins, set(texts).union(*candidates), common)
    pairs = []
    for problem, text, others in zip(test, texts, candidates, strict=True):
        for other in sorted(others | ({text} & twins.keys())):
            similarity = _similarity(text, distinctive[text], other, distinctive[other])
            if similarity >= threshold:
                pairs += [_pair(problem, twin, similarity) for twin in twins[other]]
    return pairs


def by_state(pairs: Sequence[Pair], test: Sequence[Problem]) -> dict[str, list[str]]:
    """Ids of the test problems with ``copies``, of those with ``near`` ones only, and of the rest.

    The rest are ``clean``; each list is in test order.
    """
    copies = {pair.test_id for pair in pairs if pair.copy}
    near = {pair.test_id for pair in pairs} - copies
    ids = [problem.id for problem in test]
    return {
        "copies": [id for id in ids if id in copies],
        "near": [id for id in ids if id in near],
        "clean": [id for id in ids if id not in copies | near],
    }


def _grams(tokens: Tokens) -> list[Tokens]:
    return [tokens[k : k + NGRAM] for k in range(max(len(tokens) - NGRAM, 0) + 1)]


def _candidates(train: Iterable[Tokens], test: Sequence[Tokens], common: int) -> list[set[Tokens]]:
    index: dict[Tokens, list[Tokens]] = {gram: [] for text in test for gram in _grams(text)}
    for text in train:
        for gram in set(_grams(text)):
            if gram in index:
                index[gram].append(text)
    similar = []
    for text in test:
        # A phrase that no training problem has is the test's own, such as a prompt template.
        rare = [index[gram] for gram in set(_grams(text)) if 0 < len(index[gram]) <= common]
        shared = Counter(other for texts in rare for other in texts)
        similar.append({other for other, k in shared.items() if k >= CANDIDATE_SHARE * len(rare)})
    return similar


def _distinctive(
    train: Iterable[Tokens], texts: set[Tokens], common: int
) -> dict[Tokens, list[bool]]:
    """Which tokens of each text occur in no n-gram of more than `common` training texts."""
    grams = {gram for text in texts for gram in _grams(text)}
    counts: Counter[Tokens] = Counter()
    for text in train:
        counts.update(grams.intersection(_grams(text)))
    flags = {}
    for text in texts:
        flags[text] = [True] * len(text)
        for k, gram in enumerate(_grams(text)):
            if counts[gram] > common:
                flags[text][k : k + NGRAM] = [False] * len(gram)
        if sum(flags[text]) < FEWEST_DISTINCTIVE:  # too little left to distinguish problems
            flags[text] = [True] * len(text)
    return flags


def _similarity(a: Tokens, keep_a: list[bool], b: Tokens, keep_b: list[bool]) -> float:
    """Similarity of two texts; 0 if fewer than 60 % of the numbers of the shorter one agree."""
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    in_a = [sum(keep_a[m.a : m.a + m.size]) for m in blocks]
    in_b = [sum(keep_b[m.b : m.b + m.size]) for m in blocks]
    length, inside, numbers = min(
        (sum(keep_a), in_a, _numbers(a, keep_a)),
        (sum(keep_b), in_b, _numbers(b, keep_b)),
        key=lambda text: text[0],
    )
    other = _numbers(b, keep_b) if inside is in_a else _numbers(a, keep_a)
    if (numbers & other).total() < NUMBER_SHARE * numbers.total():
        return 0.0
    runs = sum(k for k, m in zip(inside, blocks, strict=True) if m.size >= NGRAM)
    if length >= FEWEST_CONTAINED and runs >= CONTAINED_SHARE * length:
        return runs / length
    return (sum(in_a) + sum(in_b)) / max(sum(keep_a) + sum(keep_b), 1)


def _numbers(text: Tokens, keep: list[bool]) -> Counter[str]:
    return Counter(token for token in compress(text, keep) if token.isdigit())


def _pair(test: Problem, train: Problem, similarity: float) -> Pair:
    golds = ["".join(problem.answer.split()) for problem in (test, train)]
    same = not all(golds) or golds[0] == golds[1]
    copy = same and bare(test.problem) == bare(train.problem)
    return Pair(test.id, train.id, round(similarity, 3), same, copy)


@checked
class Decontaminate:
    """Find the test problems that occur in a training set."""

    train: str
    """Training problems: a file, a known name or a hub id; a hub set's training split is used."""
    test: str
    """Test problems, likewise; a hub set's test split is used."""
    out: Path
    """JSON report: ids of test problems with copies, with near ones, clean ones; all pairs."""
    write_clean: Path | None = None
    """JSON-lines file for the training problems that are no copies, with all of their columns."""
    columns: Annotated[dict[str, str], Dotted(), Metavar("VALUE")] = field(default_factory=dict)
    """Columns that hold the parts of a problem, in both sources, as in --columns.problem text."""
    near: bool = False
    """Also leave near problems out of that file: reworded ones, and others of one template."""
    threshold: UpToOne = 0.7
    """Minimum similarity of a near problem."""
    max_bad_rows: Whole = 100
    """Maximum number of bad rows per source; they go to quarantine.jsonl next to the report."""

    def __call__(self) -> None:
        """Write the report; finding copies is not a failure.

        Raises:
          ValueError: a source cannot be read or has too many bad rows, or an output is one of the
            sources.
        """
        self._check_outputs()
        quarantine = self.out.parent / "quarantine.jsonl"
        load = partial(
            load_problems,
            max_bad_rows=self.max_bad_rows,
            quarantine=quarantine,
            selection=RowSelection(self.columns, further=True),
        )
        train, test = load(self.train, use="train"), load(self.test, use="test")
        pairs = decontaminate(train, test, threshold=self.threshold)
        found = by_state(pairs, test)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.out, {**found, "pairs": [asdict(pair) for pair in pairs]})
        print(
            f"{len(found['copies'])} of {len(test)} test problems have a copy among {len(train)} "
            f"training problems, {len(found['near'])} more a near one: {self.out}"
        )
        if self.write_clean is not None:
            left_out = {pair.train_id for pair in pairs if self.near or pair.copy}
            clean = [problem for problem in train if problem.id not in left_out]
            rows = (
                plain(one.columns) | {k: v for k, v in vars(one).items() if isinstance(v, str)}
                for one in clean
            )
            text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
            self.write_clean.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.write_clean, text)
            print(f"{len(clean)} training problems are left: {self.write_clean}")

    def _check_outputs(self) -> None:
        sources = {Path(self.train).resolve(), Path(self.test).resolve()}
        outputs = [path for path in (self.out, self.write_clean) if path is not None]
        for path in outputs:
            if path.is_dir():
                raise ValueError(f"{path} is a folder, an output must be a file")
            if path.resolve() in sources:
                raise ValueError(f"{path} is a source, writing to it would destroy it")
        if len({path.resolve() for path in outputs}) < len(outputs):
            raise ValueError(f"out and write_clean are both {self.out}")
