"""Environment and commands of verl's processes on CPU."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SUPPORT = HERE.parents[1] / "support"
SUPPORT = HERE.parents[1] / "support"

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HYDRA_FULL_ERROR": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """This process's environment, with the shim for every process of verl."""
    own = [str(HERE), str(SUPPORT), *map(str, folders)]
    paths = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths), **more}


def run(arguments: list[str], env: dict[str, str], cwd: Path, timeout: float) -> tuple[int, str]:
    """(exit code, everything printed) of a Python command; it dies with all its children."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    return process.returncode, printed
