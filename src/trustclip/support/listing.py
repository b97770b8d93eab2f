"""Files as a manifest lists them: size and SHA-256 of each, once it is on the disk."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from trustclip.support.flush import flush
from trustclip.support.inside import itself


class Listed(TypedDict):
    """Size in bytes and SHA-256 of a file in a manifest, in hexadecimal."""

    bytes: int
    sha256: str


def manifest_entries(folder: Path, files: Iterable[Path]) -> dict[str, Listed]:
    """Entries of a manifest for files in a folder, once their content is on the disk."""
    entries: dict[str, Listed] = {}
    for path in files:
        flush(path)
        name = path.relative_to(folder).as_posix()
        entries[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return entries


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb", opener=itself) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
