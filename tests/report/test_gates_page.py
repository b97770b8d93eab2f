"""What the pages compute of a method, in a browser, against the gradients and gates of Python."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from browser import opened
from method_cases import batch_for, drawn, label
from wrong_methods import Right

import trustclip as tc
from trustclip.report import gates
from trustclip.report.html import rendered, script_hash
from trustclip.report.microscope import applicable_methods


def looked_through() -> list[tc.Method]:
    """Each method of the pages as it is, and an interval with what can be moved of it."""
    found: list[tc.Method] = [Right()]
    for name, offer in applicable_methods().items():
        method = tc.method(name)
        choices = [d for d in offer["dials"] if d["kind"] == "choice"]
        given = [{d["path"]: value} for d in choices for value in d["values"]]
        found += [method, *(tc.method(name, **one) for one in given)]
        numbers = [d["path"] for d in offer["dials"] if d["kind"] == "number"]
        if numbers:
            moved = drawn(name, type(method))[0]
            found.append(tc.method(name, **{k: getattr(moved, k) for k in numbers}))
    return list(dict.fromkeys(found))


def named(method: tc.Method) -> str:
    return "one's own" if isinstance(method, Right) else label(method)


@pytest.fixture(scope="module")
def tab(tmp_path_factory) -> Iterator[Any]:
    (script,) = rendered("gates.js.j2")
    page = tmp_path_factory.mktemp("gates") / "gates.html"
    page.write_text(
        '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; img-src data:; script-src {script_hash(script)}\">"
        f"<script>{script}</script>",
        encoding="utf-8",
    )
    with opened(page) as tab:
        yield tab


def random_rows(method: tc.Method) -> tc.TokenBatch:
    """Completions with holes, likely and rare tokens, small moves and large ones."""
    random = np.random.default_rng(3)
    shape = (12, 40)
    old = -random.exponential(size=shape) * np.array([[0.01], [1.0], [4.0]] * 4)
    x = random.normal(size=shape) * np.array([[0.05], [0.3], [1.0]] * 4)
    new = np.minimum(old + x, -1e-9)
    mask = random.random(shape) < 0.9
    a = np.repeat(random.choice([-2.0, -0.5, 0.0, 0.7, 1.5], size=(12, 1)), 40, axis=1)
    a[5] = random.normal(size=40)
    # One lone token, which its sampler scored alike: what asks for every token of a sequence.
    a[3], mask[3] = 1.5, np.arange(40) == 37
    return batch_for(method, *(torch.from_numpy(v) for v in (new, old, a, mask)))


def completions(batch: tc.TokenBatch) -> list[dict[str, Any]]:
    """Rows of a batch as the pages hold them."""
    return [
        {
            "n": batch.logp.shape[1],
            "x": (batch.logp - batch.logp_old)[i].tolist(),
            "old": batch.logp_old[i].tolist(),
            "a": batch.advantages[i].tolist(),
            "mask": batch.mask[i].tolist(),
        }
        for i in range(len(batch.logp))
    ]


def in_browser(tab: Any, method: tc.Method, batch: tc.TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and kept tokens of a batch, by the page's script. [rows, time] each."""
    usual = applicable_methods().get(method.name) or {"curve": gates.curve(method)}
    given = json.loads(json.dumps([usual, method.to_dict(), completions(batch)]))
    found = tab.evaluate(
        "([m, p, rows]) => rows.map(t => [[...gates.coefficient(m, p, t)], "
        "[...gates.kept(m, p, t)]])",
        given,
    )
    return np.array([row[0] for row in found]), np.array([row[1] for row in found]) > 0


@pytest.mark.parametrize("method", looked_through(), ids=named)
def test_gradient_and_gate_are_those_of_python(tab, method: tc.Method) -> None:
    batch = random_rows(method)
    c, kept = in_browser(tab, method, batch)
    want, surrogate = tc.coefficient(method, batch).numpy(), method.surrogate(batch)
    same = kept == (surrogate.kept & batch.mask).numpy()
    # Numbers are interpolated between those that Python was asked for.
    near = np.isclose(c[same], want[same], rtol=1e-3, atol=1e-6)
    assert same.mean() > 0.995 and near.mean() > 0.98
    assert c.any()


def test_what_is_not_finite_is_shown_as_that(tab) -> None:
    row = {"n": 3, "old": [-1.1] * 3, "a": [1.0] * 3}
    for name in ("clip", "dppo"):
        offer = applicable_methods()[name]
        found = tab.evaluate(
            "([m, t]) => { const x = [0.1, NaN, -0.1]; "
            "return [...gates.coefficient(m, m.spec, {...t, x})]; }",
            [offer, row],
        )
        np.testing.assert_allclose(found, np.exp([0.1, np.nan, -0.1]), rtol=1e-6)
