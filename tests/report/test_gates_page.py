"""The gate algebra of the pages, in a browser: gradients and gates as Python computes them."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from browser import opened
from method_cases import ALL, batch_for, label

import trustclip as tc
from trustclip.report.html import rendered, script_hash

#: They measure a batch or need candidates, which no file of tokens has.
LEFT_OUT = ("bapo", "clip_cov", "kl_cov", "m2po", "trpo", "centered", "troll")
FIELDS = (
    *("logp_rollout", "logp_average", "entropy", "entropy_old", "kl_old_new", "kl_new_old"),
    *("lag", "top_k_kl"),
)


def used(method: tc.Method) -> Iterator[str]:
    yield method.name
    for part in getattr(method, "parts", ()):
        yield from used(part)


METHODS = [m for m in ALL if not set(used(m)) & set(LEFT_OUT)]


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
    batch = batch_for(method, *(torch.from_numpy(v) for v in (new, old, a, mask)))
    if batch.logp_rollout is None:
        return batch
    rollout = batch.logp_rollout.clone()
    rollout[::2, 7] = torch.nan  # the sampler gave none
    return dataclasses.replace(batch, logp_rollout=rollout)


def completions(batch: tc.TokenBatch) -> list[dict[str, Any]]:
    """Rows of a batch as the pages hold them."""
    there = [name for name in (*FIELDS, "top_k_tv") if getattr(batch, name) is not None]
    return [
        {
            "n": batch.logp.shape[1],
            "x": (batch.logp - batch.logp_old)[i].tolist(),
            "old": batch.logp_old[i].tolist(),
            "a": batch.advantages[i].tolist(),
            "mask": batch.mask[i].tolist(),
            **{name: getattr(batch, name).detach()[i].tolist() for name in there},
        }
        for i in range(len(batch.logp))
    ]


def in_browser(tab: Any, method: tc.Method, batch: tc.TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and kept tokens of a batch, by the page's script. [rows, time] each."""
    given = json.loads(json.dumps([method.to_dict(), completions(batch)]))
    found = tab.evaluate(
        "([p, rows]) => rows.map(t => [[...gates.coefficient(p, t)], [...gates.kept(p, t)]])",
        given,
    )
    return np.array([row[0] for row in found]), np.array([row[1] for row in found]) > 0


@pytest.mark.parametrize("method", METHODS, ids=label)
def test_gradient_and_gate_are_those_of_python(tab, method: tc.Method) -> None:
    batch = random_rows(method)
    c, kept = in_browser(tab, method, batch)
    want = tc.coefficient(method, batch)
    np.testing.assert_allclose(c, want.numpy(), rtol=1e-6, atol=1e-6)
    surrogate = method.surrogate(batch)
    np.testing.assert_array_equal(kept, (surrogate.kept & batch.mask).numpy())
    assert c.any()


def test_every_method_has_a_rule(tab) -> None:
    missing = set(tc.methods()) - set(tab.evaluate("gates.names"))
    assert not missing, (
        f"no rule in report/templates/gates.js.j2 for {', '.join(sorted(missing))}: add it to KEPT "
        "there, and to COEFFICIENT or GRADIENT where its weight is not the ratio of a kept token"
    )


@pytest.mark.parametrize(
    "method", [m for m in ALL if m.name in ("m2po", "bapo", "trpo")], ids=label
)
def test_a_completion_stands_for_the_batch_that_a_method_measures(tab, method: tc.Method) -> None:
    batch = random_rows(method)
    for i in range(len(batch.logp)):
        held = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
        rows = {name: v[i : i + 1] for name, v in held.items() if torch.is_tensor(v)}
        row = dataclasses.replace(batch, **rows)
        c, _ = in_browser(tab, method, row)
        np.testing.assert_allclose(c, tc.coefficient(method, row).numpy(), rtol=1e-6, atol=1e-6)


def test_what_is_not_finite_is_shown_as_that(tab) -> None:
    nan = torch.tensor([[-1.0, torch.nan, -1.2]], dtype=torch.float64)
    old = torch.full_like(nan, -1.1)
    batch = tc.TokenBatch(nan, old, torch.ones_like(nan), torch.ones_like(nan) > 0)
    row = {"n": 3, "old": [-1.1] * 3, "a": [1.0] * 3}
    found = tab.evaluate(
        "([p, t]) => { const x = [0.1, NaN, -0.1]; return [...gates.coefficient(p, {...t, x})]; }",
        [tc.method("clip").to_dict(), row],
    )
    np.testing.assert_allclose(found, tc.coefficient("clip", batch)[0].numpy())
