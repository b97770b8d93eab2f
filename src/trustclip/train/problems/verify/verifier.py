"""The verifier: scores completions against golds as 0.0 or 1.0, whatever they contain."""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from trustclip.train.problems.verify.equivalence import alternatives, compare
from trustclip.train.problems.verify.extraction import Style, check_style, clean, extract_answer
from trustclip.train.problems.verify.pool import WorkerPool

_MAX_TEXT = 20_000


class Verifier:
    r"""Binary verification of final answers that no completion can stall or crash.

    An answer is cut out of the completion (`extract_answer`), compared in Python integers where
    that settles it, and otherwise by math-verify in a process of its own, which is killed and
    replaced when it needs more than `timeout` seconds or `memory_limit` bytes. No process is
    started before an answer needs one. Threads may share a verifier; it needs neither signals nor
    a ``__main__`` guard.

    Args:
      workers: number of processes for algebra, at least 1.
      timeout: wall-clock seconds that one answer may take, positive.
      memory_limit: address space of one process in bytes, at least 1 GiB.
      recycle_after: answers after which a process is replaced by a fresh one, at least 1.

    Attributes:
      counts: how answers were judged so far: ``direct`` (without algebra), ``algebra`` (by
        math-verify); ``no_answer`` (nothing extracted), ``timeout`` (also: no process could be
        started, which is logged), ``crash`` (the process died), ``error`` (math-verify raised) and
        ``unreadable_gold`` scored 0.

    Raises:
      ValueError: an argument out of range.

    Example:
      >>> with Verifier(workers=2, timeout=2.0) as v:
      ...     v.score(["34", "34", "34"], [r"\boxed{34.0}", "Answer: 35", "no idea"])
      [1.0, 0.0, 0.0]
      >>> v.counts["direct"], v.counts["no_answer"]
      (2, 1)

    References:
      Math-Verify, https://github.com/huggingface/Math-Verify
    """

    def __init__(
        self,
        workers: int = 2,
        timeout: float = 2.0,
        memory_limit: int = 2 << 30,
        recycle_after: int = 5_000,
    ) -> None:
        for name, value, least in (
            ("workers", workers, 1),
            ("memory_limit", memory_limit, 1 << 30),
            ("recycle_after", recycle_after, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: an integer of at least {least} is needed")
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout={timeout!r}: a positive number of seconds is needed")
        self.counts: Counter[str] = Counter()
        self._timeout = float(timeout)
        self._pool = WorkerPool(workers, memory_limit, recycle_after)

    def score(
        self, golds: Sequence[Any], responses: Sequence[str], style: Style = "any"
    ) -> list[float]:
        """Score each response against its gold.

        Args:
          golds: the right answers, as text or numbers; a list holds alternatives, any of which is
            right, also as text (``"['9.6', '9.60']"``).
          responses: completions without their prompts; anything that is no string scores 0.
          style: where the answer stands; see `extract_answer`.

        Returns:
          One score per response, 1.0 if its answer equals the gold and 0.0 otherwise.

        Raises:
          ValueError: unequal lengths, an unknown style, or a gold that is missing (None, NaN).
          ImportError: an answer needs math-verify and it is not installed.
        """
        return [float(right) for right, _ in self.judge(golds, responses, style)]

    def judge(
        self, golds: Sequence[Any], responses: Sequence[str], style: Style = "any"
    ) -> list[tuple[bool, str]]:
        """As `score`: whether each response is right, and how it was judged (see `counts`)."""
        check_style(style)
        if len(golds) != len(responses):
            raise ValueError(
                f"{len(golds)} golds for {len(responses)} responses: one each is needed"
            )
        questions = []
        for gold, response in zip(golds, responses, strict=True):
            answer = extract_answer(response, style) if isinstance(response, str) else None
            questions.append(([_bare_gold(text) for text in _texts(gold)], answer))
        return self._judge(questions)

    def close(self) -> None:
        """Kill the worker processes. The verifier cannot be used for algebra afterwards."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _judge(
        self, questions: Sequence[tuple[Sequence[str], str | None]]
    ) -> list[tuple[bool, str]]:
        """Whether each answer equals one of its golds; every answer counts once in `counts`."""
        verdicts: dict[tuple[str, str | None], tuple[bool, str]] = {}
        undecided: dict[tuple[str, str], None] = {}
        for golds, answer in questions:
            for gold in golds:
                if answer is None:
                    verdicts[gold, answer] = False, "no_answer"
                elif (verdict := compare(gold, answer)) is None:
                    undecided[gold, answer] = None
                else:
                    verdicts[gold, answer] = verdict, "direct"
        tasks = [
            {"gold": gold[:_MAX_TEXT], "answer": answer[:_MAX_TEXT], "timeout": self._timeout}
            for gold, answer in undecided
        ]
        for pair, reply in zip(undecided, self._pool.ask(tasks), strict=True):
            kind = "algebra" if reply in ("right", "wrong") else reply
            verdicts[pair] = reply == "right", kind
        # Of several golds, count the verdict on the right one, else one that was not direct.
        best = [
            max(
                (verdicts[gold, answer] for gold in golds),
                key=lambda verdict: (verdict[0], verdict[1] != "direct"),
            )
            for golds, answer in questions
        ]
        with self._pool.lock:
            self.counts.update(kind for _, kind in best)
        return best


def _texts(gold: Any) -> list[str]:
    """A gold's alternatives as text; most have one."""
    gold = gold.tolist() if hasattr(gold, "tolist") else gold
    if isinstance(gold, list | tuple) and gold:
        return [text for one in gold for text in _texts(one)]
    if gold is None or gold != gold or isinstance(gold, list | tuple):
        raise ValueError(
            f"the gold answer {gold!r} is missing: an answer cannot be compared with it"
        )
    text = str(gold).strip()
    return [one.strip() for one in alternatives(text) or [text]]


@functools.lru_cache(maxsize=4096)
def _bare_gold(gold: str) -> str:
    return clean(gold) or gold
