"""The recipes and suites that come with trustclip, by their names.

Other installed distributions add folders of their own: an entry point of the group
``trustclip.recipes`` is named like the command that runs them, and is the path of a folder.
"""

import re
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from trustclip.support.names import unknown

_PLACES = (Path(__file__).with_name("shipped"), Path(__file__).parents[3] / "recipes")
#: The recipes lie beside this module in a wheel, where ``setup.py`` copies them, and in the
#: repository's ``recipes/`` in a checkout.
FOLDER = next((folder for folder in _PLACES if folder.is_dir()), _PLACES[0])

#: The beginning of a line that tells editors the schema of a file.
MODELINE = "# yaml-language-server: $schema="


@cache
def _folders() -> dict[str, Path]:
    """Command -> the folder of files that it runs."""
    additions = {point.name: point.load() for point in entry_points(group="trustclip.recipes")}
    return {"run": FOLDER, "suite": FOLDER / "suites", **additions}


def shipped() -> dict[str, Path]:
    """File of each recipe and suite, by its name.

    Example:
      >>> {"tiny", "table3-tiny"} <= shipped().keys()
      True
    """
    folders = _folders().values()
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def locate(path: Path) -> Path:
    """A file that the user named, or the one of that name that comes with trustclip.

    Named by ``tiny``, or by where the repository has it (``recipes/tiny.yaml``).

    Example:
      >>> locate(Path("tiny")).name, locate(Path("mine.yaml")).name
      ('tiny.yaml', 'mine.yaml')
    """
    if path.is_file():
        return path
    name = path.name.removesuffix(".yaml")  # not its stem: some names have a dot
    shipped_file = shipped().get(name)
    by_name = str(path) == name or path.parts[:1] == ("recipes",)
    return shipped_file if shipped_file is not None and by_name else path


def command_of(path: Path) -> str:
    """The command that runs a shipped file.

    Example:
      >>> command_of(shipped()["table3-tiny"])
      'suite'
    """
    return next(command for command, folder in _folders().items() if folder == path.parent)


def title(path: Path) -> str:
    """The first sentence of a file's comment.

    Example:
      >>> title(shipped()["figure3-tiny"])
      'The threshold of atr, as in Figure 3 of the ATR-GRPO paper, on the tiny model, on a CPU.'
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines[:5] if not line.startswith(MODELINE)]
    comment = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    first, end, _ = " ".join(comment).partition(". ")
    return first + "." if end else first


def copy_shipped(name: str, to: Path) -> Path:
    """Copy a shipped file, to change it, to an existing folder or to a name; returns the copy."""
    files = shipped()
    if name not in files:
        raise ValueError(unknown("recipe", name, files))
    source = files[name]
    target = to / source.name if to.is_dir() else to
    # A suite names its recipe by where the repository has it; the copy, by its name.
    text = re.sub(r"\.\./([\w.-]+)\.yaml", r"\1", source.read_text(encoding="utf-8"))
    text = re.sub(rf"^{re.escape(MODELINE)}.*\n", "", text)  # a path that holds only here
    if target.exists():
        raise ValueError(f"{target} exists; name another file.")
    target.write_text(text, encoding="utf-8")
    return target
