"""f-divergences: textbook sums, bounds by other means, one's own function, and the method."""

import functools
import math
import typing
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.fdivergences import (
    NAMED,
    Divergence,
    alpha_divergence,
    from_function,
)

DOUBLE = torch.float64
ALPHAS = (-1.5, 0.0, 0.3, 0.5, 0.999999, 1.0, 1.3, 2.0, 3.0)
EVERY: dict[str, Divergence] = {**NAMED, **{f"alpha={a}": alpha_divergence(a) for a in ALPHAS}}
every_divergence = pytest.mark.parametrize("divergence", EVERY.values(), ids=EVERY)


def policies(seed: int, tokens: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, tokens, dtype=DOUBLE, generator=generator)
    return logits[0].log_softmax(-1), logits[1].log_softmax(-1)


# The exact divergence --------------------------------------------------------------------------


def kl(a: list[float], b: list[float]) -> float:
    return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True))


def jensen_shannon(a: list[float], b: list[float]) -> float:
    middle = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    return (kl(a, middle) + kl(b, middle)) / 2


def renyi_sum(a: list[float], b: list[float], alpha: float) -> float:
    return math.fsum(y**alpha * x ** (1 - alpha) for x, y in zip(a, b, strict=True))


TEXTBOOK: dict[str, Callable[[list[float], list[float]], float]] = {
    "kl_old_new": kl,
    "kl_new_old": lambda old, new: kl(new, old),
    "chi2": lambda old, new: renyi_sum(old, new, 2) - 1,
    "hellinger": lambda old, new: 2 - 2 * renyi_sum(old, new, 0.5),
    "js": jensen_shannon,
    "alpha=2.0": lambda old, new: (renyi_sum(old, new, 2) - 1) / 2,
    "alpha=-1.5": lambda old, new: (renyi_sum(old, new, -1.5) - 1) / 3.75,
    "alpha=0.3": lambda old, new: (renyi_sum(old, new, 0.3) - 1) / (0.3 * -0.7),
    "alpha=1.3": lambda old, new: (renyi_sum(old, new, 1.3) - 1) / (1.3 * 0.3),
    "alpha=0.999999": lambda old, new: kl(new, old),
}


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.parametrize("seed", range(5))
def test_the_exact_divergence_is_the_textbook_sum(name: str, seed: int) -> None:
    old, new = policies(seed)
    want = TEXTBOOK[name](old.exp().tolist(), new.exp().tolist())
    got = EVERY[name].categorical(old, new).item()
    assert got == pytest.approx(want, rel=1e-5 if name == "alpha=0.999999" else 1e-12)


@every_divergence
def test_the_bernoulli_form_is_never_above_the_exact_one(divergence: Divergence) -> None:
    for seed in range(20):
        old, new = policies(seed)
        exact = divergence.categorical(old, new)
        assert (divergence.bernoulli(old, new) <= exact * (1 + 1e-12)).all()


@every_divergence
def test_a_token_is_never_negative_and_nothing_at_ratio_one(divergence: Divergence) -> None:
    x = torch.linspace(-60, 30, 1001, dtype=DOUBLE)
    values = divergence.token(x)
    assert (values >= 0).all()
    assert divergence.token(torch.zeros(1, dtype=DOUBLE)).item() == 0
    assert (values[x < 0].diff() <= 1e-15).all(), "f falls towards ratio 1 from below"
    assert (values[x > 0].diff() >= 0).all()
    tiny = torch.tensor([1e-6, -1e-6], dtype=DOUBLE)
    curvature = {"chi2": 2.0, "hellinger": 0.5, "js": 0.25}.get(divergence.name, 1.0)
    want = torch.full_like(tiny, curvature / 2 * 1e-12)
    torch.testing.assert_close(divergence.token(tiny), want, rtol=1e-4, atol=0)


def test_a_token_that_both_policies_exclude_changes_nothing_and_a_new_one_is_refused() -> None:
    old, new = policies(0)
    never = torch.tensor([-math.inf], dtype=DOUBLE)
    for divergence in NAMED.values():
        longer = divergence.categorical(torch.cat([old, never]), torch.cat([new, never]))
        assert longer == divergence.categorical(old, new)
    with pytest.raises(ValueError, match="logp_old"):
        NAMED["js"].categorical(never, 0 * never.exp())


# Bounds ----------------------------------------------------------------------------------------


def exact_generator(name: str) -> Callable[[Decimal], Decimal]:
    """f of the ratio, in the precision of the context."""
    if name.startswith("alpha="):
        a = Decimal(name.removeprefix("alpha="))
        return lambda w: ((a * w.ln()).exp() - a * w + a - 1) / (a * (a - 1))
    return {
        "kl_old_new": lambda w: w - 1 - w.ln(),
        "kl_new_old": lambda w: 1 - w + w * w.ln(),
        "chi2": lambda w: (w - 1) ** 2,
        "hellinger": lambda w: (w.sqrt() - 1) ** 2,
        "js": lambda w: (w * w.ln() - (1 + w) * ((1 + w) / 2).ln()) / 2,
    }[name]


@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("alpha=0.0", "alpha=1.0")])
def test_bounds_keep_twelve_digits_from_tiny_thresholds_to_huge_ones(name: str) -> None:
    """Moved by 1e-12 of itself, a bound is inside on one side and outside on the other."""
    f = exact_generator(name)
    logp = torch.tensor([[1e-6], [0.3], [0.99]], dtype=DOUBLE).log()
    with localcontext(prec=50):

        def bernoulli(logp: Decimal, x: Decimal) -> Decimal:
            p, w = logp.exp(), x.exp()
            if p * w >= 1:
                return Decimal("inf")
            return p * f(w) + (1 - p) * f((1 - p * w) / (1 - p))

        deltas = (1e-14, 3e-11, 1e-8, 1e-3, 0.07, 0.9, 20.0, 700.0)
        each: typing.Any = torch.tensor(deltas, dtype=DOUBLE)  # one bisection for all
        ends = EVERY[name].log_bernoulli_interval(logp.expand(3, len(deltas)), each)
        for delta, found in zip(deltas, torch.stack(ends, dim=2).unbind(1), strict=True):
            cases = [(lambda x: f(x.exp()), x) for x in EVERY[name].log_interval(delta)]
            for (old,), row in zip(logp.tolist(), found.tolist(), strict=True):
                reachable = [x for x in row if -700 < x < -old]
                exact = functools.partial(bernoulli, Decimal(old))
                cases += [(exact, x) for x in reachable]
            for divergence, x in cases:
                if math.isinf(x):
                    continue
                e = Decimal(x) * Decimal("1e-12")
                assert divergence(Decimal(x) - e) <= delta <= divergence(Decimal(x) + e), (delta, x)


@every_divergence
def test_bernoulli_bounds_widen_as_the_token_gets_rarer(divergence: Divergence) -> None:
    logp = torch.tensor([1e-4, 1e-2, 0.1, 0.3, 0.5], dtype=DOUBLE).log()
    low, high = divergence.log_bernoulli_interval(logp, 0.03)
    assert (low.exp().diff() >= 0).all() and (high.diff() < 0).all()


# One's own function ----------------------------------------------------------------------------


def test_a_function_of_ones_own_equals_the_named_one_whatever_is_added() -> None:
    plain = from_function(lambda t: t * t.log() + 3 * (t - 1))
    x = torch.linspace(-3, 3, 101, dtype=DOUBLE)
    torch.testing.assert_close(plain.token(x), NAMED["kl_new_old"].token(x), rtol=1e-9, atol=1e-14)
    want = NAMED["kl_new_old"].log_interval(0.07)
    assert plain.log_interval(0.07) == pytest.approx(want, abs=1e-12)
    assert plain.token(x.float()).dtype == torch.float32


def test_a_function_with_a_kink_and_one_that_ends() -> None:
    tv = from_function(lambda t: 0.5 * (t - 1).abs())
    assert [math.exp(b) for b in tv.log_interval(0.1)] == pytest.approx([0.8, 1.2], abs=1e-12)
    rising_only = from_function(lambda t: (t - 1).clamp(min=0).square())
    low, high = rising_only.log_interval(0.04)
    assert low == -math.inf and math.exp(high) == pytest.approx(1.2, abs=1e-12)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda t: t * (t - 1 - t.log()), "not convex: its slope falls at ratio"),
        (lambda t: -(t - 1).square(), "not convex"),
        (lambda t: t.square(), "0 at ratio 1"),
        (lambda t: 2 * (t - 1), "linear"),
        (lambda t: t.no_such_function(), "torch function"),
        (lambda t: "text", "torch function"),
        (lambda t: t.detach() - 1, "torch function"),
        (lambda t: (t - 1).square().sum(), "ratio"),
    ],
)
def test_what_is_no_f_is_refused(function: typing.Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)mine.*{why}"):
        from_function(function, "mine")


OWN = """
def le_cam(t):
    return 0.5 * (t - 1).square() / (t + 1)

def concave(t):
    return t.log()

constant = 3
"""


@pytest.fixture
def own_module(tmp_path: typing.Any, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "f_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "f_of_mine"


def test_the_method_takes_a_function_by_its_place(own_module: str) -> None:
    method = tc.method("f_divergence", divergence=f"{own_module}:le_cam", delta=0.01)
    w = math.exp(method.log_interval()[1])  # type: ignore[arg-type]
    assert 0.5 * (w - 1) ** 2 / (w + 1) == pytest.approx(0.01, rel=1e-11)
    assert tc.method(**method.to_dict()) == method
    for wrong in ("concave", "constant", "missing"):
        with pytest.raises(ValueError, match=wrong):
            tc.method("f_divergence", divergence=f"{own_module}:{wrong}")


def test_choices_that_make_no_divergence() -> None:
    for parameters, message in [
        ({"divergence": "kl_oldnew"}, "did you mean 'kl_old_new'"),
        ({"divergence": "alpha"}, "alpha"),
        ({"alpha": 0.5}, "alpha"),
        ({"divergence": "no_such_package.x:f"}, "no_such_package"),
    ]:
        with pytest.raises(ValueError, match=message):
            tc.method("f_divergence", **parameters)


# The method ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_the_gate_of_the_bernoulli_form_closes_at_its_bounds(name: str) -> None:
    method = tc.method("f_divergence", divergence=name, bounds="bernoulli", side="strict")
    p = torch.rand(400, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)) ** 3
    x = torch.linspace(-2, 2, 400, dtype=DOUBLE)[:, None].clamp(max=-p.log() - 1e-9)
    low, high = (b.log() for b in tc.interval(method, p_old=p))  # type: ignore[union-attr]
    ones = torch.ones_like(x)
    batch = tc.TokenBatch(p.log() + x, p.log(), ones, ones.bool())
    want = (low <= x) & (x <= high)
    assert torch.equal(method.surrogate(batch).kept, want)
    assert 0.1 < want.double().mean() < 0.95
