"""The two references agree: one in plain Python floats, the other for many sequences at once."""

import batched_oracle
import method_cases
import numpy as np
import pytest
import test_every_method
import wider_oracle
from faults import numerics
from method_cases import label

import trustclip as tc

#: Tensors of each variant that both are asked about.
ROWS = 40


@pytest.fixture(scope="module")
def batch():
    return numerics.drawn(1_000_000, ROWS)


@pytest.mark.parametrize("method", numerics.KNOWN, ids=label)
def test_the_batched_reference_is_the_plain_one(method: tc.Method, batch) -> None:
    name, params, given = method.name, method.to_dict(), batch(method)
    tokens = numerics.as_arrays(given)
    with np.errstate(all="ignore"):
        kept = batched_oracle.kept(name, params, tokens)
        gradient = batched_oracle.gradient(name, params, tokens)
    plain = test_every_method.tokens_of(given)
    sure = 0
    for row in range(ROWS):
        want = wider_oracle.kept(name, params, plain[row])
        moved = (test_every_method.moved(plain[row], by) for by in (-1e-9, 1e-9))
        if any(wider_oracle.kept(name, params, other) != want for other in moved):
            continue  # a rounding decides
        sure += 1
        assert kept[row].tolist() == want
        size = max(1.0, *np.exp(tokens.x[row])) * max(1.0, *abs(tokens.advantage[row]))
        exact = wider_oracle.gradient(name, params, plain[row])
        assert gradient[row].tolist() == pytest.approx(exact, rel=1e-10, abs=1e-10 * size)
    assert sure > ROWS / 2


def test_a_wrong_answer_is_found() -> None:
    """The campaign sees a gate a hundredth too wide, and the plain reference confirms it."""
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
