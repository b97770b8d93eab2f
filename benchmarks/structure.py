"""The shape of the core and of the laboratory in figures: rooms, arrows, circles, sizes.

``python benchmarks/structure.py [src/trustclip ...]``; ``--write`` puts the figures of both into
docs/architecture.md. Reads the source and imports nothing of it;
an import inside a function, or by ``importlib.import_module("literal")``, counts like any other.
"""

import ast
import json
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Folders of the packages, the core first.
SOURCES = (ROOT / "src/trustclip", ROOT / "lab/src/trustclip_lab")


def module_of(path: Path, root: Path) -> str:
    """Dotted name of a file."""
    parts = (root.name, *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Modules of the package that a file imports, but not those for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in inside]
            yield from (name for name in names if name in modules)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and first.value in modules:
                yield str(first.value)


def room_of(module: str, depth: int = 1) -> str:
    """The room a module is in: its folder or file at the top of the package."""
    return ".".join(module.split(".")[1 : 1 + depth])


def circles(arrows: dict[str, set[str]]) -> int:
    """How many arrows must go before none leads back."""
    arrows = {name: set(targets) for name, targets in arrows.items()}
    removed = 0
    while True:
        try:
            tuple(TopologicalSorter(arrows).static_order())
            return removed
        except CycleError as error:
            # The sorter lists a circle backwards: each name is imported by the one before it.
            after, before = error.args[1][:2]
            arrows[before].discard(after)
            removed += 1


def layers(package: str) -> dict[str, int]:
    """Height of each room of a package, by the import contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    rows = [row.split(" | ") for one in contracts for row in one.get("layers", ())]
    modules = [(name, height) for height, row in enumerate(reversed(rows)) for name in row]
    return {room_of(name): at for name, at in modules if name.split(".")[0] == package}


@cache
def figures(root: Path) -> dict[str, object]:
    """Figures of the package whose source is under ``root``."""
    height = layers(root.name)
    files = sorted(root.rglob("*.py"))
    modules = {module_of(path, root): path for path in files}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    between_files: dict[str, set[str]] = defaultdict(set)
    between_rooms: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for other in {*imports(tree, set(modules))} - {name}:
            between_files[name].add(other)
            if room_of(name) and room_of(other) and room_of(name) != room_of(other):
                between_rooms[room_of(name)].add(room_of(other))
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    return {
        "modules": len(files),
        "lines": sum(lines),
        "lines of a module, median and largest": [int(statistics.median(lines)), max(lines)],
        "functions": len(functions),
        "rooms": sum(path.parent.parent == root for path in files if path.name == "__init__.py"),
        "loose files at the top": sum(path.parent == root for path in files),
        "arrows between rooms": sum(map(len, between_rooms.values())),
        "arrows up": sum(
            height[to] >= height[room]
            for room, targets in between_rooms.items()
            for to in targets
            if room in height and to in height
        ),
        "arrows to remove for no circle between them": circles(between_rooms),
        "arrows to remove for no circle between files": circles(between_files),
    }


def parts() -> dict[str, int]:
    """Lines of Python and of templates of each part of the repository that has a budget."""
    folders = {
        "train": ("src/trustclip/train",),
        "cli": ("src/trustclip/cli",),
        "lab": ("lab/src",),
        "tests": ("tests", "lab/tests"),
    }
    whole = _lines("src/trustclip")
    found = {part: sum(map(_lines, names)) for part, names in folders.items()}
    return {"library": whole - found["train"] - found["cli"], **found}


def _lines(folder: str) -> int:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".j2")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def table() -> str:
    """The figures of both packages as Markdown, for docs/architecture.md."""
    core, lab = (figures(source) for source in SOURCES)
    rows = [f"| {name} | {_text(core[name])} | {_text(lab[name])} |" for name in core]
    return "\n".join(["| | core | laboratory |", "|---|---:|---:|", *rows])


def _text(value: object) -> str:
    return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        page = ROOT / "docs/architecture.md"
        between = re.compile("(?<=<!-- structure -->\\n).*?(?=\\n<!-- /structure -->)", re.S)
        page.write_text(between.sub(table(), page.read_text("utf-8")), "utf-8")
    else:
        sources = [Path(name).resolve() for name in sys.argv[1:]] or SOURCES
        shown = {source.name: figures(source) for source in sources}
        print(json.dumps({**shown, "lines": parts()}, indent=2))
