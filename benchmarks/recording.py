"""Share of a training that recording tokens takes: `python benchmarks/recording.py`.

One run, whose time in the recorder is taken with the same clock as its whole, so that the share
does not depend on how busy the machine is. The model is the tests' smallest: no step is cheaper.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

import durable_runs

from trustclip.engines.trl.recording.tokens import Plan, TokenSampler, pieces
from trustclip.logs.tokens import TokenRow, write_tokens

UPDATES, EVERY, COMPLETIONS = 60, 10, 8


class Recorder(TokenSampler):
    """A recorder that adds its time up."""

    seconds = 0.0

    def add(self, *args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        start = time.perf_counter()
        super().add(*args)
        self.seconds += time.perf_counter() - start

    def finish(self, *args: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        start = time.perf_counter()
        count = super().finish(*args)
        self.seconds += time.perf_counter() - start
        return count


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    trainer = durable_runs.grpo(
        folder,
        method="atr",
        steps_per_generation=2,
        num_iterations=2,
        per_device_train_batch_size=32,
        max_completion_length=64,
        max_steps=UPDATES,
        save_strategy="no",
    )
    plan = Plan(EVERY, COMPLETIONS, 2**24, UPDATES, per_generation=4, seed=0)
    sizes: list[int] = []

    def write(step: int, rows: list[dict[str, Any]]) -> None:
        path = folder / f"{step}.parquet"
        write_tokens(path, [TokenRow.of(row) for row in rows])
        sizes.append(path.stat().st_size)

    write_tokens(folder / "warm.parquet", [TokenRow.of({"logp": [-1.0], "advantage": 1.0})])
    trainer.token_sampler = sampler = Recorder(plan, 4, 16, pieces(trainer.processing_class), write)
    start = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - start
    each = 1e3 * sampler.seconds / len(sizes)
    print(f"an update {1e3 * whole / UPDATES:.0f} ms, a recording {each:.1f} ms")
    print(f"{sampler.seconds / whole:.2%} of the training, {max(sizes) / 2**10:.0f} KiB a file")


if __name__ == "__main__":
    main()
