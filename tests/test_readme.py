"""The README's code runs, and its table of methods is that of the program."""

import re
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_library_example_runs_and_says_what_it_gives():
    scope: dict = {}
    exec(BLOCKS[0], scope)
    weights = scope["tc"].coefficient(scope["method"], scope["batch"])[0].tolist()
    assert weights == pytest.approx([1.0, 0.0, -0.9048], abs=1e-4)
    assert "[1.0000, 0.0000, -0.9048]" in BLOCKS[0]


def test_the_example_method_works_as_a_users_own(tmp_path, monkeypatch):
    import torch

    import trustclip as tc

    (tmp_path / "my_hellinger.py").write_text(BLOCKS[2])
    monkeypatch.syspath_prepend(str(tmp_path))
    method = tc.method("my_hellinger:Hellinger", delta=0.01)
    batch = tc.TokenBatch(
        torch.tensor([[0.5, 0.25]]).log(),
        torch.tensor([[0.25, 0.24]]).log(),
        torch.ones(1, 2),
        torch.ones(1, 2, dtype=torch.bool),
    )
    assert method.surrogate(batch).kept.tolist() == [[False, True]]
    sys.modules.pop("my_hellinger", None)


def test_the_trl_example_is_accepted(tmp_path):
    from trustclip.engines.trl import ConstrainedGRPOConfig

    call = BLOCKS[1].split("args = ")[1].split("\nConstrained")[0]
    extra = f"ConstrainedGRPOConfig({str(tmp_path)!r}, bf16=False, use_cpu=True, "
    args = eval(
        call.replace('ConstrainedGRPOConfig("out", ', extra),
        {"ConstrainedGRPOConfig": ConstrainedGRPOConfig},
    )
    assert args.constraint().name == "atr" and not args.schedule().inert


def test_the_table_of_methods_is_the_programs(capsys):
    from trustclip.cli.main import main

    assert main(["methods", "--markdown"]) == 0
    assert capsys.readouterr().out.strip() in README
