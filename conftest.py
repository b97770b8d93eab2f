"""Modules whose third-party package has an environment of its own have their doctests run there."""

from importlib.util import find_spec

_NEEDS = {
    "engines/verl/loss.py": "verl",
    "engines/verl/plugin.py": "verl",
    "engines/verl/watch.py": "verl",
    "head/kernels.py": "triton",
    "suite/launchers/slurm.py": "submitit",
    "suite/launchers/ray.py": "ray",
}

collect_ignore_glob = [
    f"src/trustclip/{path}" for path, package in _NEEDS.items() if not find_spec(package)
]
# A plug-in of `make peers`: importing it puts our classes in the place of TRL's.
collect_ignore_glob.append("tests/peers/*")
if not find_spec("verl"):
    collect_ignore_glob.append("tests/verl_calls.py")
