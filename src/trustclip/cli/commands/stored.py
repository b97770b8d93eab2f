"""Commands of the training program on files: those that come along, those that a run has left."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

from trustclip.support.marks import Argument
from trustclip.support.terminal import say
from trustclip.train.problems.decontaminate import Decontaminate as Decontaminate
from trustclip.train.problems.verify.extraction import Style


@dataclasses.dataclass
class Recipes:
    """List the recipes and suites that come with trustclip, or copy one to change it."""

    name: Argument[str | None] = None
    """Recipe or suite to copy; all are listed when unset."""
    to: Argument[Path] = Path()
    """Folder or file of the copy."""
    schema: Literal["recipe", "suite"] | None = None
    """Print the JSON Schema of recipes or suites instead. An editor reads it where a file begins
    with "# yaml-language-server: $schema=recipe.json"."""

    def __call__(self) -> None:
        from trustclip.train.shipped import FOLDER, command_of, copy_shipped, shipped, title

        if self.schema is not None:
            say((FOLDER / "schema" / f"{self.schema}.json").read_text(encoding="utf-8"), end="")
        elif self.name is not None:
            copy = copy_shipped(self.name, self.to)
            command = command_of(shipped()[self.name])
            say(f"{copy} is yours to change; then: trustclip {command} {copy}")
        else:
            for name, path in shipped().items():
                say(f"trustclip {command_of(path)} {name}\n    {title(path)}")


@dataclasses.dataclass
class Verify:
    run: Argument[Path]
    """A run directory, finished or not."""
    json: bool = False
    """Print a JSON object instead of lines."""

    def __call__(self) -> int:
        from trustclip.train.runs.verify import verify as verify_run

        result = verify_run(self.run)
        if self.json:
            head = {"run": str(self.run), "whole": result.whole, "finished": result.finished}
            say(json.dumps({**head, "files": [vars(entry) for entry in result.checked]}, indent=1))
        else:
            width = max(len(entry.name) for entry in result.checked)
            for entry in result.checked:
                say(f"{entry.state:<10}  {entry.name:<{width}}  {entry.text}".rstrip())
            state = "finished" if result.finished else "not finished"
            say(f"{self.run} ({state}) is {result.conclusion}")
        return 0 if result.whole else 1


@dataclasses.dataclass
class Grade:
    """Grade stored completions again: `trustclip eval --grade`."""

    samples: Argument[Path]
    """A run's folder or its samples.jsonl, or a CSV file with the columns answer and gold."""
    style: Style = "any"
    """Location of the final answer in a completion."""
    out: Path | None = None
    """Write the graded rows to this JSON-lines file."""

    def __call__(self) -> None:
        from trustclip.support.jsonl import append_jsonl
        from trustclip.train.evaluation.offline import grade, read_samples

        if self.out is not None and self.out.exists():
            raise ValueError(f"{self.out} exists; choose another --out.")
        rows, counts = grade(read_samples(self.samples), self.style)
        right = sum(row["correct"] for row in rows)
        say(f"{right} of {len(rows)} right ({right / len(rows):.1%})")
        say(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        if self.out is not None:
            append_jsonl(self.out, rows)
