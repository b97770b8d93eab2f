"""Unsloth's trainer in TRL's place is refused: classes of the shapes that its source makes."""

import importlib.util
from typing import Any

import pytest
from trl.trainer import grpo_trainer
from trl_runs import build


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL after `import unsloth`: a copy of its trainer with another loss, and a subclass."""

    def compute_loss(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
        raise AssertionError("this loss reads no advantages of ours")

    bases = grpo_trainer.GRPOTrainer.__bases__
    inner = type("_UnslothGRPOTrainer", bases, {"compute_loss": compute_loss})
    outer = type("UnslothGRPOTrainer", (inner,), {})
    monkeypatch.setattr(grpo_trainer, "GRPOTrainer", outer)


def test_imported_before_the_engine(patched: None) -> None:
    spec: Any = importlib.util.find_spec("trustclip.engines.trl.upstream")
    with pytest.raises(ImportError, match="train in a process without `import unsloth`"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_imported_after_the_engine(patched: None, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="Unsloth has put a trainer of its own"):
        build(tmp_path, method="atr")
