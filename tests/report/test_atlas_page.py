"""The page of sliders: its grids are the methods' own, and it works in a browser."""

import base64
import hashlib
import html
import random
import re
import zlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from browser import opened, wait

import trustclip as tc
from trustclip.report import atlas as atlas_page
from trustclip.report.weights import P_OLD, curve

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


@pytest.mark.parametrize("name", FEW)
def test_a_block_is_the_method_at_its_setting(name: str) -> None:
    one, draw = atlas_page.entry(name), random.Random(name)
    counts = [len(d.values) for d in one.dials]
    shape = (*counts, 2, len(one.probabilities), len(atlas_page.RATIOS))
    grid = np.frombuffer(zlib.decompress(one.grid), "<i4").reshape(shape)
    for _ in range(5):
        at = [draw.randrange(n) for n in counts]
        setting = {d.name: d.values[i] for d, i in zip(one.dials, at, strict=True)}
        try:
            method = tc.method(name, **setting)
        except ValueError:
            assert (grid[tuple(at)] == atlas_page.NEVER).all()
            continue
        p = draw.randrange(len(one.probabilities))
        for _ in range(6):
            r, sign = draw.randrange(len(atlas_page.RATIOS)), draw.randrange(2)
            a = torch.tensor([[1.0, -1.0][sign]], dtype=torch.float64).view(1, 1)
            old = torch.tensor([[one.probabilities[p]]], dtype=torch.float64).log()
            logp = old + atlas_page.RATIOS[r].log()
            batch = tc.TokenBatch(logp, old, a, torch.ones(1, 1) > 0)
            want = (tc.coefficient(method, batch) / a).item()
            assert grid[(*at, sign, p, r)] / atlas_page.SCALE == pytest.approx(want, abs=6e-4)


def unpacked(packed: bytes, *shape: int) -> np.ndarray:
    return np.frombuffer(zlib.decompress(packed), "<i4").reshape(shape)


@pytest.mark.parametrize("name", FEW)
def test_intervals_are_the_methods(name: str) -> None:
    one, draw = atlas_page.entry(name), random.Random(name)
    counts = [len(d.values) for d in one.dials]
    bounds = unpacked(one.bounds, *counts, len(one.probabilities), 2)
    for _ in range(5):
        at = [draw.randrange(n) for n in counts]
        setting = {d.name: d.values[i] for d, i in zip(one.dials, at, strict=True)}
        p = draw.randrange(len(one.probabilities))
        try:
            p_old = torch.tensor([one.probabilities[p]], dtype=torch.float64)
            want = [float(end) for end in tc.interval(tc.method(name, **setting), p_old)]
        except ValueError:
            assert (bounds[tuple(at)] == atlas_page.NONE).all()
            continue
        for got, end in zip(bounds[(*at, p)], want, strict=True):
            if got == atlas_page.INFINITE:
                assert end > 1000
            else:
                assert got / atlas_page.RATIO_SCALE == pytest.approx(end, abs=1e-6)


def test_a_gate_closes_at_one_ratio() -> None:
    one = atlas_page.entry("clip_higher")
    first = unpacked(one.jumps, -1, 4)
    start = np.ravel_multi_index([d.start for d in one.dials], [len(d.values) for d in one.dials])
    edges = {
        row - 2 * start: (ratio / atlas_page.RATIO_SCALE, before, after)
        for row, ratio, before, after in first.tolist()
        if row - 2 * start in (0, 1)
    }
    assert edges[0] == (pytest.approx(1.28, abs=5e-4), pytest.approx(1280, abs=1), 0)
    assert edges[1] == (pytest.approx(0.8, abs=5e-4), 0, pytest.approx(800, abs=1))


def test_what_bends_has_no_edge() -> None:
    assert len(zlib.decompress(atlas_page.entry("soft_gate").jumps)) == 0


def test_old_probabilities_are_drawn_where_they_matter() -> None:
    assert atlas_page.entry("atr").probabilities == (P_OLD,)
    assert atlas_page.entry("dppo").probabilities == atlas_page.PROBABILITIES


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


def test_only_its_own_script_may_run(text) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy and f"script-src 'sha256-{digest}';" in html.unescape(policy[1])
    assert "default-src 'none'" in policy[1] and "unsafe-eval" not in policy[1]
    assert not re.search(r"\son\w+=", text) and "innerHTML" not in script


def test_it_says_formula_and_source_without_a_script(text) -> None:
    words = re.findall(r"<article.*?</article>", text, re.S)
    assert len(words) == len(FEW)
    for name, article in zip(FEW, words, strict=True):
        assert f'data-name="{name}"' in article and "<math" in article and "arxiv.org" in article


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
    for dial in atlas_page.entry(name).dials:
        seen = set()
        for position in range(len(dial.values)):
            slide(page, dial.name, position)
            drawn = [page.get_attribute(f"#{curve}", "d") for curve in ("up", "down")]
            seen.add((*drawn, page.inner_text("#read")))
        slide(page, dial.name, dial.start)
        assert len(seen) > 1, dial.name
    by_p = len(atlas_page.entry(name).probabilities) > 1
    assert page.is_visible("#maps") == by_p


def test_what_is_read_off_is_the_methods_weight_and_interval(page) -> None:
    choose(page, "clip_higher")
    dial = atlas_page.dials("clip_higher")[1]
    slide(page, "high", len(dial.values) - 1)
    width = page.eval_on_selector("#plot", "e => e.clientWidth")
    page.hover("#plot", position={"x": width * 0.55, "y": 60})
    ratio = float(page.inner_text("#at"))
    method = tc.method("clip_higher", high=dial.values[-1])
    want = atlas_page.weights(method, torch.tensor([ratio]).double(), (P_OLD,)).flatten().tolist()
    got = [float(page.inner_text(f"#{name}")) for name in ("c0", "c1")]
    assert ratio > 1.28 and got == pytest.approx(want, abs=1e-3)
    assert f"[0.800000, {1 + dial.values[-1]:.6f}]" in page.inner_text("#read")
    assert f"high={dial.values[-1]}" in page.inner_text("article:not([hidden]) .call")
    page.focus("#cursor")
    page.keyboard.press("ArrowRight")
    assert float(page.inner_text("#at")) == pytest.approx(ratio + 0.025, abs=1e-4)


def test_a_gate_is_drawn_vertical(page) -> None:
    choose(page, "atr")
    path = page.get_attribute("#up", "d")
    points = [tuple(map(float, point.split())) for point in path[1:].split("L")]
    falls = [b[0] - a[0] for a, b in pairwise(points) if b[1] - a[1] > 50]
    assert falls == [0.0]


def test_methods_are_compared_in_one_picture(page) -> None:
    choose(page, "atr")
    page.click("[data-name='dual_clip'] .add")
    wait(page, "document.documentElement.dataset.shown === 'atr+dual_clip'")
    assert page.locator("#read tbody tr").count() == 2
    assert page.locator("#plot .curve").count() == 4 and page.locator("#plot .inside").count() == 2
    assert page.locator("article:not([hidden])").count() == 2
    slide(page, "ceiling", 5)
    assert re.fullmatch(r"#atr\+dual_clip:ceiling=\d\.?\d*", page.evaluate("location.hash"))
    page.click("[data-name='atr'] .add")
    wait(page, "document.documentElement.dataset.shown === 'dual_clip'")
    assert "ceiling=" in page.evaluate("location.hash")  # a dial keeps its place


def test_light_and_dark_and_a_phone(page) -> None:
    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    choose(page, "dppo")
    light = ground()
    page.click("#theme")
    assert ground() != light
    page.click("#theme")
    assert ground() == light
    page.set_viewport_size({"width": 390, "height": 844})
    wait(page, "document.getElementById('plot').viewBox.baseVal.width < 390")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1100, "height": 900})


def test_a_curve_on_paper_has_both_sides_of_a_jump() -> None:
    ratios, positive, _ = curve(tc.method("clip_higher"), points=35)
    steps = zip(ratios, ratios[1:], positive, positive[1:], strict=False)
    (fall,) = [right - left for left, right, before, after in steps if before - after > 0.5]
    assert fall < 0.005
