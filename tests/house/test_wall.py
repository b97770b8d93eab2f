"""The library stands without the training program: no import of it loads a module of that."""

import subprocess
import sys
from pathlib import Path

import pytest
from patience import NEVER

ROOT = Path(__file__).parents[2]
LIBRARY = (
    *("support", "stats", "constraints", "methods", "head", "engines", "logs", "findings"),
    "report",
)
#: Ends a program with the modules of these folders that it has loaded.
LOADED = """
import sys
loaded = [name for name in sys.modules if name.startswith(tuple(sys.argv[1].split(",")))]
sys.exit(", ".join(sorted(loaded)) or None)
"""
EVERY_MODULE = f"""
import contextlib, importlib, pkgutil
import trustclip
for room in {LIBRARY!r}:
    package = importlib.import_module(f"trustclip.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, f"trustclip.{{room}}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # an engine that is not installed here
            if error.name.startswith("trustclip"):
                raise
for name in trustclip.__all__:
    getattr(trustclip, name)
"""
#: README's first trainer, made tiny, with a recorder.
RECORDED = """
import sys
import trustclip as tc
from datasets import Dataset
from trl_runs import COMMON, PROMPTS, fresh_model, share_of_even_digits
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

model, tokenizer = fresh_model()  # made by the program, whose modules are forgotten here
for name in [name for name in sys.modules if name.startswith("trustclip.train")]:
    del sys.modules[name]
recorder = tc.Recorder("run", tokens_every=1)
trainer = ConstrainedGRPOTrainer(
    model,
    reward_funcs=[share_of_even_digits],
    args=ConstrainedGRPOConfig("out", method="atr", **{**COMMON, "max_steps": 2}),
    train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
    processing_class=tokenizer,
    callbacks=[recorder],
)
trainer.train()
recorder.evaluation("digits", {"a": [1, 0], "b": [1, 1]})
"""


@pytest.mark.parametrize(
    ("program", "without"),
    [
        (EVERY_MODULE, "trustclip.train,trustclip.cli"),
        (RECORDED, "trustclip.train,trustclip.cli"),
        ("import trustclip.logs.recognise", "trustclip.engines,trustclip.train"),
    ],
    ids=["every module and public name", "a recorded training", "reading a log"],
)
def test_is_loaded_without(program: str, without: str, tmp_path: Path) -> None:
    paths = f"import sys; sys.path.insert(0, {str(ROOT / 'tests/support')!r})\n"
    command = [sys.executable, "-c", paths + program + LOADED, without]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=NEVER, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
