"""Which GPUs take this head by themselves: those it was measured on."""

import types
from typing import Any

import pytest
import torch

from trustclip.head import measured


@pytest.fixture
def table(monkeypatch):
    held: dict[str, Any] = {}
    monkeypatch.setattr(measured, "table", lambda: held)
    return held


def test_a_gpu_takes_the_head_only_where_it_was_measured_to_be_faster(table, monkeypatch):
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = torch.device("cuda")
    assert not measured.serves(gpu, trained=False)
    entry = {"frozen": 0.5, "trained": 1.2, "device": "a GPU", "date": "2026-11-22"}
    table["9.0"] = entry
    assert measured.serves(gpu, trained=False) and not measured.serves(gpu, trained=True)
    capability = (8, 0)
    assert not measured.serves(gpu, trained=False)
    assert measured.serves(torch.device("cpu"), trained=True)
    assert not measured.serves(torch.device("mps"), trained=False)


def test_the_engine_reads_it(tmp_path, table, monkeypatch):
    pytest.importorskip("trl", reason="TRL is not installed")
    from test_trl_fast import BUILT, build

    from trustclip.engines.trl import fast_paths

    trainer = build(tmp_path, *BUILT, method="atr")
    assert fast_paths.obstacle("head", trainer) is None
    there = types.SimpleNamespace(
        device=torch.device("cuda"), unwrap_model=trainer.accelerator.unwrap_model
    )
    monkeypatch.setattr(trainer, "accelerator", there)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert "nothing faster was measured" in (fast_paths.obstacle("head", trainer) or "")
    table["9.0"] = {"frozen": 2.0, "trained": 0.5}
    assert fast_paths.obstacle("head", trainer) is None
    monkeypatch.setattr(torch.version, "hip", "6.4")  # a GPU that is not NVIDIA's says (9, 0), too
    assert "nothing faster was measured" in (fast_paths.obstacle("head", trainer) or "")
