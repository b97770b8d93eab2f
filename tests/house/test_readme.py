"""The README's code runs, its figure is that of the program, and it stays short."""

import re
import sys
from pathlib import Path

import pytest
import torch
from trl_runs import needs

import trustclip as tc
from trustclip.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)
EXTEND = re.findall(r"```python\n(.*?)```", (ROOT / "docs/extend.md").read_text(), re.S)[0]


def test_the_library_example_runs_and_says_what_it_gives():
    scope: dict = {}
    exec(BLOCKS[0], scope)
    weights = scope["tc"].coefficient(scope["method"], scope["batch"])[0].tolist()
    assert weights == pytest.approx([1.0, 0.0, -0.9048], abs=1e-4)
    assert "[1.0000, 0.0000, -0.9048]" in BLOCKS[0]


def test_the_example_method_works_as_a_users_own(tmp_path, monkeypatch):
    (tmp_path / "my_hellinger.py").write_text(EXTEND)
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


def test_the_page_shows_what_the_check_says_of_its_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for sign, status in (("", 0), ("-", 1)):
        text = EXTEND.replace("batch.advantages", f"{sign}batch.advantages")
        Path("my_file.py").write_text(text)
        assert main(["check", "my_file.py:Hellinger"]) == status
        assert capsys.readouterr().out in (ROOT / "docs/extend.md").read_text()
        sys.modules.pop("my_file.py")


@pytest.mark.slow
def test_the_trl_example_runs_as_printed_after_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    scope: dict = {}
    exec(BLOCKS[1], scope)
    lines = scope["trainer"].state.log_history
    assert any(line.get("reward", 0) > 0 for line in lines), "the model solves some"
    assert any("trustclip/gated" in line for line in lines)


def test_the_trl_example_is_accepted(tmp_path):
    from trustclip.engines.trl import ConstrainedGRPOConfig

    call = BLOCKS[1].split("args = ")[1].split("\ntrainer")[0]
    call = call.replace('"out"', repr(str(tmp_path)))
    args = eval(call, {"ConstrainedGRPOConfig": ConstrainedGRPOConfig})
    assert args.constraint().name == "atr" and not args.schedule().inert


def test_it_is_short_and_counts_the_methods():
    assert sum(bool(re.search(r"\w", word)) for word in README.split()) <= 800  # no bars of tables
    assert f"among {len(tc.methods())} methods" in README


@needs("matplotlib")
def test_its_figure_is_the_programs(tmp_path):
    figure = tmp_path / "families.svg"
    only = "atr, dual_clip, soft_gate, cispo"
    assert main(["methods", "--figure", str(figure), "--only", only]) == 0
    assert figure.read_bytes() == (ROOT / "docs/families.svg").read_bytes()
