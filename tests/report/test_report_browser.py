"""The report in a real browser: drawn, filtered, switched, and deaf to what completions say."""

import pytest
from browser import opened
from synthetic_runs import Spec, make_suite

from trustclip.report.page import build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    methods = {
        "clip": Spec({"name": "clip", "epsilon": 0.2}, gain=0.1, gated=0.03),
        "atr": Spec({"name": "atr", "delta": 0.07}, gain=2.5),
    }
    suite = make_suite(folder / "suite", methods, reference="atr")
    return build([suite], folder / "out")[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_have_the_colours_of_the_page(page, scheme):
    with opened(page, color_scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        assert tab.locator("svg.chart").count() >= 12
        colours = """["body", ".chart text"].map((name, i) =>
            getComputedStyle(document.querySelector(name))[i ? "fill" : "backgroundColor"])"""
        ground, text = (
            sum(int(part) for part in colour[4:-1].split(",")[:3]) / 3
            for colour in tab.evaluate(colours)
        )
        assert ground > 200 > 120 > text if scheme == "light" else ground < 60 < 120 < text


def test_nothing_is_wider_than_a_phone(page):
    with opened(page, viewport={"width": 390, "height": 800}) as tab:
        wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0


def test_a_click_on_a_method_hides_its_curves(page):
    with opened(page) as tab:
        drawn = tab.locator('#figure-figure2 .chart [data-group="0"] path')
        assert drawn.count() and drawn.nth(0).is_visible()
        key = tab.locator('.key[data-group="0"]')
        key.click()
        assert not drawn.nth(0).is_visible()
        assert key.get_attribute("aria-pressed") == "false"
        key.click()
        assert drawn.nth(0).is_visible()


def shown(tab) -> int:
    """Number of completions that the filters let through, once they have."""
    # The filters wait 120 ms for more to be typed; timers of a page end in their order.
    tab.evaluate("new Promise(done => setTimeout(done, 200))")
    return int(tab.locator("#samples-status").inner_text().split(" of ")[0].replace(",", ""))


def test_filters_choose_completions(page):
    with opened(page) as tab:
        everything = shown(tab)
        tab.select_option("select[name=outcome]", "right")
        right = shown(tab)
        tab.select_option("select[name=outcome]", "wrong")
        wrong = shown(tab)
        assert 0 < right < everything and right + wrong == everything
        verdicts = tab.locator("#samples-list .verdict").all_inner_texts()
        assert verdicts and set(verdicts) == {"wrong"}
        tab.select_option("select[name=outcome]", "")
        tab.fill("input[name=gated]", "1")
        assert 0 < shown(tab) < everything
        tab.fill("input[name=gated]", "")
        tab.fill("input[name=text]", "no completion says this")
        assert shown(tab) == 0
        tab.fill("input[name=text]", "")
        tab.select_option("select[name=step]", index=2)
        step = tab.locator("select[name=step]").input_value()
        assert 0 < shown(tab) < everything
        assert f"update {step}" in tab.locator("#samples-list header").nth(0).inner_text()
        first = tab.locator("#samples-list").inner_text()
        tab.click("#next")
        assert tab.locator("#samples-list").inner_text() != first
