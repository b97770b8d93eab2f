"""Modules whose third-party package has an environment of its own have their doctests run there."""

from importlib.util import find_spec

_NEEDS = {
    "verl": "src/trustclip/engines/verl*.py",
    "triton": "src/trustclip/head/kernels.py",
    "submitit": "src/trustclip/suite/on_slurm.py",
    "ray": "src/trustclip/suite/on_ray.py",
}

collect_ignore_glob = [pattern for package, pattern in _NEEDS.items() if not find_spec(package)]
