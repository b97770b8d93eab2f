"""A program of this repository that is in no package, as a module."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def program(file: Path) -> Any:
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
