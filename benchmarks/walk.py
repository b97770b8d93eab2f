"""How far the settings of `trustclip rl` travel: which functions get them, from module to module.

    python benchmarks/walk.py [-v]

It trains the tiny model for two updates and follows the settings object: every call of a function
of trustclip with the object among its arguments counts. A stay is a run of such calls in one
module. ``-v`` lists the functions in the order of their first call.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType

from rich.console import Console

from trustclip.train.rl import rl
from trustclip.train.settings.stages import RLSettings


def calls_with(value: object, action: Callable[[], object]) -> list[tuple[str, str]]:
    """Module and name of each function of trustclip that gets ``value`` during ``action``."""
    calls = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and module.startswith("trustclip."):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(frame.f_locals.get(name) is value for name in names):
                calls.append((module, code.co_qualname))

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true")
    verbose = parser.parse_args().verbose
    with tempfile.TemporaryDirectory() as folder:
        settings = RLSettings(
            model="tiny",
            dataset="arithmetic",
            output_dir=Path(folder) / "run",
            limit=64,
            max_steps=2,
            max_completion_length=8,
        )
        calls = calls_with(settings, lambda: rl(settings, Console(file=io.StringIO())))
    stays = [module for module, _ in groupby(module for module, _ in calls)]
    print(
        f"{len(calls)} calls of {len(set(calls))} functions in {len(set(stays))} modules; "
        f"{len(stays)} stays"
    )
    for module, name in dict.fromkeys(calls) if verbose else ():
        print(f"{module:<36}{name}")


if __name__ == "__main__":
    main()
