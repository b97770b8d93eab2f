"""The table of bytes and products in the measurements is the one that its program prints."""

from pathlib import Path

import head_traffic
import torch

from trustclip.head import Head

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"


def test_the_table_is_current():
    assert head_traffic.table() in RESULTS.read_text(), "benchmarks/RESULTS.md: head_traffic.py"


def test_the_rows_in_bold_are_the_tiles_that_a_gpu_gets(monkeypatch):
    monkeypatch.setattr(Head, "_device", "cuda")
    head = Head(torch.empty(head_traffic.V, 1))

    def tile(blocks):
        rows = next(blocks).stop
        return rows, next(head.columns(rows)).stop

    whole = tile(head.blocks(head_traffic.N))
    found = {c.label: (c.rows, c.columns) for c in head_traffic.CHOICES if c.label[0] == "*"}
    assert found == {
        "**frozen, as it is**": whole,
        "**trained: tiles made again**": whole,
    }


def test_what_lowers_traffic_lowers_time():
    read_twice, _, half, _, now, _ = head_traffic.CHOICES
    for hidden in (2048, 4096):
        times = [head_traffic.estimate(c, hidden)[1] for c in (read_twice, half, now)]
        assert times == sorted(times, reverse=True)
