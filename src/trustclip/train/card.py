"""The model card of a finished run: TRL's, with what trustclip knows of the run below it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from trustclip.findings.run import of_run
from trustclip.logs.reader import read_run
from trustclip.support.jsonl import read_mapping, write_text
from trustclip.support.secrets import redact
from trustclip.support.text import markdown_text
from trustclip.train.runs.directory import RunDirectory

#: What TRL's card calls a base model that is a folder without an id on the hub.
_NAMELESS = "a fine-tuned version of [None](https://huggingface.co/None)"


def conclude(
    run: RunDirectory, trainer: Any, summary: Mapping[str, Any], more: Sequence[str] = ()
) -> None:
    """Write the summary of a finished run, and ``final/README.md``, the card of its model.

    The card has ``more`` sentences after the findings.
    """
    run.summarize(summary)
    name = getattr(getattr(trainer, "method", None), "name", "sft")
    trainer.args.output_dir, trainer.hub_model_id = str(run.final), "."  # where the card lies
    trainer.create_model_card(model_name=run.path.name, tags=["trustclip", name])
    card = run.final / "README.md"
    text = card.read_text(encoding="utf-8").replace(_NAMELESS, "a fine-tuned model of this machine")
    write_text(card, f"{text.rstrip()}\n\n{about(run.path, more)}")


def about(run: Path, more: Sequence[str] = ()) -> str:
    """What a run's files say of its model, as Markdown: findings, then all settings.

    Texts of the run are escaped, secrets are replaced, and no code that the run names is imported.
    """
    texts = [*(finding.text for finding in of_run(read_run(run))), *more]
    found = "\n".join(f"- {markdown_text(text)}" for text in texts)
    settings = redact(dict(read_mapping(run / "config.yaml")))
    # An indented block ends at no text that may stand in it.
    block = indent(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), "    ")
    return (
        "## What trustclip found\n\n"
        f"{found}\n\n"
        "This is one run with one seed: how much another seed would differ is not known. "
        "`prompt.json` has the prompt that the model was trained with.\n\n"
        "## Settings\n\n"
        f"{block}"
    )
