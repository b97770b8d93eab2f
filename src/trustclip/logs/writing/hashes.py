"""Hashes of a finished run's files, in its summary: `trustclip verify` compares them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustclip.logs.forms import HASHES
from trustclip.logs.identity import MARKS
from trustclip.support.flush import manifest_entries
from trustclip.support.inside import regular_files
from trustclip.support.jsonl import plain

#: Folder of the trained model.
FINAL = "final"
#: Files beside the rows that a run writes and that its results depend on.
_SETTINGS = (
    *("config.yaml", MARKS, "environment.json", "inputs.json"),
    *("extensions.jsonl", "quarantine.jsonl"),
)
#: Written after the summary, and again when a page of the run is made.
_CARD = f"{FINAL}/README.md"


def with_hashes(
    folder: Path, summary: Mapping[str, Any], rows: Mapping[str, Any]
) -> dict[str, Any]:
    """A summary with the hashes of everything that the run leaves, and of the summary itself."""
    files = regular_files(folder)
    others = [path for name, path in files.items() if name in _SETTINGS or _of_model(name)]
    hashes = {**rows, **manifest_entries(folder, others)}
    whole = {**plain(summary), HASHES: hashes}
    hashes["summary.json"] = {"sha256": digest(whole)}
    return whole


def digest(summary: Mapping[str, Any]) -> str:
    """SHA-256 of a summary in hexadecimal, whatever its layout and without its own hash.

    Example:
      >>> one = digest({"a": 1, "hashes": {"summary.json": {"sha256": "?"}}})
      >>> one == digest({"hashes": {}, "a": 1}), one == digest({"hashes": {}, "a": 2})
      (True, False)
    """
    hashes = {k: v for k, v in summary[HASHES].items() if k != "summary.json"}
    text = json.dumps({**summary, HASHES: hashes}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def missing_files(folder: Path, summary: Mapping[str, Any]) -> list[str]:
    """Names of a finished model's files that are gone, or have another size than when saved."""
    files = regular_files(folder / FINAL, f"{FINAL}/")
    sizes = {name: path.stat().st_size for name, path in files.items()}
    recorded = {k: v for k, v in summary.get(HASHES, {}).items() if _of_model(k)}
    return [name for name, entry in recorded.items() if sizes.get(name) != entry["bytes"]]


def _of_model(name: str) -> bool:
    return name.startswith(f"{FINAL}/") and name != _CARD
