"""Commands on one stored run: show tokens, check files, send metrics, push the model."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from trustclip.cli.arguments import reads
from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, say
from trustclip.support.text import readable


@dataclasses.dataclass
class Tokens:
    """Which tokens a constraint cut, completion by completion."""

    run: Argument[Path]
    """A run directory, or a file of tokens (.parquet, .jsonl)."""
    update: int | None = None
    """Only completions used in this update, counted from 1; all when unset."""
    worst: bool = False
    """Show the completions of which the largest share is cut, instead of the first."""
    count: int = 3
    """Number of completions."""
    constraint: str = "this run"
    """Constraint to look through: of the run, or clip, clip_higher, atr, dppo, gspo, icepop at
    their defaults, computed from the recorded log-probabilities."""


@reads(Tokens)
def tokens(options: Tokens) -> int:
    if options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}.")
    from trustclip.report.token_console import print_tokens

    print_tokens(
        options.run,
        Terminal(highlight=False),
        update=options.update,
        worst=options.worst,
        count=options.count,
        constraint=options.constraint,
    )
    return 0


@dataclasses.dataclass
class Microscope:
    """A page, one file, that shows completions token by token under several methods at once."""

    files: Argument[tuple[Path, ...]] = ()
    """Files of tokens (.parquet, .jsonl), run directories, prime-rl's token export, TRL's
    completions, verl's rollouts, UNIPO's steps; without one, a sample. The page opens more."""
    out: Annotated[Path, Also(("-o",))] = Path("microscope.html")
    """File of the page."""
    open: bool = False
    """Show it in the browser."""


@reads(Microscope)
def microscope(options: Microscope) -> int:
    if not options.out.absolute().parent.is_dir():
        raise ValueError(f"--out {options.out}: the folder {options.out.parent} does not exist.")
    from trustclip.report.microscope import token_page
    from trustclip.support.jsonl import write_text

    write_text(options.out, token_page(options.files, "Microscope"))
    say(options.out)
    if options.open:
        import webbrowser

        webbrowser.open(options.out.absolute().as_uri())
    return 0


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
class Send:
    """Send a stored run to trackio, tensorboard, wandb or mlflow."""

    run: Argument[Path]
    """A run directory."""
    sink: Literal["trackio", "tensorboard", "wandb", "mlflow"]
    """Experiment tracker; its package must be installed."""


@reads(Send)
def send(options: Send) -> int:
    from trustclip.train.watch.sinks import send as send_run

    count = send_run(options.run, options.sink)
    say(f"{count} rows of {options.run} sent to {options.sink}: {options.run / options.sink}")
    return 0


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
