"""Commands that show single tokens of recorded completions."""

import dataclasses
from pathlib import Path
from typing import Annotated

from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, say


@dataclasses.dataclass
class Tokens:
    run: Argument[Path]
    """A run directory, or a file of tokens (.parquet, .jsonl)."""
    update: int | None = None
    """Show only completions used in this update, counted from 1; all when unset."""
    worst: bool = False
    """Show the completions of which the largest share is cut, instead of the first."""
    count: int = 3
    """Number of completions."""
    constraint: str = "this run"
    """Whose cuts to show: those of the run, or those that clip, clip_higher, atr, dppo, gspo or
    icepop with default settings would have made on the same tokens."""

    def __call__(self) -> None:
        if self.count < 1:
            raise ValueError(f"--count must be at least 1, got {self.count}.")
        from trustclip.report.token_console import print_tokens

        options = {**vars(self)}
        print_tokens(options.pop("run"), Terminal(highlight=False), **options)


@dataclasses.dataclass
class Microscope:
    """A page, one file, that shows completions token by token under several methods at once."""

    files: Argument[tuple[Path, ...]] = ()
    """Files of tokens (.parquet, .jsonl), run directories, prime-rl's token export; without any,
    the page shows a sample."""
    out: Annotated[Path, Also(("-o",))] = Path("microscope.html")
    """File of the page."""
    open: bool = False
    """Show the page in the browser."""

    def __call__(self) -> None:
        if not self.out.absolute().parent.is_dir():
            raise ValueError(f"--out {self.out}: the folder {self.out.parent} does not exist.")
        from trustclip.report.microscope import token_page
        from trustclip.support.jsonl import write_text

        write_text(self.out, token_page(self.files, "Microscope"))
        say(self.out)
        if self.open:
            import webbrowser

            webbrowser.open(self.out.absolute().as_uri())
