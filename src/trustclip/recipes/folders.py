"""Folders of a recipe's runs: one for each method and seed that the command line sets."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustclip.recipes.files import ALIASES, load_yaml, path_of
from trustclip.settings.stages import RLStage

#: Most characters of a value in a folder's name.
LONG = 24


def with_folder(file: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a recipe, with a folder of their own where they set another method or seed.

    A file states one ``output_dir``, and a folder holds one run: without this, every second method
    would be refused, or need a folder by hand.

    Returns:
      The changes; ``output_dir`` is added unless they set it, or method and seed are the file's.
    """
    content, _ = load_yaml(file)
    given = content.get("output_dir") if isinstance(content, dict) else None
    if "output_dir" in changes or not isinstance(given, str):
        return dict(changes)
    words = [*_differing(content, changes)]
    return {**changes, "output_dir": "-".join([given, *words])} if words else dict(changes)


def _differing(content: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """What of method and seed differs from the file: ``["clip", "epsilon0.1", "seed1"]``."""
    section = content.get("rl")
    stated = section.get("method") if isinstance(section, Mapping) else None
    stated = stated or RLStage.__dataclass_fields__["method"].default
    of_file = dict(stated) if isinstance(stated, Mapping) else {"name": stated}
    asked = {path_of(name, ALIASES): value for name, value in changes.items()}
    method = asked.get("rl.method", of_file)
    chosen = dict(method) if isinstance(method, Mapping) else {"name": method}
    for path, value in asked.items():
        if path.startswith("rl.method."):
            chosen[path.removeprefix("rl.method.")] = value
    name = str(chosen.pop("name", ""))
    same = name == of_file.get("name")
    differing = {k: v for k, v in chosen.items() if not same or of_file.get(k) != v}
    words = [name.rpartition(":")[2]] if not same or differing else []
    words += [f"{key}{value}" for key, value in differing.items()]
    if (seed := asked.get("seed", content.get("seed", 0))) != content.get("seed", 0):
        words.append(f"seed{seed}")
    return [re.sub(r"[^\w.+]+", "_", word)[:LONG].strip("_") for word in words]
