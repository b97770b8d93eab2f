"""Parts of engines that no package index has, from a checkout that a variable names."""

import ast
import enum
import os
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch


def checkout(variable: str, engine: str) -> Path:
    """The folder of an engine's checkout; a test is skipped where there is none."""
    if not (folder := os.environ.get(variable)):
        pytest.skip(f"{variable} names no checkout of {engine}, which PyPI has not")
    return Path(folder)


def parts_of(
    path: Path, wanted: Iterable[str], scope: Mapping[str, Any], name: str
) -> types.ModuleType:
    """A module with some of the classes and functions of a file, and none of its imports."""
    nodes: list[ast.stmt] = [
        node
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in wanted
    ]
    module = types.ModuleType(name)
    module.__file__ = str(path)
    names = {name: getattr(typing, name) for name in typing.__all__}
    vars(module).update(names, torch=torch, BaseModel=pydantic.BaseModel, **scope)
    exec(compile(ast.Module(nodes, type_ignores=[]), str(path), "exec"), vars(module))
    return module


def nemo_rl(path: str) -> types.ModuleType:
    """NeMo-RL's own loss, under the path of its module, where NEMO_RL names its checkout."""
    folder = checkout("NEMO_RL", "NeMo-RL")
    parents = path.split(".")[:-1]
    for i in range(1, len(parents) + 1):  # a worker that unpickles the loss imports them
        sys.modules[".".join(parents[:i])] = types.ModuleType(".".join(parents[:i]))
    scope: dict[str, Any] = {"enum": enum, "BatchedDataDict": dict, "Tensor": torch.Tensor}
    for name, wanted in (
        ("loss.interfaces", ("LossType", "LossInputType", "LossFunction", "MetricNormalizer")),
        ("utils", ("calculate_kl", "masked_mean")),
        (
            "loss.loss_functions",
            ("ClippedPGLossConfig", "ClippedPGLossDataDict", "ClippedPGLossFn"),
        ),
    ):
        whole = f"nemo_rl.algorithms.{name}"
        file = folder / f"{whole.replace('.', '/')}.py"
        sys.modules[whole] = found = parts_of(file, wanted, scope, whole)
        scope |= {one: getattr(found, one) for one in wanted}
    return sys.modules[path]
