"""The report in a real browser: drawn, filtered, switched, and deaf to what completions say."""

import pytest
from browser import opened
from synthetic_runs import HOSTILE, Spec, make_suite

from trustclip.report.build import build

pytestmark = pytest.mark.slow

UNDRAWN = (
    "[...document.querySelectorAll('.chart')].filter(c => !c.querySelector('svg path')).length"
)


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
def test_every_figure_is_drawn(page, scheme):
    with opened(page, color_scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        charts = tab.locator(".chart")
        assert charts.count() >= 12
        for i in range(charts.count()):
            charts.nth(i).scroll_into_view_if_needed()
        tab.wait_for_function(f"{UNDRAWN} === 0")
        background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in background[4:-1].split(",")[:3]) / 3
        assert brightness > 200 if scheme == "light" else brightness < 60


def test_nothing_is_wider_than_a_phone(page):
    with opened(page, viewport={"width": 390, "height": 800}) as tab:
        wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0


def test_a_click_on_a_method_hides_its_curves(page):
    with opened(page) as tab:
        chart = tab.locator(".chart").nth(0)
        chart.scroll_into_view_if_needed()
        tab.wait_for_function("document.querySelector('.chart').data !== undefined")
        visible = "document.querySelector('.chart').data.filter(t => t.visible !== false).length"
        before = tab.evaluate(visible)
        key = tab.locator(".key").nth(0)
        key.click()
        assert tab.evaluate(visible) < before
        assert key.get_attribute("aria-pressed") == "false"
        key.click()
        assert tab.evaluate(visible) == before


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


def test_a_completion_stays_text(page):
    with opened(page) as tab:
        for needle in ("<script>alert", "window.hurt", "onerror"):
            tab.fill("input[name=text]", needle)
            assert shown(tab) > 0
            block = tab.locator("#samples-list pre").nth(0)
            assert block.inner_text() in HOSTILE
            assert block.locator("script, img").count() == 0
        assert tab.evaluate("window.hurt") is None


def test_on_paper_no_chart_leaves_its_column(page):
    with opened(page, viewport={"width": 1280, "height": 900}) as tab:
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        tab.wait_for_function(f"{UNDRAWN} === 0")
        wider = """[...document.querySelectorAll('.chart .main-svg')].filter(drawn =>
            drawn.getBoundingClientRect().right
            > drawn.closest('.panel').getBoundingClientRect().right + 1).length"""
        assert tab.evaluate(wider) == 0
        assert tab.evaluate("document.querySelectorAll('.main-svg:not([viewBox])').length") == 0
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
