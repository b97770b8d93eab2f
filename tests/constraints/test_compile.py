"""``torch.compile(tc.policy_loss)``: one graph, and the numbers of the loss as it is written."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from method_cases import ALL, random_batch
from patience import NEVER
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import trustclip as tc

#: Methods in which a token's gradient is a function of its own sequence's numbers; the others
#: measure statistics of a batch, or are made of gradients at other tokens.
PURE = [
    name
    for name in tc.methods()
    if (one := tc.method(name)).statistics_over is None and "candidates" not in one.requires
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compiled(backend: Any = "eager") -> Any:
    """The loss in one graph, or an error; the backend ``"eager"`` runs that graph as it is."""
    return torch.compile(tc.policy_loss, fullgraph=True, backend=backend)


def assert_same(loss: Any, method: tc.Method, batch: tc.TokenBatch, close: float = 1e-14) -> None:
    leaves, made = [], []
    for one in (loss, tc.policy_loss):
        leaf = batch.logp.detach().clone().requires_grad_()
        of_leaf = replace(batch, logp=leaf)
        made.append(one(method, of_leaf, aggregation="dr_grpo", max_length=16))
        made[-1].value.backward(retain_graph=True)
        leaves.append(leaf.grad)
    mine, plain = made
    options: dict[str, Any] = {"rtol": close, "atol": close}
    torch.testing.assert_close(leaves[0], leaves[1], **options)
    torch.testing.assert_close(mine.value, plain.value, **options)
    torch.testing.assert_close(mine.per_token, plain.per_token, **options)
    assert mine.metrics.keys() == plain.metrics.keys()
    for name, pair in plain.metrics.items():
        torch.testing.assert_close(mine.metrics[name], pair, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["atr", "tis"])
def test_the_loss_is_one_graph_of_each_threshold(name: str) -> None:
    assert name in PURE
    loss, batch = compiled(), random_batch(tc.method(name))
    for method in (tc.method(name), tc.method("atr", delta=0.02), tc.method("atr", delta=0.3)):
        assert_same(loss, method, batch)
    assert not counters["graph_break"]


@pytest.mark.slow
def test_lengths_share_a_graph_and_methods_do_not() -> None:
    """A batch of another shape compiles once more, for all shapes; a method is a constant."""
    counter = CompileCounterWithBackend("eager")
    loss, method = compiled(counter), tc.method("clip")
    for time in (11, 9, 7, 5):
        batch = random_batch(method)
        fields = ("logp", "logp_old", "advantages", "mask")
        cut = {name: getattr(batch, name)[:, :time] for name in fields}
        assert_same(loss, method, tc.TokenBatch(**cut))
    assert counter.frame_count == 2
    assert_same(loss, tc.method("clip", epsilon=0.1), random_batch(method))
    assert counter.frame_count == 3


def test_a_name_is_refused_there() -> None:
    batch = random_batch(tc.method("atr"))
    with pytest.raises(Exception, match=r"already built: tc\.method\('atr'\)"):
        compiled()("atr", batch)
    broken = torch.compile(tc.policy_loss, backend="eager")("atr", batch)  # in more than one graph
    assert torch.equal(broken.value, tc.policy_loss("atr", batch).value)


@pytest.mark.slow
def test_every_method_of_tokens_is_one_graph() -> None:
    """And each variant of two that are made of others."""
    several = [m for m in ALL if m.name in ("anchored", "penalty")]
    assert len(PURE) > 40
    for method in [*map(tc.method, PURE), *several]:
        torch.compiler.reset()
        assert_same(compiled(), method, random_batch(method))


@pytest.mark.slow
def test_statistics_that_are_given_make_a_graph_of_the_others() -> None:
    for name in sorted({*tc.methods()} - {*PURE}):
        torch.compiler.reset()
        method = tc.method(name)
        if method.statistics_over is None:
            continue
        batch = random_batch(method)
        given = replace(batch, statistics=method.statistics(batch))
        assert_same(compiled(), method, given)


@pytest.mark.slow
def test_compiled_code_has_the_same_numbers() -> None:
    """In a process of its own: the compiler needs setuptools before anyone has taken distutils."""
    code = (
        "import setuptools, trustclip as tc; from test_compile import *\n"
        "method = tc.method('atr', delta=0.02)\n"
        "assert_same(compiled('inductor'), method, random_batch(method), close=1e-12)\n"
    )
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent / "support"), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=NEVER)
