"""The library needs torch, numpy and pydantic; a command without its extra names the extra."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from synthetic_runs import Spec, make_run
from token_files import made

from trustclip.cli.main import CLI_PACKAGES
from trustclip.cli.registry import COMMANDS, added_commands
from trustclip.logs.tokens import write_tokens
from trustclip.support.jsonl import append_jsonl

#: Distribution of each package that a command imports.
DISTRIBUTIONS = {"yaml": "PyYAML"}
ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Every method by its name, its gradient and its interval, in a process without the extra.
LIBRARY = """
import torch, trustclip as tc
from trustclip.constraints.candidates import Candidates

tc.policy_loss
assert "torch._dynamo" not in sys.modules, "it doubles the time in which every command starts"
x = torch.tensor([[0.3, -0.3, 0.01]])
old = torch.full((1, 3, 2), 0.5).log()
for name in tc.methods():
    method = tc.method(name)
    other = {"keys": torch.arange(3)[None], "candidates": Candidates(old, old, old)}
    given = {field: other.get(field, x.abs()) for field in method.requires}
    batch = tc.TokenBatch(x - 1, x * 0 - 1, x.sign(), x < 9, **given)
    assert tc.policy_loss(method, batch).value.isfinite() and method.twins is not None
    try:
        tc.interval(method, p_old=torch.tensor([0.1]))
    except ValueError as error:
        assert "interval" in str(error), error
    assert tc.method(**method.to_dict()) == method
for divergence in ("js", "hellinger", "chi2", "kl_new_old"):
    tc.interval("f_divergence", divergence=divergence)
tc.method("atr", delta=tc.controllers.target_gate(share=0.02)).after({"gated": 0.1})
"""


def without(
    packages: tuple[str, ...], code: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Python, in a folder, that finds none of the packages."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", blocked + code], capture_output=True, text=True, cwd=folder
    )


def test_every_method_works_without_what_the_commands_need() -> None:
    done = without((*CLI_PACKAGES, "docstring_parser", "jinja2", "trl"), LIBRARY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", CLI_PACKAGES)
@pytest.mark.parametrize("command, extra", [("bounds", "cli"), ("demo", "train")])
def test_a_command_without_its_extra_names_it(package: str, command: str, extra: str) -> None:
    code = f"from trustclip.cli.main import main\nsys.exit(main(['{command}', 'atr']))"
    done = without((package,), code)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1
    assert package in done.stderr and f"pip install 'trustclip[{extra}]'" in done.stderr


def test_the_extra_holds_what_the_commands_import() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {entry.split(">=")[0] for entry in requirements}

    extras = PYPROJECT["optional-dependencies"]
    assert names(PYPROJECT["dependencies"]) == {"torch", "numpy", "pydantic"}
    commands = {DISTRIBUTIONS.get(name, name) for name in CLI_PACKAGES}
    assert names(extras["cli"]) == commands
    for extra in ("report", "control", "slurm", "vllm"):
        assert "trustclip[cli]" in extras[extra]
    assert "trustclip[report]" in extras["train"]  # who trains looks at the run


def test_every_extra_that_is_named_exists():
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    texts = [*(ROOT / "src/trustclip").rglob("*.py"), *pages, *ROOT.glob("*.md")]
    texts += [*(ROOT / "examples").rglob("*.py"), *(ROOT / "skills").rglob("*.md")]
    written = re.compile(r"(?:trustclip|'\.|-e \.)\[([a-z0-9,]+)\]")
    listed = [found for path in texts for found in written.findall(path.read_text("utf-8"))]
    named = {extra for one in listed for extra in one.split(",")}
    assert {"train", "vllm"} <= named <= set(PYPROJECT["optional-dependencies"])
    assert {one.extra for one in COMMANDS.values()} <= set(PYPROJECT["optional-dependencies"])


#: What training and reports bring beyond the commands' own packages, and other extras.
TRAIN = ("transformers", "trl", "peft", "datasets", "accelerate", "math_verify", "psutil")
REPORT = ("matplotlib", "pyarrow", "pandas")  # jinja2 comes with torch
OTHERS = (
    "stable_baselines3", "gymnasium", "liger_kernel", "vllm", "ray", "submitit", "verl", "hydra",
    "omegaconf", "trackio", "tensorboard", "wandb", "mlflow",
)  # fmt: skip
#: Command line -> extra that it asks for; None for one that works.
ANSWERS = {
    "demo": "train",
    "sft --preset tiny --output-dir new": "train",
    "rl --preset tiny --output-dir new": "train",
    "eval --preset tiny --model tiny --output-dir new": "train",
    "run recipe.yaml": "train",
    "run recipe.yaml --dry-run": "train",
    "resume runs/a": "train",
    "suite suite.yaml": "train",
    "suite suite.yaml --dry-run": None,
    "suite suite.yaml --on slurm": "slurm",
    "recipes": None,
    "recipes --schema suite": None,
    "init --model tiny --dataset arithmetic": "train",
    "try tiny --dataset arithmetic": "train",
    "arena --help": None,
    "report runs/a": "report",
    "tokens tokens.jsonl": None,
    "tokens tokens.parquet": "report",
    "microscope tokens.jsonl": None,
    "explain runs/a": None,
    "explain tokens.jsonl": None,
    "shadow tokens.jsonl --methods atr": None,
    "shadow tokens.jsonl --methods atr --figure new.svg": "report",
    "shadow tokens.jsonl --suggest atr": None,
    "compare runs/a runs/b": None,
    "verify runs/a": None,
    "power runs/a runs/b": None,
    "check atr": None,
    "conform loss.py:loss --as reinforce": None,
    "eval --grade integers.csv": None,
    "eval --grade formulas.csv": "train",
    "decontaminate --train train.jsonl --test test.jsonl --out new.json": None,
    "paper": None,
    "methods": None,
    "methods --engines": None,
    "methods --figure new.svg": "report",
    "bounds atr": None,
    "theory": None,
    "tabular --seeds 2 --generations 1 --learning-rates 8 --methods clip": None,
    "lab --task needle --seeds 2 --generations 1 --width 8 --prompts 4": None,
    "bench gpu --help": None,
    "control": "control",
    "doctor": None,
    "doctor --distributed": "train",
    "doctor --sampler recipe.yaml": "train",
}
SUITE = """\
name: core
recipe: recipe.yaml
output_dir: {out}
seeds: [0]
methods: {{atr: {{name: atr}}}}
reference: atr
"""
#: Run commands one after the other; print what each gave.
ANSWERED = """
import io, json, shlex, traceback
from contextlib import redirect_stderr, redirect_stdout
from trustclip.cli.main import main
for line in {lines!r}:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(shlex.split(line))
        except SystemExit as left:
            code = left.code
        except BaseException:
            code, _ = 1, traceback.print_exc()
    print(json.dumps([line, code, err.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the commands above are given."""
    root = tmp_path_factory.mktemp("core")
    for name in ("a", "b"):
        make_run(root / "runs" / name, Spec({"name": "atr"}, steps=4, every=2))
    rows = sorted(made(), key=lambda row: row.step or 0)
    write_tokens(root / "tokens.parquet", rows)
    append_jsonl(root / "tokens.jsonl", [row.to_dict() for row in rows])
    tiny = (ROOT / "recipes/tiny.yaml").read_text("utf-8").replace("runs/tiny", str(root / "new"))
    (root / "recipe.yaml").write_text(tiny, "utf-8")
    (root / "suite.yaml").write_text(SUITE.format(out=root / "suite"), "utf-8")
    (root / "integers.csv").write_text("answer,gold\n<SOLUTION>3</SOLUTION>,3\n", "utf-8")
    (root / "formulas.csv").write_text("answer,gold\n\\boxed{x+1},1+x\n", "utf-8")
    for name in ("train", "test"):
        row = {"id": name, "problem": f"How many {name}s are there?", "answer": "3"}
        append_jsonl(root / f"{name}.jsonl", [row])
    loss = "def loss(logp, advantages, mask): return -(logp * advantages * mask).sum()\n"
    (root / "loss.py").write_text(loss, "utf-8")
    return root


@pytest.mark.slow
def test_every_command_answers_a_core_install_in_one_line(folder):
    assert {line.split()[0] for line in ANSWERS} == {*COMMANDS, *added_commands()}
    done = without((*TRAIN, *REPORT, *OTHERS), ANSWERED.format(lines=list(ANSWERS)), folder)
    assert done.returncode == 0, done.stderr
    wrong = []
    for line, code, said in map(json.loads, done.stdout.splitlines()):
        extra = ANSWERS[line]
        if extra is None:
            right = code in (0, 1) and "Traceback" not in said
        else:
            install = f"pip install 'trustclip[{extra}]'" in said
            right = code == 2 and said.count("\n") == 1 and install
        if not right:
            wrong.append((line, code, said))
    assert not wrong
