"""The microscope in a browser: files of other programs, shares and thresholds as Python's."""

import html
import json
import re

import pytest
import token_files
from browser import browsing, opened, wait
from patience import until

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints.shadow import label
from trustclip.logs.tokens import TokenRow
from trustclip.logs.watched import watch
from trustclip.report.microscope import token_page

READY = "document.documentElement.dataset.tokens === 'ready'"


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page with its sample."""
    path = tmp_path_factory.mktemp("microscope") / "microscope.html"
    path.write_text(token_page((), "Microscope"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return token_files.write(tmp_path_factory.mktemp("tokens") / "tokens.jsonl")


@pytest.fixture(scope="module")
def tokens_page(tokens):
    path = tokens.with_name("tokens.html")
    path.write_text(token_page([tokens], "Microscope"), encoding="utf-8")
    return path


def prime_rl(row: TokenRow) -> dict:
    """A sequence as prime-rl's token export has it."""
    n = len(row.logp)
    return {
        "schema_version": 1,
        "run_id": "a",
        "step": row.step,
        "export_sequence_idx": row.index,
        "token_ids": row.token_id.tolist(),  # type: ignore[union-attr]
        "trainer_logprobs": row.logp.tolist(),
        "inference_logprobs": row.logp_old.tolist(),  # type: ignore[union-attr]
        "advantages": row.advantage.tolist(),
        "loss_mask": [True] * n,
        "is_masked": [False] * n,
        "rewards": [row.reward] * n,
    }


def test_the_command_puts_several_files_into_one_page(browser, tmp_path, tokens) -> None:
    other, out = tmp_path / "rank_0.jsonl", tmp_path / "page.html"
    other.write_text("\n".join(json.dumps(prime_rl(row)) for row in token_files.made(6)) + "\n")
    assert main(["microscope", str(tokens), str(other), "-o", str(out)]) == 0
    with opened(out, browser) as tab:
        wait(tab, READY)
        assert tab.inner_text("#token-status") == "30 of 30 completions."
        tab.select_option("[name=run]", label=other.name)
        wait(tab, "document.querySelector('#token-status').innerText.startsWith('6 of')")


def test_nothing_can_leave_the_page(browser, page) -> None:
    text = page.read_text(encoding="utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])  # type: ignore[index]
    assert policy.startswith("default-src 'none';") and "connect-src" not in policy
    assert not re.search(r"<(link|script|img|iframe)[^>]+(src|href)=\"(?!data:)", text)
    with (
        pytest.raises(AssertionError, match="Content Security Policy"),
        opened(page, browser) as tab,
    ):
        wait(tab, READY)
        sent = tab.evaluate("fetch('https://example.org/').then(() => 'sent', () => 'refused')")
        assert sent == "refused"


def shares(tab) -> dict[str, tuple[int, float]]:
    """What each method would have cut: tokens and share, %."""
    rows = tab.locator("#token-shares tbody tr").all_inner_texts()
    cells = [row.split("\t") for row in rows if "\t" in row]  # others are being drawn
    return {name: (int(cut.replace(",", "")), float(share)) for name, cut, share, _ in cells}


def test_shares_are_those_of_shadows(browser, tokens_page, tokens) -> None:
    methods = [tc.method(name) for name in ("clip", "atr", "dppo", "gspo", "dual_clip")]
    want = watch([tokens], methods, tc.method("clip")).metrics
    with opened(tokens_page, browser) as tab:
        wait(tab, READY)
        for name in ("gspo", "dual_clip"):
            tab.select_option("#method-add", name)
            wait(tab, READY)
        got = shares(tab)
        for method in methods:
            share = want[f"shadow/{label(method)}/gated"]
            assert got[method.name][1] / 100 == pytest.approx(share, abs=6e-4)


def test_sliders_move_what_is_cut(browser, tokens_page) -> None:
    with opened(tokens_page, browser) as tab:
        wait(tab, READY)
        before = shares(tab)["clip"][0]
        exact = tab.locator("input[aria-label='epsilon of clip, exact']")
        exact.fill("0.05")
        exact.press("Tab")
        until(lambda: "clip epsilon=0.05" in shares(tab))
        assert shares(tab)["clip epsilon=0.05"][0] > before
        assert 'tc.method("clip", epsilon=0.05)' in tab.inner_text("#methods-used")


def test_the_keyboard_walks_the_list_and_a_reader_hears_where_it_is(browser, tokens_page) -> None:
    with opened(tokens_page, browser) as tab:
        wait(tab, READY)
        box = tab.locator("#token-list")
        box.focus()
        for key, place in (("ArrowDown", 2), ("j", 3), ("k", 2), ("End", 24), ("Home", 1)):
            tab.keyboard.press(key)
            here = tab.locator(f"#{box.get_attribute('aria-activedescendant')}")
            assert here.get_attribute("aria-posinset") == str(place), key
            assert here.get_attribute("aria-selected") == "true"
            assert here.get_attribute("aria-setsize") == "24"
        unnamed = tab.evaluate(
            "[...document.querySelectorAll('main input, main select, main button')].filter(e =>"
            " !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent).length"
        )
        assert unnamed == 0


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (320, "dark")])
def test_no_page_is_wider_than_its_window(browser, page, width, scheme) -> None:
    size = {"width": width, "height": 800}
    with opened(page, browser, viewport=size, color_scheme=scheme) as tab:
        wait(tab, READY)
        for name in ("dual_clip", "trgppo"):
            tab.select_option("#method-add", name)
            wait(tab, READY)
        for details in tab.locator("details").all():
            details.evaluate("e => { e.open = true; }")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
