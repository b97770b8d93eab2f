"""The library needs torch, numpy and pydantic; a command without its extra names the extra."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trustclip.cli.main import NEEDED

#: Distribution of each package that a command imports.
DISTRIBUTIONS = {"yaml": "PyYAML"}
PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

#: Every method by its name, its gradient and its interval, in a process without the extra.
LIBRARY = """
import torch, trustclip as tc

x = torch.tensor([[0.3, -0.3, 0.01]])
for name in tc.methods():
    method = tc.method(name)
    given = {field: x.abs() for field in method.requires if field != "keys"}
    keys = {"keys": torch.arange(3)[None]} if "keys" in method.requires else {}
    batch = tc.TokenBatch(x - 1, x * 0 - 1, x.sign(), x < 9, **given, **keys)
    assert tc.policy_loss(method, batch).value.isfinite() and method.twins is not None
    try:
        tc.interval(method, p_old=torch.tensor([0.1]))
    except ValueError as error:
        assert "interval" in str(error), error
    assert tc.method(**method.to_dict()) == method
for divergence in ("js", "hellinger", "chi2", "kl_new_old"):
    for bounds in ("ratio", "bernoulli"):
        tc.interval("f_divergence", torch.tensor([0.1]), divergence=divergence, bounds=bounds)
tc.method("atr", delta=tc.controllers.target_gate(share=0.02)).after({"gated": 0.1})
"""


def without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Python that finds none of the packages."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True)


def test_every_method_works_without_what_the_commands_need() -> None:
    done = without((*NEEDED, "docstring_parser", "jinja2", "trl"), LIBRARY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", NEEDED)
def test_a_command_without_its_extra_names_it(package: str) -> None:
    code = "from trustclip.cli.main import main\nsys.exit(main(['bounds', 'atr']))"
    done = without((package,), code)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1
    assert package in done.stderr and "pip install 'trustclip[cli]'" in done.stderr


def test_help_needs_no_extra() -> None:
    code = "from trustclip.cli.main import main\nsys.exit(main(['--help']))"
    assert without(NEEDED, code).returncode == 0


def test_the_extra_holds_what_the_commands_import() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {entry.split(">=")[0] for entry in requirements}

    extras = PYPROJECT["optional-dependencies"]
    assert names(PYPROJECT["dependencies"]) == {"torch", "numpy", "pydantic"}
    assert names(extras["cli"]) == {DISTRIBUTIONS.get(name, name) for name in NEEDED}
    for extra in ("train", "report", "control", "bench", "slurm", "ray", "vllm"):
        assert "trustclip[cli]" in extras[extra]
