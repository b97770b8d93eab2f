"""``trustclip bench TOPIC``: reproducible measurements."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trustclip.cli.arguments import parse, split_option
from trustclip.support.names import unknown
from trustclip.support.terminal import Terminal, say
from trustclip_lab.bench import TOPICS

_USAGE = (
    "usage: trustclip bench TOPIC [options] [--json FILE] [--markdown FILE] [--figure FILE]\n"
    "                       trustclip bench TOPIC --help\n\ntopics:\n"
)


def bench(argv: Sequence[str]) -> int:
    """Measure one topic, print its tables, write them where asked."""
    if not argv or argv[0].startswith("-"):
        say(_USAGE + "\n".join(f"  {name:<10} {text}" for name, (_, text, _) in TOPICS.items()))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    topic, *rest = argv
    if topic not in TOPICS:
        raise ValueError(unknown("topic of bench", topic, TOPICS))
    files: dict[str, str | None] = {}
    for kind in ("json", "markdown", "figure"):
        rest, files[kind] = split_option(rest, f"--{kind}")
    paths = {kind: Path(file) for kind, file in files.items() if file is not None}
    name, _, options = TOPICS[topic]
    module = importlib.import_module(f"trustclip_lab.bench.{name}")
    settings = parse(getattr(module, options), rest, f"bench {topic}")
    _check(paths, topic, settings)
    _measure(module, settings, paths)
    return 0


def _check(paths: dict[str, Path], topic: str, settings: Any) -> None:
    """Report files that cannot be written before an hour of measuring."""
    for kind, path in paths.items():
        if not path.parent.is_dir():
            raise ValueError(f"--{kind} {path}: the folder {path.parent} does not exist.")
    if "figure" in paths and not getattr(settings, "scaling", False):
        raise ValueError(
            "--figure draws the scaling of the head: "
            + ("add --scaling." if topic == "head" else f"the topic {topic} has no figure.")
        )


def _measure(module: Any, settings: Any, paths: dict[str, Path]) -> None:
    import torch

    from trustclip_lab.bench.table import document, machine

    torch.set_num_threads(1)
    tables, box = module.run(settings), machine(getattr(settings, "device", "cpu"))
    console = Terminal()
    for table in tables:
        table.print(console)
    line = ", ".join(f"{name} {value}" for name, value in box.items())
    console.print(line, style="dim", highlight=False)
    if "json" in paths:
        text = json.dumps(document(tables, box), indent=1, allow_nan=False)
        paths["json"].write_text(text + "\n", encoding="utf-8")
    if "markdown" in paths:
        text = "\n\n".join([*(table.markdown() for table in tables), line])
        paths["markdown"].write_text(text + "\n", encoding="utf-8")
    if "figure" in paths:
        from trustclip_lab.bench.figures import scaling

        paths["figure"].write_text(scaling(tables[-2:]), encoding="utf-8")
    for path in paths.values():
        say(path)
