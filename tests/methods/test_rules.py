"""Every method is held to an independent rule, and one without a rule, or against it, is named."""

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import method_cases
import oracle
import pytest
import test_every_method
from faults import numerics

import trustclip as tc
from trustclip.constraints import base

#: A method as its author writes it: (1 - sqrt(w))^2, where ``{factor}`` is 0.5.
SOURCE = '''
    """Hellinger's distance of the ratio."""

    from torch import Tensor

    from trustclip.constraints import gates
    from trustclip.constraints.base import Method, Positive, definition
    from trustclip.constraints.batch import Surrogate, TokenBatch


    @definition
    class Planted(Method):
        r"""Planted: $(1 - \\sqrt w)^2 \\le \\delta$."""

        delta: Positive = 0.02

        def surrogate(self, batch: TokenBatch) -> Surrogate:
            x = batch.log_ratio.detach()
            kept = gates.keeps_gradient(
                (1 - (FACTOR * x).exp()) ** 2 <= self.delta, x, batch.advantages, "outward"
            )
            return gates.hard(batch, kept)
'''
RULE = oracle.at_most(lambda p, t: oracle.F["hellinger"](oracle.np.exp(t.x)))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Write ``methods/planted.py`` with a factor in its formula."""

    def write(factor: float) -> tc.Method:
        text = textwrap.dedent(SOURCE).replace("FACTOR", str(factor))
        (tmp_path / "planted.py").write_text(text)
        return tc.method("planted")

    package = importlib.import_module("trustclip.methods")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(base, "_METHODS", [*base._METHODS, str(tmp_path)])
    base.methods.cache_clear()
    yield write
    monkeypatch.undo()
    sys.modules.pop("trustclip.methods.planted")
    base.methods.cache_clear()


def test_every_method_has_a_rule() -> None:
    assert not method_cases.without_a_rule(), method_cases.without_a_rule()
    assert set(oracle.KEPT) == set(tc.methods()), "a rule of a method that is gone"


def test_a_method_without_a_rule_is_named(planted) -> None:
    planted(0.5)
    assert "'planted' has no rule in tests/support/oracle.py" in method_cases.without_a_rule()


@pytest.mark.parametrize(("factor", "right"), [(0.5, True), (7, False), (0.6, False)])
def test_a_formula_that_is_not_the_rule_is_named(
    planted, factor: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = planted(factor)
    monkeypatch.setitem(oracle.KEPT, "planted", RULE)
    assert not method_cases.without_a_rule()
    if right:
        test_every_method.test_agrees_with_the_oracle_on_a_grid(method)
        return
    with pytest.raises(AssertionError, match="planted"):
        test_every_method.test_agrees_with_the_oracle_on_a_grid(method)


def test_the_campaign_finds_a_wrong_answer() -> None:
    """A gate a hundredth too wide, among random tensors of all sizes."""
    wide = tc.method("atr", delta=0.0707)
    batch = numerics.drawn(0)(wide)
    assert numerics.doubtful(wide, batch) == []
    plain = wide.to_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(wide), "to_dict", lambda _: plain | {"delta": 0.07})
        rows = numerics.doubtful(wide, batch)
        assert rows
        with pytest.raises(numerics.LostError, match="atr"):
            campaign = numerics.Numerics()
            for row in rows:
                part = method_cases.changed(batch, lambda v, r=row: v[r : r + 1])
                campaign._decide(wide, part)
