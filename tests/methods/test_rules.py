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

import trustclip as tc
from trustclip.constraints import base

#: A method as its author writes it: the mean of (1 - sqrt(w))^2 |A|^power over the sequence.
SOURCE = '''
    """Hellinger's distance of the ratio."""

    from trustclip.constraints import gates
    from trustclip.constraints.base import Method, Positive, Trait, definition
    from trustclip.constraints.batch import Surrogate, TokenBatch


    @definition
    class Planted(Method):
        r"""Planted: the mean of $(1 - \\sqrt w)^2 |A|^p$ is at most $\\delta$."""

        delta: Positive = 0.02
        power: Positive = 0.5

        @property
        def traits(self) -> Trait:
            return Trait.CUTS | Trait.SEES_OTHERS

        def surrogate(self, batch: TokenBatch) -> Surrogate:
            x, a = batch.log_ratio.detach(), batch.advantages
            distance = (1 - (0.5 * x).exp()) ** 2 * a.abs() ** self.power
            tokens = batch.mask.sum(dim=1, keepdim=True)
            mean = distance.sum(dim=1, keepdim=True) / tokens
            kept = gates.keeps_gradient(mean <= self.delta, x, a, "outward")
            return gates.hard(batch, kept)
'''
#: What can be wrong with it: a part of its text, and what stands there instead.
WRONG = {
    "another formula": ("0.5 * x", "0.52 * x"),
    "a number that is ignored": ("self.power", "0.5"),
    "a number in place of the field": ("self.delta", "0.02"),
    "the sign of the advantage": ("x, a,", "x, -a,"),
    "the direction of the gate": ("<=", ">="),
    "a mean over padding": ("batch.mask.sum(dim=1, keepdim=True)", "batch.mask.shape[1]"),
}


@oracle.gate
def rule(p: oracle.Params, t: oracle.Tokens) -> oracle.Array:
    distance = oracle.F["hellinger"](oracle.np.exp(t.x)) * abs(t.advantage) ** p["power"]
    return oracle.mean(distance) <= p["delta"]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Write ``methods/planted.py``, right or with something wrong in it."""

    def write(wrong: str | None = None) -> None:
        text = textwrap.dedent(SOURCE)
        if wrong is not None:
            assert WRONG[wrong][0] in text
            text = text.replace(*WRONG[wrong])
        (tmp_path / "planted.py").write_text(text)

    package = importlib.import_module("trustclip.methods")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(base, "_METHODS", [*base._METHODS, str(tmp_path)])
    base.methods.cache_clear()
    yield write
    monkeypatch.undo()
    sys.modules.pop("trustclip.methods.planted", None)
    base.methods.cache_clear()


def test_every_method_has_a_rule() -> None:
    assert not method_cases.without_a_rule(), method_cases.without_a_rule()
    assert set(oracle.KEPT) == set(tc.methods()), "a rule of a method that is gone"


def test_a_method_without_a_rule_is_named(planted) -> None:
    planted()
    assert "'planted' has no rule in tests/support/oracle.py" in method_cases.without_a_rule()


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_what_is_not_the_rule_is_named(
    planted, wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(wrong)
    monkeypatch.setitem(oracle.KEPT, "planted", rule)
    assert "'planted'" not in method_cases.without_a_rule()
    test_every_method.test_every_number_is_seen("planted")
    if wrong is None:
        test_every_method.test_agrees_with_the_oracle_whatever_its_numbers("planted")
        return
    with pytest.raises(AssertionError, match="planted"):
        test_every_method.test_agrees_with_the_oracle_whatever_its_numbers("planted")
