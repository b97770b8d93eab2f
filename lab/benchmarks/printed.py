"""The command line of a measurement: options, tables, the machine, and a file for all of it."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trustclip.cli.arguments import parse, print_help, taken
from trustclip.support.terminal import Terminal
from trustclip_lab.bench.table import Table, machine

JSON = {"--json FILE": "Also write the tables, and what machine they are from, to this file."}


def measured(options: type, run: Callable[[Any], list[Table]]) -> None:
    """Measure as the command line says, on one thread; with ``--json FILE`` into a file as well."""
    name = Path(sys.argv[0]).stem
    try:
        rest, file = taken(sys.argv[1:], *JSON)
        print_help(rest, options, name, JSON)
        settings = parse(options, rest, name)
    except ValueError as error:
        sys.exit(f"{name}: {error}")
    torch.set_num_threads(1)
    tables, box = run(settings), machine(getattr(settings, "device", "cpu"))
    console = Terminal()
    for table in tables:
        table.print(console)
    line = ", ".join(f"{key} {value}" for key, value in box.items())
    console.print(line, style="dim", highlight=False)
    if file is not None:
        values = {"machine": box, "tables": [asdict(table) for table in tables]}
        text = json.dumps(values, indent=1, allow_nan=False)
        Path(file).write_text(text + "\n", encoding="utf-8")
