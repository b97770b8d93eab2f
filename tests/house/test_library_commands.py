"""The library's commands and trainer, in a process of their own, load nothing of the program.

`make check` and test_house.py see what is imported by name.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import Spec, make_run
from token_files import made

from trustclip.cli.registry import LIBRARY
from trustclip.support.jsonl import append_jsonl

#: Each command of the library as one calls it, and its other forms.
LINES = (
    "report runs/a runs/b -o page",
    "explain runs/a",
    "explain tokens.jsonl",
    "tokens tokens.jsonl",
    "microscope tokens.jsonl",
    "shadow tokens.jsonl --methods 'atr, {name: clip, epsilon: 0.1}'",
    "shadow tokens.jsonl --suggest atr",
    "compare runs/a runs/b",
    "power runs/a runs/b",
    "methods",
    "methods --engines",
    "bounds atr --delta 0.07",
    'bounds atr --delta "{controller: target_gate, share: 0.02}"',
    "check atr",
    "conform loss.py:loss --as reinforce",
    "doctor --num-iterations 2",
    "doctor --sampler pairs.jsonl --length 8",
)
#: Call each line as `python -m trustclip` does; write down its status and what it has loaded of
#: the program, which the next line is to load anew.
CALLS = """
import json, runpy, shlex, sys
for line in {lines!r}:
    sys.argv = ["trustclip", *shlex.split(line)]
    try:
        runpy.run_module("trustclip", run_name="__main__")
    except SystemExit as end:
        status = end.code
    loaded = [name for name in sys.modules if name.startswith("trustclip.train")]
    for name in loaded:
        del sys.modules[name]
    with open("calls.jsonl", "a") as file:
        print(json.dumps([line, status, loaded]), file=file)
"""
#: README's first trainer, made tiny, with a recorder, after all of them: it, too, is to load anew.
TRAINED = """
import trustclip as tc
from trl_runs import build, fresh_model

program = ("trustclip.train", "trustclip.cli")
fresh_model()  # made by the program, whose modules are forgotten here
for name in [name for name in sys.modules if name.startswith(program)]:
    del sys.modules[name]
recorder = tc.Recorder("run", tokens_every=1)
build("out", given={"callbacks": [recorder]}, method="atr", max_steps=2).train()
recorder.evaluation("digits", {"a": [1, 0], "b": [1, 1]})
loaded = [name for name in sys.modules if name.startswith(program)]
with open("calls.jsonl", "a") as file:
    print(json.dumps(["a recorded training", 0, loaded]), file=file)
"""
LOSS = """
def loss(logp, advantages, mask):
    return -(logp * advantages * mask).sum()
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name, Spec({"name": "atr"}, steps=4, every=2))
    rows = sorted(made(), key=lambda row: row.step or 0)
    append_jsonl(tmp_path / "tokens.jsonl", [row.to_dict() for row in rows])
    same = {"logp_old": [-0.5, -1.0], "logp_rollout": [-0.5, -1.0]}
    append_jsonl(tmp_path / "pairs.jsonl", [same] * 32)
    (tmp_path / "loss.py").write_text(LOSS)
    return tmp_path


@pytest.mark.slow
def test_no_command_and_no_recorded_training_of_the_library_load_the_program(folder):
    assert {line.split()[0] for line in LINES} == set(LIBRARY)
    paths = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n"
    code = paths + CALLS.format(lines=LINES) + TRAINED
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, (folder / "calls.jsonl").read_text().splitlines())
    calls = {line: (status, loaded) for line, status, loaded in rows}
    assert calls == dict.fromkeys((*LINES, "a recorded training"), (0, []))
