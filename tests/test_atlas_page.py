"""The page of sliders: its grids are the methods' own, and it works in a browser."""

import random
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import trustclip as tc
from trustclip.report import atlas as atlas_page
from trustclip.report.weights import P_OLD

CHROMIUM = Path("/usr/bin/chromium")
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


def test_old_probabilities_are_drawn_where_they_matter() -> None:
    assert atlas_page.entry("atr").probabilities == (P_OLD,)
    assert atlas_page.entry("dppo").probabilities == atlas_page.PROBABILITIES


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a few methods, open in a browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    path = tmp_path_factory.mktemp("atlas") / "atlas.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas_page, "methods", lambda: {n: tc.methods()[n] for n in FEW})
        path.write_text(atlas_page.atlas_page(), encoding="utf-8")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        shown = browser.new_page(color_scheme="light")
        shown.errors, shown.asked = [], []
        shown.on("pageerror", lambda error: shown.errors.append(str(error)))
        shown.on("request", lambda request: shown.asked.append(request.url))
        shown.goto(path.as_uri())
        shown.wait_for_selector("#up[d]")
        yield shown
        browser.close()


def choose(page, name: str) -> None:
    page.evaluate(f"location.hash = '#{name}'")
    page.wait_for_function(f"document.getElementById('name').textContent === '{name}'")


def slide(page, name: str, position: int) -> None:
    page.eval_on_selector(
        f"input[name='{name}']",
        f"e => {{ e.value = {position}; e.dispatchEvent(new Event('input')); }}",
    )


@pytest.mark.parametrize("name", FEW)
def test_every_method_is_drawn_and_every_slider_moves_something(page, name: str) -> None:
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
    assert page.errors == []


def test_what_is_read_off_is_the_methods_weight(page) -> None:
    choose(page, "clip_higher")
    dial = atlas_page.dials("clip_higher")[1]
    slide(page, "high", len(dial.values) - 1)
    page.hover(
        "#plot",
        position={"x": page.eval_on_selector("#plot", "e => e.clientWidth") * 0.55, "y": 60},
    )
    ratio = float(page.inner_text("#read b"))
    method = tc.method("clip_higher", high=dial.values[-1])
    want = atlas_page.weights(method, torch.tensor([ratio]).double(), (P_OLD,)).flatten().tolist()
    got = [float(page.inner_text(f"#{name}")) for name in ("c0", "c1")]
    assert ratio > 1.28 and got == pytest.approx(want, abs=1e-3)


def test_light_and_dark_and_no_network(page) -> None:
    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    choose(page, "dppo")
    light = ground()
    page.click("#theme")
    assert ground() != light
    page.click("#theme")
    assert ground() == light
    assert all(url.startswith(("file:", "blob:", "data:")) for url in page.asked)
