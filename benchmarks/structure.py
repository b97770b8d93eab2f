"""The shape of the package in figures: rooms, arrows between them, circles, sizes.

``python benchmarks/structure.py [src/trustclip]``. Reads the source and imports nothing of it; an
import inside a function, or by ``importlib.import_module("literal")``, counts like any other.
"""

import ast
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = "trustclip"


def module_of(path: Path, root: Path) -> str:
    """Dotted name of a file."""
    parts = (PACKAGE, *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Modules of the package that a file imports, but not those for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else str(node.module) for name in inside)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and first.value in known:
                yield str(first.value)


def room_of(module: str, depth: int = 1) -> str:
    """The room a module is in: its folder or file at the top of the package."""
    return ".".join(module.split(".")[1 : 1 + depth]) or PACKAGE


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


def figures(root: Path) -> dict[str, object]:
    """Figures of the package whose source is under ``root``."""
    files = sorted(root.rglob("*.py"))
    modules = {module_of(path, root): path for path in files}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    between_files: dict[str, set[str]] = defaultdict(set)
    between_rooms: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for other in {*imported(tree, set(modules))} - {name}:
            between_files[name].add(other)
            if other != PACKAGE and name != PACKAGE and room_of(name) != room_of(other):
                between_rooms[room_of(name)].add(room_of(other))
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    return {
        "modules": len(files),
        "lines": sum(lines),
        "lines of a module, median and largest": [int(statistics.median(lines)), max(lines)],
        "functions": len(functions),
        "folders and files at the top": len({room_of(name) for name in modules} - {PACKAGE}),
        "loose files at the top": sum(path.parent == root for path in files),
        "arrows between them": sum(map(len, between_rooms.values())),
        "arrows to remove for no circle between them": circles(between_rooms),
        "arrows to remove for no circle between files": circles(between_files),
    }


if __name__ == "__main__":
    source = Path(sys.argv[1] if len(sys.argv) > 1 else f"src/{PACKAGE}")
    print(json.dumps(figures(source), indent=2))
