"""Share of a step that eight shadows take: `python lab/benchmarks/shadows.py`.

One run, whose time in the shadows is taken with the same clock as its whole, so that the share does
not depend on how busy the machine is. CPU time, one thread.
"""

import contextlib
import io
import tempfile
import time
import warnings
from typing import Any

import step_cost as steps
import torch

from trustclip.constraints.shadow import Shadows

#: Eight methods: token and sequence level, bounds by probability, score form and reweighting.
METHODS = ["atr", "clip_higher", "kl2", "dual_clip", "gspo", "dppo", "bandpo", "cispo"]
SIZES = {
    "0.4 M parameters, V = 512": {"updates": 64},
    "the same with V = 32,000": {"vocabulary": 32_000, "updates": 32},
    "V = 151,936 and LoRA": {
        "vocabulary": 151_936,
        "lora": True,
        "updates": 4,
        "updates_per_generation": 4,
    },
}


def main() -> None:
    torch.set_num_threads(1)
    spent = 0.0

    def timed(call: Any) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            start = time.process_time()
            result = call(*args, **kwargs)
            spent += time.process_time() - start
            return result

        return inner

    for name in ("add", "read"):
        setattr(Shadows, name, timed(getattr(Shadows, name)))
    print("| model | update, CPU ms | shadows, CPU ms | share |\n|---|---:|---:|---:|")
    for size, sizes in SIZES.items():
        options = steps.StepOptions(**sizes)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = steps._trainer(options, {"method": "atr", "shadows": METHODS}, folder)
            spent, start = 0.0, time.process_time()
            with contextlib.redirect_stdout(io.StringIO()):
                trainer.train()
            whole = time.process_time() - start
        each, own = (1e3 * seconds / options.updates for seconds in (whole, spent))
        print(f"| {size} | {each:.1f} | {own:.2f} | {spent / whole:.2%} |")


if __name__ == "__main__":
    main()
