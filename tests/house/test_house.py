"""The house is what its page and packaging say: rooms, versions, oldest dependencies."""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import structure

import trustclip
import trustclip_lab

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trustclip"
SOURCES = structure.SOURCES
STRUCTURE = ROOT / "docs/architecture.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_tree_on_the_page_is_the_real_one() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    for source in SOURCES:
        layout = page.partition(f"{source.relative_to(ROOT)}/\n")[2].partition("```")[0]
        listed = re.findall(r"^  (\w+)/ ", layout, re.MULTILINE)
        rooms = [p.parent.name for p in source.glob("*/__init__.py")]
        assert sorted(listed) == sorted(rooms)
        (contract,) = (
            one["layers"] for one in contracts if f"{source.name}.cli" in one.get("layers", ())
        )
        layers = [re.findall(rf"{source.name}\.(\w+)", layer) for layer in reversed(contract)]
        for below, above in pairwise(layers):
            assert max(map(listed.index, below)) < min(map(listed.index, above)), (below, above)


def test_the_figures_on_the_page_are_those_of_the_program() -> None:
    """Exactly, but for sizes: to a twentieth, or every change would have to write them anew."""
    cells = re.findall(r"^\| ([\w ,]+) \| (\d+) \| (\d+) \|$", STRUCTURE.read_text(), re.MULTILINE)
    shown = {name: list(map(int, numbers)) for name, *numbers in cells}
    counted = [structure.figures(source) for source in SOURCES]
    assert len(shown) == sum(isinstance(value, int) for value in counted[0].values())
    for name, numbers in shown.items():
        about = 0.05 if name in ("lines", "modules", "functions", "arrows between rooms") else 0
        expected = pytest.approx([one[name] for one in counted], rel=about)
        assert numbers == expected, "python benchmarks/structure.py --write"


def test_every_room_says_in_its_first_line_what_it_is() -> None:
    for source in SOURCES:
        for init in source.rglob("__init__.py"):
            assert init.read_text().startswith(('"""', 'r"""')), init


def test_one_version_everywhere() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    lab = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]
    assert PROJECT["project"]["version"] == trustclip.__version__ == cited[1]
    assert lab["version"] == trustclip_lab.__version__ == cited[1]
    assert lab["dependencies"][0] == f"trustclip[report]=={cited[1]}"


def test_the_oldest_requirements_are_the_lower_bounds() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    tested = ("train", "cli", "report", "control", "slurm")
    bounds = PROJECT["project"]["dependencies"] + [r for e in tested for r in extras.get(e, [])]
    lowest = {}
    for bound in bounds:
        if found := re.match(r"([\w-]+)(?:\[.*?\])?>=([\d.]+)", bound):
            lowest[found[1].lower()] = found[2]
    lines = (ROOT / "requirements" / "oldest.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    missing = lowest.keys() - pins.keys() - {"gymnasium"}
    assert not missing
    for name, bound in lowest.items():
        if name in pins:
            assert _parts(pins[name]) == _parts(bound), f"{name}: {pins[name]} is not {bound}"


def _parts(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def test_every_public_name_of_the_stub_is_there() -> None:
    import trustclip.methods.atr  # whose package has the name of a function

    stub = (SOURCE / "__init__.pyi").read_text()
    names = re.findall(r"^from [\w.]+ import (\w+) as \1$", stub, re.MULTILINE)
    assert sorted(vars(trustclip)["__all__"]) == sorted(["__version__", *names]) and len(names) > 20
    assert all(hasattr(trustclip, name) for name in names) and {*names} <= {*dir(trustclip)}
    assert callable(trustclip.methods) and trustclip.gates.__name__ == "trustclip.constraints.gates"
    with pytest.raises(AttributeError, match="no attribute 'metod'"):
        trustclip.metod  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_no_arrow_between_rooms_leads_back() -> None:
    """Not those inside of functions or looked up by name either, which the contract overlooks."""
    found = structure.figures(SOURCE)
    assert found["arrows to remove for no circle between them"] == 0
    assert found["arrows to remove for no circle between files"] == 0


def test_commands_print_nothing_that_controls_a_terminal():
    """They print by `say` and `Terminal`; `main` cleans the messages of errors itself."""
    for path in [*(SOURCE / "cli/commands").glob("*.py"), *(SOURCES[1] / "cli").glob("*.py")]:
        found = re.findall(r"(?<![\w.])(?:print|Console)\(", path.read_text())
        assert not found, f"{path.name}: {found[0]} instead of trustclip.support.terminal"


@pytest.mark.parametrize("name", ["run", "dev", "docs", "verl", "smollm2", "real"])
def test_what_is_pinned_has_its_hashes(name):
    """`make hashes` writes them; torch is left to the build that a machine needs."""

    def pins(path: Path) -> set[str]:
        found = re.findall(r"(?m)^([\w.-]+)(?:\[[\w,-]+\])?==([\w.!+]+)", path.read_text())
        pairs = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in found}
        return {f"{name}=={version}" for name, version in pairs if name != "torch"}

    hashed = ROOT / "requirements" / "hashes" / f"{name}.txt"
    assert pins(hashed) == pins(ROOT / "requirements" / f"{name}.txt"), "make hashes"
    assert "--hash=sha256:" in hashed.read_text()


def test_actions_are_named_by_commit():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for used in re.findall(r"uses: (\S+)", path.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used), f"{path.name}: {used}"


def test_the_audit_covers_every_pin() -> None:
    """`make audit` reads every file of pins, those of the oldest releases and of a GPU apart."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    said = subprocess.run(
        [make, "-n", "audit"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"for name in (.*);", said)[0].split()
    assert "requirements/$name.txt" in said and "--strict" in said
    read = {f"{name}.txt" for name in names}
    for _ in range(3):  # a file may name another one
        for name in [*read]:
            read |= set(re.findall(r"^-r (\S+)", (ROOT / "requirements" / name).read_text(), re.M))
    there = {path.name for path in (ROOT / "requirements").glob("*.txt")}
    assert there - read == {"gpu.txt", "oldest.txt"}


#: The rooms that read manifests, cursors, tables and samples, and the joins in them of a folder
#: with a name that no literal or constant spells out: each with where that name comes from.
_READERS = ("logs", "train/durable", "train/runs", "train/evaluation")
_JOINS = {
    "support/inside.py": {
        "path / part": "the gate itself",
        "path.with_name(f'{path.name}.part')": "a file of ours, by another ending",
        "Path(at, name)": "what a folder holds, as the system lists it",
        "folder / path.relative_to(root)": "the same, for a message",
    },
    "train/durable/saving.py": {"folder / name": "names that this process gives its states"},
    "train/durable/states.py": {
        "folder / f'{name}.json'": "a state that the caller names: shared, optimizer, rank-N",
        "folder / f'{name}.safetensors'": "the same",
        "folder / name": "the same, for a message",
    },
    "train/durable/weights.py": {"folder / _file(_adapter(model))": "one of two constants"},
    "train/durable/store.py": {
        "self.folder / (_WRITING + ORIGIN)": "two constants",
        "self.folder / f'step-{step:06d}'": "a number",
        "self.folder / f'{_WRITING}{self.path(step).name}'": "a number",
        "path.with_name(f'{_REMOVING}{path.name}-{secrets.token_hex(4)}')": "a path of ours",
    },
    "train/runs/directory.py": {
        "self.path / f'attempt-{number}'": "a number",
        "folder / self._name(path)": "a file that the folder lists",
    },
    "logs/writing/run.py": {
        "folder / f'update-{step:06d}{own}.parquet'": "numbers of the step and the rank",
        "self.path / f'samples{own}.jsonl'": "the number of the rank",
        "self.path / name": "one of two literals",
        "path / name": "one of three literals",
    },
    "logs/reader.py": {"path.parent / near": "a folder that the system lists, for a message"},
    "train/runs/verify.py": {
        "folder / name": "one of several literals",
        "self.folder / name": "summary.json; and a recorded name of which only is asked whether "
        "anything is there",
    },
    "logs/scores.py": {
        "Path('scores') / f'{arm}-{seed}'.replace('/', '-')": "shown, where no such file can be"
    },
}


def _joins(path: Path, folders: set[str]) -> Iterator[str]:
    """Joins of a folder with a name that is not spelled out, in a module."""

    def spelled(node: ast.expr) -> bool:
        if isinstance(node, ast.JoinedStr):
            return all(isinstance(part, ast.Constant) for part in node.values)
        name = getattr(node, "id", getattr(node, "attr", ""))
        return isinstance(node, ast.Constant) or name.isupper()

    def folder(node: ast.expr) -> bool:
        """Whether an expression is a path, by its last name."""
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Div) and folder(node.left)
        node = node.func if isinstance(node, ast.Call) else node
        return getattr(node, "id", getattr(node, "attr", "")) in folders

    for node in ast.walk(ast.parse(path.read_text())):
        joined: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and folder(node.left):
            joined = [node.right]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name == "join" and "os.path" not in ast.unparse(node.func):
                continue
            if name in ("joinpath", "join", "with_name", "with_stem"):
                joined = node.args
            elif name == "Path":
                joined = node.args[1:]
        if not all(map(spelled, joined)):
            yield ast.unparse(node)


def _folders() -> set[str]:
    """Names that are annotated as paths, or given one, anywhere in the package."""
    found = {"parent", "parents", "Path", "Inside"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            kind: ast.expr | None = None
            if isinstance(node, ast.arg | ast.AnnAssign):
                kind = node.annotation
            elif isinstance(node, ast.FunctionDef):
                kind = node.returns
            if kind is not None and re.search(r"\bPath\b", ast.unparse(kind)):
                target = getattr(node, "target", None)
                found.add(
                    getattr(node, "arg", None)
                    or getattr(node, "name", None)
                    or getattr(target, "id", getattr(target, "attr", ""))
                )
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = ast.unparse(node.value)
                if re.match(r"(Path\(|[\w.]+\.(with_name|with_stem|parent|path)\b)", value):
                    found.add(node.targets[0].id)
    return found


def test_a_name_from_a_file_becomes_a_path_at_the_gate_alone():
    """`trustclip.support.inside.Inside`; every other join is of names that no file states."""
    folders, seen = _folders(), {"support/inside.py"}
    for room in _READERS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            seen.add(module := path.relative_to(SOURCE).as_posix())
            found, known = set(_joins(path, folders)), _JOINS.get(module, {}).keys()
            assert found <= known, f"{module}: {sorted(found - known)} instead of Inside(...).path"
            assert known <= found, f"{module}: {sorted(known - found)} is listed, and gone"
    assert _JOINS.keys() <= seen


#: What opens or lists files, and the readers that may, each with why no stranger's link leads them.
_OPENERS = {
    *("open", "read_text", "read_bytes", "glob", "rglob", "iterdir", "walk", "scandir"),
    *("ParquetFile", "read_table", "read_schema", "safe_load", "load_file", "loads"),
}
_OPENS = {
    ("logs/names.py", "loads"): "a file of this package",
    ("logs/names.py", "read_text"): "a file of this package",
    ("logs/recognise.py", "iterdir"): "folders alone, and links are passed over",
    ("logs/verl.py", "iterdir"): "what is no file of the folder is passed over",
    ("logs/score_files.py", "glob"): "scores and logs, those that links lead outside passed over",
    ("logs/reader.py", "glob"): "names for a message, and whether there is any",
    ("findings/live/recorder.py", "loads"): "its own text",
}


def test_readers_open_files_through_the_gate_alone():
    """`Inside.file` and `Inside.files` for the path, `support/reading.py` for the content."""
    found = set()
    for room in ("logs", "findings", "report"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            module = path.relative_to(SOURCE).as_posix()
            if module.startswith("logs/writing/"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    found |= {(module, name)} & {(module, opener) for opener in _OPENERS}
    assert found <= _OPENS.keys(), f"not through the gate: {sorted(found - _OPENS.keys())}"
    assert _OPENS.keys() <= found, f"listed, and gone: {sorted(_OPENS.keys() - found)}"
