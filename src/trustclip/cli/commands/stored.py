"""Commands of the training program on what a run has left: its files, its stored answers."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from trustclip.cli.arguments import parse, reads
from trustclip.support.marks import Argument
from trustclip.support.terminal import say
from trustclip.train.problems.decontaminate import DecontaminateConfig
from trustclip.train.problems.verify.extraction import Style


@dataclasses.dataclass
class Verify:
    """Which files of a run are whole, changed or missing."""

    run: Argument[Path]
    """A run directory, finished or not."""
    json: bool = False
    """Print a JSON object instead of lines."""


@reads(Verify)
def verify(options: Verify) -> int:
    from trustclip.train.runs.verify import verify as verify_run

    result = verify_run(options.run)
    if options.json:
        head = {"run": str(options.run), "whole": result.whole, "finished": result.finished}
        say(json.dumps({**head, "files": [vars(entry) for entry in result.checked]}, indent=1))
    else:
        width = max(len(entry.name) for entry in result.checked)
        for entry in result.checked:
            say(f"{entry.state:<10}  {entry.name:<{width}}  {entry.text}".rstrip())
        state = "finished" if result.finished else "not finished"
        say(f"{options.run} ({state}) is {result.conclusion}")
    return 0 if result.whole else 1


@dataclasses.dataclass
class Grade:
    """Re-grade stored completions."""

    samples: Argument[Path]
    """A run's folder or its samples.jsonl, or a CSV file with the columns answer and gold."""
    style: Style = "any"
    """Location of the final answer in a completion."""
    out: Path | None = None
    """Write the graded rows to this JSON-lines file."""


def regrade(argv: Sequence[str]) -> int:
    """`trustclip eval --grade`: stored answers, graded again."""
    options = parse(Grade, argv, "eval --grade")
    from trustclip.support.jsonl import append_jsonl
    from trustclip.train.evaluation.offline import grade, read_samples

    if options.out is not None and options.out.exists():
        raise ValueError(f"{options.out} exists; choose another --out.")
    rows, counts = grade(read_samples(options.samples), options.style)
    right = sum(row["correct"] for row in rows)
    say(f"{right} of {len(rows)} right ({right / len(rows):.1%})")
    say(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    if options.out is not None:
        append_jsonl(options.out, rows)
    return 0


@reads(DecontaminateConfig)
def decontaminate(options: DecontaminateConfig) -> int:
    from trustclip.train.problems.decontaminate import run

    return run(options)
