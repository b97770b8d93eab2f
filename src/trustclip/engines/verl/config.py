"""verl's configuration, resolved: as its entry script prints it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

#: Largest file that is read; verl's own, resolved, is 40 KB.
MOST_BYTES = 4 * 2**20
_REMEDY = (
    "give a resolved one: python -m verl.trainer.main_ppo ARGUMENTS --cfg job --resolve > verl.yaml"
)


def load(arguments: Sequence[str], parse: Callable[[str], Any] = yaml.safe_load) -> dict[str, Any]:
    """The configuration in a YAML file, the only argument.

    ``parse`` reads the file's YAML, and may refuse what its aliases multiply.

    Raises:
      ValueError: no file, or more than one argument; a file too large, or not resolved.
      FileNotFoundError: no such file.
    """
    if len(arguments) != 1 or not arguments[0].endswith((".yaml", ".yml")):
        raise ValueError(f"--verl reads one configuration, a YAML file; {_REMEDY}.")
    path = Path(arguments[0])
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES // 2**20} MiB: no configuration.")
    content = parse(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "defaults" in content:
        raise ValueError(f"{path} holds no resolved configuration; {_REMEDY}.")
    return content
