r"""How fast, how right and how hard to stall the verifier is, next to plain math-verify.

    python benchmarks/verifier.py --cases cases.jsonl

A cases file has one JSON object per line: ``gold``, ``pred``, ``expected`` (0 or 1) and optionally
``kind`` (``"response"``: a whole completion; otherwise a short answer). Cases for math-verify's
options ``float_rounding`` and ``allow_set_relation_comp`` are left out: trustclip takes none.
"""

import argparse
import json
import logging
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trustclip.train.problems.verify import Style, Verifier
from trustclip.train.problems.verify.equivalence import compare, parse_integer

OPTIONS = ("float_rounding", "allow_set_relation_comp")
Row = tuple[str, str, str]


def rate(call: Callable[[], Any], items: int, repeats: int = 5) -> float:
    """Best of `repeats`: items per second of CPU time, so that a busy machine counts less."""
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return items / best


def speed(items: int = 20_000) -> list[Row]:
    """Integer checks per second: the comparison alone, and with extraction."""
    rng = random.Random(0)
    golds = [str(rng.randrange(-999, 99_999)) for _ in range(items)]
    answers = [gold if rng.random() < 0.5 else str(rng.randrange(999)) for gold in golds]
    formatted = [f"{int(answer):,}.0".replace(",", "{,}") for answer in answers]
    work = "We add $\\frac{1}{2}$ to x_1 = 3, then take \\sqrt{2}. " * 70
    rows = []
    for name, texts in (("34", answers), ("1{,}234.0", formatted)):
        value = rate(lambda t=texts: [compare(*pair) for pair in zip(golds, t, strict=True)], items)
        rows.append((f"integer comparisons, {name}", f"{value:,.0f}/s", ">= 50,000/s"))
    v = Verifier()
    styles: list[tuple[Style, str]] = [
        ("solution", "<SOLUTION>{}</SOLUTION>"),
        ("boxed", "\\boxed{{{}}}"),
    ]
    for style, frame in styles:
        texts = [frame.format(answer) for answer in answers]
        value = rate(lambda s=style, t=texts: v.score(golds, t, s), items)
        rows.append((f"score, {style}, answer only", f"{value:,.0f}/s", ">= 50,000/s"))
        texts = [work + text for text in texts[:2_000]]
        value = rate(lambda s=style, t=texts: v.score(golds[:2_000], t, s), 2_000)
        rows.append((f"score, {style}, after {len(work):,} characters", f"{value:,.0f}/s", ""))
    rows.append(
        ("integer comparisons, math-verify", f"{math_verify_rate(golds, answers):,.0f}/s", "")
    )
    return rows


def math_verify_rate(golds: list[str], answers: list[str], items: int = 200) -> float:
    """The same question to math-verify, in this process and without its timeouts."""
    from math_verify import parse, verify

    logging.disable(logging.WARNING)
    untimed: dict[str, Any] = {"parsing_timeout": None}

    def ask(gold: str, answer: str) -> bool:
        gold_parsed = parse(f"\\boxed{{{gold}}}", **untimed)
        answer_parsed = parse(f"\\boxed{{{answer}}}", **untimed)
        return verify(gold_parsed, answer_parsed, timeout_seconds=None)

    pairs = list(zip(golds[:items], answers[:items], strict=True))
    return rate(lambda: [ask(*pair) for pair in pairs], items, repeats=2)


def verdict(v: Verifier, case: dict[str, Any]) -> bool:
    """The verifier's verdict on one case."""
    whole = case.get("kind") == "response"
    response = case["pred"] if whole else f"\\boxed{{{case['pred']}}}"
    return v.score([case["gold"]], [response])[0] == 1.0


def math_verify_verdict(case: dict[str, Any]) -> bool:
    """math-verify with its own extraction and defaults on the same text."""
    from math_verify import parse, verify

    gold = case["gold"] if "$" in case["gold"] or "\\" in case["gold"] else f"${case['gold']}$"
    return verify(parse(gold), parse(case["pred"]))


def is_integer_gold(case: dict[str, Any]) -> bool:
    """Whether the gold is a plain integer, bare or between dollar signs."""
    gold = case["gold"].strip("$ ")
    return parse_integer(gold) is not None and gold.lstrip("-").replace(",", "").isdigit()


def agreement(path: Path) -> list[Row]:
    """Agreement with the expected verdicts of a cases file, and every case that disagrees."""
    cases = [json.loads(line) for line in path.read_text().splitlines()]
    cases = [case for case in cases if not any(name in case for name in OPTIONS)]
    rows = []
    with Verifier(timeout=10.0) as v:
        graders = {
            "trustclip": lambda case: verdict(v, case),
            "math-verify defaults": math_verify_verdict,
        }
        for name, grade in graders.items():
            right = [bool(grade(case)) == bool(case["expected"]) for case in cases]
            integer = [r for r, case in zip(right, cases, strict=True) if is_integer_gold(case)]
            target = name == "trustclip"
            rows.append((f"agreement, {name}", share(right), ">= 98.5 %" if target else ""))
            rows.append(
                (f"agreement, {name}, integer golds", share(integer), "100 %" if target else "")
            )
            if target:
                for case in (c for r, c in zip(right, cases, strict=True) if not r):
                    text = (case["gold"][-60:], case["pred"][-60:], case["expected"])
                    print("disagrees: gold {!r}, text {!r}, expected {}".format(*text))
    return rows


def share(right: list[bool]) -> str:
    """A count as a share of its total."""
    return f"{sum(right)}/{len(right)} = {sum(right) / max(1, len(right)):.2%}"


def hostile(count: int, workers: int, timeout: float) -> list[Row]:
    """Time for a batch of answers that no algebra finishes, and what happens to good neighbours."""
    bad = [
        rf"\boxed{{((((9^{{{k}}})^{{999}})^{{999}})^{{999}})^{{999}}}}"
        for k in range(900, 900 + count)
    ]
    good = [rf"\boxed{{\frac{{{2 * k}}}{{{k}}}}}" for k in range(1, count + 1)]
    rounds = math.ceil(count / workers)
    with Verifier(workers=workers, timeout=timeout) as v:
        v.score(["2"] * workers, good[:workers])
        respawn = max(respawn_seconds(v, bad[k], good[-k], timeout) for k in range(1, 4))
        start = time.monotonic()
        false_positives = sum(v.score(["2"] * count, bad))
        seconds = time.monotonic() - start
        mixed = [text for pair in zip(bad[:8], good[:8], strict=True) for text in pair]
        neighbours = sum(v.score(["2"] * len(mixed), mixed)[1::2])
    bound = f"{rounds} x (timeout + respawn) = {rounds * (timeout + respawn):.1f} s"
    return [
        ("kill, respawn and next answer", f"{respawn:.3f} s", ""),
        (f"{count} hostile, {workers} workers, {timeout:g} s", f"{seconds:.1f} s", f"<= {bound}"),
        ("hostile answers scored 1", f"{false_positives:.0f}/{count}", f"0/{count}"),
        ("good neighbours scored 1", f"{neighbours:.0f}/8", "8/8"),
    ]


def respawn_seconds(v: Verifier, bad: str, good: str, timeout: float) -> float:
    """Seconds from the kill of a process to the first answer of its replacement."""
    start = time.monotonic()
    v.score(["2"], [bad])
    v.score(["2"], [good])
    return max(0.0, time.monotonic() - start - timeout)


def main() -> None:
    """Run every benchmark and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=Path, help="JSONL file of grader cases")
    parser.add_argument("--hostile", type=int, default=64, help="size of the hostile batch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds per answer")
    arguments = parser.parse_args()
    if arguments.cases and not arguments.cases.is_file():
        sys.exit(f"no such file: {arguments.cases}")
    table = Table("what", "measured", "target")
    rows = speed() + hostile(arguments.hostile, arguments.workers, arguments.timeout)
    for row in rows + (agreement(arguments.cases) if arguments.cases else []):
        table.add_row(*row)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
