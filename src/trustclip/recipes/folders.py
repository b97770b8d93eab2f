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
    """Changes to a recipe, with a separate folder if they set another method or seed.

    A file states one ``output_dir``, and a folder holds one run: without this, every second method
    would be refused, or need a folder by hand.

    Returns:
      The changes; ``output_dir`` is added unless they set it, or method and seed are the file's.
    """
    content, _ = load_yaml(file)
    default = content.get("output_dir") if isinstance(content, dict) else None
    if "output_dir" in changes or not isinstance(default, str):
        return dict(changes)
    names = [*_differences(content, changes)]
    return {**changes, "output_dir": "-".join([default, *names])} if names else dict(changes)


def _differences(content: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """How method and seed differ from the file: ``["clip", "epsilon0.1", "seed1"]``."""
    section = content.get("rl")
    spec = section.get("method") if isinstance(section, Mapping) else None
    spec = spec or RLStage.__dataclass_fields__["method"].default
    old = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    values = {path_of(name, ALIASES): value for name, value in changes.items()}
    new_spec = values.get("rl.method", old)
    new = dict(new_spec) if isinstance(new_spec, Mapping) else {"name": new_spec}
    for path, value in values.items():
        if path.startswith("rl.method."):
            new[path.removeprefix("rl.method.")] = value
    name = str(new.pop("name", ""))
    same = name == old.get("name")
    differing = {k: v for k, v in new.items() if not same or old.get(k) != v}
    words = [name.rpartition(":")[2]] if not same or differing else []
    words += [f"{key}{value}" for key, value in differing.items()]
    if (seed := values.get("seed", content.get("seed", 0))) != content.get("seed", 0):
        words.append(f"seed{seed}")
    return [re.sub(r"[^\w.+]+", "_", word)[:LONG].strip("_") for word in words]
