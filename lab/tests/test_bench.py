"""Costs of the head, a step and the methods at toy sizes: what is measured, written, refused."""

import json
from functools import partial

import head_cost as heads
import method_cost
import peaks
import printed
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trl_runs import needs

import trustclip as tc
from trustclip_lab.bench import measure, variants

SMALL = ["--tokens", "24", "--hidden", "8", "--vocabulary", "300", "--repeats", "1"]


def light(monkeypatch):
    """Leave out the processes that peaks are measured in, and what takes seconds to import."""
    monkeypatch.setattr(heads, "peak_memory", lambda *_, **__: 1.0)
    monkeypatch.setattr(heads, "installed_peers", lambda: [])


@needs("trl>=1.15")
@pytest.mark.parametrize("trained", [False, True])
def test_every_variant_makes_the_same_gradients(trained):
    """Of hidden states and of the weight, against naive logits."""
    shape = variants.Shape(24, 8, 300)
    found = {}
    for entry in heads.entries(trained):
        if entry.function in ("whole_products", "liger"):
            continue
        problem = variants.Problem.of(shape, trained).with_options(entry.entropy, entry.zeros)
        grads = []
        kept = problem.weight.register_hook(grads.append) if trained else None
        hidden = getattr(variants, entry.function)(problem)()
        found.setdefault(entry.zeros, []).append((entry.label, hidden, *grads))
        assert kept is None or len(grads) == 1
    assert sorted(found) == [0, 0.5, 0.75]
    for rows in found.values():
        for label, *grads in rows:
            for got, want in zip(grads, rows[-1][1:], strict=True):
                assert (got - want).abs().max() <= 1e-5 * want.abs().max(), label


class Products(TorchDispatchMode):
    """Multiplications and additions of all matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("mm", "addmm", "addmm_"):
            a, b = args[-2:]
            self.count += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("trained", "zeros", "function", "products"),
    [
        (False, 0, "products", 2),
        (False, 0, "ours", 2),
        (False, 0.5, "ours", 1),
        (False, 0, "with_bregman_kl", 2),
        (False, 0, "with_exact_kl", 4),
        (True, 0, "products", 3),
        (True, 0, "ours", 4),
        (True, 0.5, "ours", 2),
    ],
)
def test_number_of_products(trained, zeros, function, products):
    """Counted in units of 2 NHV operations; a trained head makes its logits twice."""
    problem = variants.Problem.of(variants.Shape(20, 8, 600), trained).with_options(True, zeros)
    call = getattr(variants, function)(problem)
    with Products() as found:
        call()
    assert found.count == products * 2 * 20 * 8 * 600


def program(module, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", [module.__name__, *arguments])
    printed.measured(OPTIONS[module], module.run)


OPTIONS = {heads: heads.HeadOptions, method_cost: method_cost.MethodOptions}


@pytest.mark.slow
def test_head_from_arguments_to_a_file(tmp_path, monkeypatch, capsys):
    light(monkeypatch)
    file = tmp_path / "out.json"
    program(heads, monkeypatch, *SMALL, "--head", "frozen", "--rows", "all", "--json", str(file))
    said = capsys.readouterr().out
    assert "whole logits + exact KL" in said and "N = 24, H = 8, V = 300" in said
    tables = json.loads(file.read_text())["tables"]
    ratios = {row[0]: row[2] for row in tables[0]["rows"]}
    assert ratios["bare products"] == 1 and ratios["trustclip"] > 0


def test_methods(monkeypatch, capsys):
    program(method_cost, monkeypatch, "--sequences", "2", "--length", "8", "--repeats", "1")
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in tc.methods())


def test_seconds_are_medians_of_turns(monkeypatch):
    order, seconds = [], iter([5.0, 1.0, 2.0, 9.0, 3.0, 4.0])

    def clock(call):
        call()
        return next(seconds)

    monkeypatch.setattr(measure, "_cpu_seconds", clock)
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    assert measure.in_turn(calls, repeats=3) == {"a": 3.0, "b": 4.0}
    assert order == ["a", "b"] * 3


@pytest.mark.slow
def test_peak_memory_is_what_the_call_needs():
    calls = [partial(torch.ones, mebibytes << 18) for mebibytes in (20, 100)]
    small, large = (peaks.peak_memory(call) for call in calls)
    assert 18 < small < 40 and 98 < large < 120
