"""The atlas of gates: what it draws are the methods' own numbers, and it works in a browser."""

import json
import re

import numpy as np
import pytest
import torch
from browser import opened, wait

import trustclip as tc
from trustclip.report.weights import P_OLD, curve, weights
from trustclip_lab.pages import atlas as atlas_page

FEW = ("atr", "clip_higher", "dppo", "dual_clip", "spo")


@pytest.fixture(scope="module")
def text():
    """The page of a few methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas_page, "methods", lambda: {n: tc.methods()[n] for n in FEW})
        return atlas_page.atlas_page()


@pytest.fixture(scope="module")
def page(text, tmp_path_factory):
    """The page open in a browser, which fails for any complaint of its policy."""
    path = tmp_path_factory.mktemp("atlas") / "atlas.html"
    path.write_text(text, encoding="utf-8")
    with opened(path, color_scheme="light", viewport={"width": 1100, "height": 900}) as tab:
        wait(tab, "document.documentElement.dataset.shown === 'atr'")
        yield tab


@pytest.mark.parametrize(
    ("name", "at", "p"),
    [
        ("atr", {"delta": 0.14, "side": "strict"}, 5),
        ("clip_higher", {"low": 0.4, "high": 0.07}, 0),
        ("dppo", {}, 9),
        ("dual_clip", {}, 5),
        ("spo", {}, 5),
    ],
)
def test_what_is_drawn_are_the_methods_weights_and_interval(page, name, at, p) -> None:
    dials = atlas_page.entry(name)["dials"]
    places = [d["values"].index(at.get(d["name"], d["values"][d["start"]])) for d in dials]
    one = json.dumps({"name": name, "at": places, "p": p})
    chosen, p_old = tc.method(name, **at), atlas_page.PROBABILITIES[p]
    want = weights(chosen, torch.tensor(atlas_page.RATIOS).double(), (p_old,))[:, 0].numpy()
    # A curve of numbers is interpolated, and rounded to four digits.
    np.testing.assert_allclose(page.evaluate(f"[0, 1].map(s => row({one}, s))"), want, atol=1e-3)
    ends, found = page.evaluate(f"interval({one})"), atlas_page._interval(chosen, p_old)
    assert ends == (found if isinstance(found, str) else pytest.approx(found, rel=1e-6))


def choose(page, *names: str) -> None:
    shown = "+".join(names)
    page.evaluate(f"location.hash = '#{shown}'")
    wait(page, f"document.documentElement.dataset.shown === '{shown}'")


def slide(page, name: str, position: int) -> None:
    page.eval_on_selector(
        f"#dials [name='{name}']",
        f"e => {{ e.value = {position}; e.dispatchEvent(new Event('input')); }}",
    )


def test_old_probabilities_are_drawn_where_they_matter(page) -> None:
    for name, matters in (("atr", False), ("dual_clip", False), ("dppo", True)):
        choose(page, name)
        assert page.is_visible("#maps") == matters
        assert bool(page.query_selector("[name='old probability of the token']")) == matters


def test_what_is_read_off_is_the_methods_weight_and_interval(page) -> None:
    choose(page, "clip_higher")
    values = atlas_page.entry("clip_higher")["dials"][1]["values"]
    slide(page, "high", values.index(1.12))
    width = page.eval_on_selector("#plot", "e => e.clientWidth")
    page.hover("#plot", position={"x": width * 0.55, "y": 60})
    ratio = float(page.inner_text("#at"))
    method = tc.method("clip_higher", high=1.12)
    want = weights(method, torch.tensor([ratio]).double(), (P_OLD,)).flatten().tolist()
    got = [float(page.inner_text(f"#{name}")) for name in ("c0", "c1")]
    assert ratio > 1.28 and got == pytest.approx(want, abs=1e-3)
    assert "[0.800000, 2.120000]" in page.inner_text("#read")
    assert "high=1.12" in page.inner_text("article:not([hidden]) .call")
    page.focus("#cursor")
    page.keyboard.press("ArrowRight")
    assert float(page.inner_text("#at")) == pytest.approx(ratio + 0.025, abs=1e-4)


def test_methods_are_compared_in_one_picture(page) -> None:
    choose(page, "dual_clip")
    page.click("[data-name='atr'] .add")
    wait(page, "document.documentElement.dataset.shown === 'dual_clip+atr'")
    assert page.locator("#read tbody tr").count() == 2
    assert page.locator("#plot .curve").count() == 4 and page.locator("#plot .inside").count() == 2
    assert page.locator("article:not([hidden])").count() == 2
    slide(page, "delta", 12)
    assert re.fullmatch(r"#dual_clip\+atr:delta=\d+\.?\d*", page.evaluate("location.hash"))
    page.click("[data-name='dual_clip'] .add")
    wait(page, "document.documentElement.dataset.shown === 'atr'")
    assert "delta=" in page.evaluate("location.hash")  # a dial keeps its place


def test_a_curve_on_paper_has_both_sides_of_a_jump() -> None:
    ratios, positive, _ = curve(tc.method("clip_higher"), points=35)
    steps = zip(ratios, ratios[1:], positive, positive[1:], strict=False)
    (fall,) = [right - left for left, right, before, after in steps if before - after > 0.5]
    assert fall < 0.005
