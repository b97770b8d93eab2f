"""Commands of the training program on what a run has left: check, push, grade again."""

import dataclasses
import json
import sys
from pathlib import Path

from trustclip.cli.arguments import reads
from trustclip.support.marks import Argument
from trustclip.support.terminal import say
from trustclip.support.text import readable
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
class Push:
    """Put a run's model and its card into a repository of the Hugging Face hub."""

    run: Argument[Path]
    """A finished run: everything in its final/ is uploaded."""
    repo: Argument[str]
    """The repository, owner/name; created if it does not exist."""
    public: bool = False
    """Make a new repository public; otherwise it is private."""
    report: bool = False
    """Add the run's page as report.html, with prompts and completions in it."""
    dry_run: bool = False
    """Print what would be uploaded, and upload nothing."""
    yes: bool = False
    """Upload without asking; required where there is no terminal to ask in."""


@reads(Push)
def push(options: Push) -> int:
    from trustclip.train.runs import card as hub

    page = None
    if options.report:
        from trustclip.report.page import write_page

        page = options.run / write_page(options.run, options.run.resolve().name)
    files = hub.to_push(options.run, options.repo, page)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    for name, size in sizes.items():
        say(f"{size:>15,} bytes  {name}")
    kind = "public" if options.public else "private"
    total = readable(sum(sizes.values()))
    say(f"{len(sizes)} files, {total}, to {options.repo} on the hub ({kind} if it is new)")
    if options.dry_run:
        return 0
    if not options.yes:
        if not sys.stdin.isatty():
            raise ValueError("nothing was pushed: without a terminal to ask in, give --yes.")
        say("push? [y/N] ", end="", flush=True)
        if input().strip().lower() not in ("y", "yes"):
            return 0
    say(hub.push(files, options.repo, public=options.public))
    return 0


@dataclasses.dataclass
class Grade:
    """Re-grade stored completions."""

    samples: Argument[Path]
    """A run's folder or its samples.jsonl, or a CSV file with the columns answer and gold."""
    style: Style = "any"
    """Location of the final answer in a completion."""
    out: Path | None = None
    """Write the graded rows to this JSON-lines file."""


@reads(Grade)
def grade(options: Grade) -> int:
    from trustclip.support.jsonl import append_jsonl
    from trustclip.train.evaluation.offline import grade as regrade
    from trustclip.train.evaluation.offline import read_samples

    if options.out is not None and options.out.exists():
        raise ValueError(f"{options.out} exists; choose another --out.")
    rows, counts = regrade(read_samples(options.samples), options.style)
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
