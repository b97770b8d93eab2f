"""Commands for shells and editors: completion, and the schemas of files."""

import dataclasses
from typing import Literal

from trustclip.cli.arguments import reads
from trustclip.support.marks import Argument
from trustclip.support.terminal import say


@dataclasses.dataclass
class Completion:
    """Print a script with which a shell completes commands, options and their values.

    bash: trustclip completion bash > ~/.local/share/bash-completion/completions/trustclip

    zsh: trustclip completion zsh > ~/.zfunc/_trustclip, where ~/.zshrc has "fpath+=~/.zfunc"
    before compinit

    fish: trustclip completion fish > ~/.config/fish/completions/trustclip.fish
    """

    shell: Argument[Literal["bash", "zsh", "fish", "tcsh", "powershell"]]
    """The shell that you type in."""


@reads(Completion)
def completion(options: Completion) -> int:
    from trustclip.cli.completion import script

    say(script(options.shell), end="")
    return 0


@dataclasses.dataclass
class Schema:
    """Print the JSON Schema of recipes or of suites, made from the classes that check them.

    Store it, for example as recipe.json. An editor reads its place from the first line of a recipe:
    # yaml-language-server: $schema=recipe.json.
    """

    kind: Argument[Literal["recipe", "suite"]] = "recipe"
    """The kind of file."""


@reads(Schema)
def schema(options: Schema) -> int:
    from trustclip.train.shipped import FOLDER

    say((FOLDER / "schema" / f"{options.kind}.json").read_text(encoding="utf-8"), end="")
    return 0
