"""The page of sliders: its numbers are the methods' own, and it works in a browser."""

import base64
import hashlib
import html
import json
import random
import re

import numpy as np
import pytest
import torch
from browser import opened, wait

import trustclip as tc
from trustclip.report.weights import P_OLD, curve, weights
from trustclip_lab.pages import atlas as atlas_page

FEW = ("atr", "clip_higher", "dppo", "dual_clip", "spo")


def test_every_hyper_parameter_that_matters_has_a_dial() -> None:
    assert [d.name for d in atlas_page.dials("dual_clip")] == ["low", "high", "ceiling"]
    assert [d.name for d in atlas_page.dials("atr")] == ["delta", "side"]  # of a lone token
    delta = atlas_page.dials("dppo")[-1]
    assert delta.values[delta.start] is None and 0.15 in delta.values
    for name in FEW:
        for dial in atlas_page.dials(name):
            default = getattr(tc.method(name), dial.name)
            assert dial.values[dial.start] == default
            assert len(set(dial.values)) == len(dial.values) > 1


@pytest.fixture(scope="module")
def text():
    """The page of a few methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas_page, "methods", lambda: {n: tc.methods()[n] for n in FEW})
        return atlas_page.atlas_page()


def shown(text, folder):
    """The page open in a browser, which fails for any complaint of its policy."""
    path = folder / "atlas.html"
    path.write_text(text, encoding="utf-8")
    with opened(path, color_scheme="light", viewport={"width": 1100, "height": 900}) as tab:
        wait(tab, "document.documentElement.dataset.shown === 'atr'")
        yield tab


@pytest.fixture(scope="module")
def page(text, tmp_path_factory):
    yield from shown(text, tmp_path_factory.mktemp("atlas"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of every method."""
    yield from shown(atlas_page.atlas_page(), tmp_path_factory.mktemp("atlas"))


def settings(name: str) -> list[tuple[str, dict[str, object], int]]:
    """Positions of the dials of a method as the page has them: its defaults and five others; what
    they set, and the number of an old probability."""
    every, draw = atlas_page.dials(name), random.Random(name)
    at = [[d.start for d in every]]
    at += [[draw.randrange(len(d.values)) for d in every] for _ in range(5)]
    return [
        (
            json.dumps({"name": name, "at": places, "p": p, "rows": {}}),
            {d.name: d.values[i] for d, i in zip(every, places, strict=True)},
            p,
        )
        for places, p in zip(at, (5, 0, 2, 4, 7, 9), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", tc.methods())
def test_weights_are_the_methods(whole, name: str) -> None:
    for one, setting, p in settings(name):
        got = whole.evaluate(f"[0, 1].map(sign => row({one}, sign))")
        try:
            method = tc.method(name, **setting)
        except ValueError:
            assert got == [None, None]
            continue
        want = weights(method, atlas_page.RATIOS, (atlas_page.PROBABILITIES[p],))[:, 0]
        np.testing.assert_allclose(np.array(got), want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", tc.methods())
def test_intervals_are_the_methods(whole, name: str) -> None:
    for one, setting, p in settings(name):
        got = whole.evaluate(f"interval({one})")
        p_old = torch.tensor([atlas_page.PROBABILITIES[p]], dtype=torch.float64)
        try:
            ends = tc.interval(tc.method(name, **setting), p_old)
        except ValueError:
            assert got is None or not whole.evaluate(f"fits({one})")
            continue
        for mine, end in zip(got, map(float, ends), strict=True):
            assert mine == pytest.approx(end, rel=1e-6, abs=1e-9) or (mine > 1e30 and end > 1e30)


def test_only_its_own_script_may_run(text) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert policy and f"script-src {allowed};" in html.unescape(policy[1])
    assert "default-src 'none'" in policy[1] and "unsafe-eval" not in policy[1]
    assert not re.search(r"\son\w+=", text) and not any("innerHTML" in s for s in scripts)


def choose(page, *names: str) -> None:
    shown = "+".join(names)
    page.evaluate(f"location.hash = '#{shown}'")
    wait(page, f"document.documentElement.dataset.shown === '{shown}'")


def slide(page, name: str, position: int) -> None:
    page.eval_on_selector(
        f"#dials [name='{name}']",
        f"e => {{ e.value = {position}; e.dispatchEvent(new Event('input')); }}",
    )


@pytest.mark.parametrize("name", FEW)
def test_every_method_is_drawn_and_every_dial_moves_something(page, name: str) -> None:
    choose(page, name)
    for dial in atlas_page.dials(name):
        seen = set()
        for position in range(len(dial.values)):
            slide(page, dial.name, position)
            drawn = [page.get_attribute(f"#{curve}", "d") for curve in ("up", "down")]
            seen.add((*drawn, page.inner_text("#read")))
        slide(page, dial.name, dial.start)
        assert len(seen) > 1, dial.name
    assert page.is_visible("#maps") == page.evaluate("varies(shown[0])")


def test_what_is_read_off_is_the_methods_weight_and_interval(page) -> None:
    choose(page, "clip_higher")
    dial = atlas_page.dials("clip_higher")[1]
    slide(page, "high", len(dial.values) - 1)
    width = page.eval_on_selector("#plot", "e => e.clientWidth")
    page.hover("#plot", position={"x": width * 0.55, "y": 60})
    ratio = float(page.inner_text("#at"))
    method = tc.method("clip_higher", high=dial.values[-1])
    want = weights(method, torch.tensor([ratio]).double(), (P_OLD,)).flatten().tolist()
    got = [float(page.inner_text(f"#{name}")) for name in ("c0", "c1")]
    assert ratio > 1.28 and got == pytest.approx(want, abs=1e-3)
    assert f"[0.800000, {1 + dial.values[-1]:.6f}]" in page.inner_text("#read")
    assert f"high={dial.values[-1]}" in page.inner_text("article:not([hidden]) .call")
    page.focus("#cursor")
    page.keyboard.press("ArrowRight")
    assert float(page.inner_text("#at")) == pytest.approx(ratio + 0.025, abs=1e-4)


def test_methods_are_compared_in_one_picture(page) -> None:
    choose(page, "atr")
    page.click("[data-name='dual_clip'] .add")
    wait(page, "document.documentElement.dataset.shown === 'atr+dual_clip'")
    assert page.locator("#read tbody tr").count() == 2
    assert page.locator("#plot .curve").count() == 4 and page.locator("#plot .inside").count() == 2
    assert page.locator("article:not([hidden])").count() == 2
    slide(page, "ceiling", 12)
    assert re.fullmatch(r"#atr\+dual_clip:ceiling=\d+\.?\d*", page.evaluate("location.hash"))
    page.click("[data-name='atr'] .add")
    wait(page, "document.documentElement.dataset.shown === 'dual_clip'")
    assert "ceiling=" in page.evaluate("location.hash")  # a dial keeps its place


def test_a_curve_on_paper_has_both_sides_of_a_jump() -> None:
    ratios, positive, _ = curve(tc.method("clip_higher"), points=35)
    steps = zip(ratios, ratios[1:], positive, positive[1:], strict=False)
    (fall,) = [right - left for left, right, before, after in steps if before - after > 0.5]
    assert fall < 0.005


def test_the_atlas_says_at_once_what_it_does(tmp_path, monkeypatch, capsys):
    from trustclip_lab.cli.laboratory import atlas

    def page():
        assert capsys.readouterr().out.startswith("atlas: every method at every setting")
        return "page"

    monkeypatch.setattr(atlas_page, "atlas_page", page)
    assert atlas(["-o", str(tmp_path / "atlas.html")]) == 0
