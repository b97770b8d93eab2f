"""Faults from a seed: disks, processes, ranks, and what people do to a run.

``python -m tests.campaigns.faults --help`` lists the campaigns; `docs/reliability.md` says what
they found.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Folders that tests import each other from by plain names, below the root.
FOLDERS: list[str] = _PROJECT["tool"]["pytest"]["ini_options"]["pythonpath"]
IMPORTED = [str(ROOT / folder) for folder in FOLDERS]
