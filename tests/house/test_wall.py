"""The library trains without the program; `make check` and test_house.py see what it imports."""

import subprocess
import sys
from pathlib import Path

from patience import NEVER

ROOT = Path(__file__).parents[2]
#: README's first trainer, made tiny, with a recorder.
RECORDED = """
import sys
import trustclip as tc
from trl_runs import build, fresh_model

fresh_model()  # made by the program, whose modules are forgotten here
for name in [name for name in sys.modules if name.startswith("trustclip.train")]:
    del sys.modules[name]
recorder = tc.Recorder("run", tokens_every=1)
build("out", given={"callbacks": [recorder]}, method="atr", max_steps=2).train()
recorder.evaluation("digits", {"a": [1, 0], "b": [1, 1]})
program = ("trustclip.train", "trustclip.cli")
sys.exit(", ".join(sorted(n for n in sys.modules if n.startswith(program))) or None)
"""


def test_a_recorded_training_loads_nothing_of_the_program(tmp_path: Path) -> None:
    paths = f"import sys; sys.path.insert(0, {str(ROOT / 'tests/support')!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", paths + RECORDED], cwd=tmp_path, capture_output=True, text=True,
        timeout=NEVER, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
