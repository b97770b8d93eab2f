"""Size limits of the house: modules, functions, parameters; and formulas that stand once."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "trustclip"
MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=[str(p.relative_to(SOURCE)) for p in MODULES])
def test_within_budget(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        doc = ast.get_docstring(node, clean=False)
        lines = {
            line
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
            if text.splitlines()[line - 1].strip()
        }
        if doc is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or 0) + 1))
        assert len(lines) <= 60, f"{node.name} has {len(lines)} lines of code"
        if any("triton" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue  # a kernel takes a pointer for each array
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        named = [a for a in arguments if a.arg not in ("self", "cls")]
        assert len(named) <= 7, f"{node.name} has {len(named)} parameters"


def test_divergence_formulas_stand_in_one_file():
    pattern = re.compile(r"torch\.expm1\(")
    users = {p.name for p in MODULES if pattern.search(p.read_text())}
    assert users == {"divergences.py", "masked.py", "intervals.py", "fdivergences.py"}
