"""The token view in a real browser: coloured, read, filtered, walked by keyboard, deaf to texts."""

import json
import math

import numpy as np
import pytest
import token_files
from browser import opened, wait
from synthetic_runs import Spec, make_run

import trustclip as tc
from trustclip.logs.tokens import read_tokens
from trustclip.report.page import build
from trustclip.report.token_console import OWN, judge

pytestmark = pytest.mark.slow

#: The tokens' elements, as JavaScript.
EACH = "[...document.querySelector('#token-text').children]"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return token_files.write(tmp_path_factory.mktemp("view") / "tokens.parquet")


@pytest.fixture(scope="module")
def page(path):
    return build([path], path.parent / "out")[0]


@pytest.fixture(scope="module")
def items(path):
    """By constraint and number in its generation, what was done to a completion."""
    return {
        name: {row.index: judge(row, tc.method(name) if name != OWN else None) for row in rows}
        for rows in [[*read_tokens(path)]]
        for name in (OWN, "atr", "gspo")
    }


def ready(tab):
    wait(tab, "document.documentElement.dataset.tokens === 'ready'")


def number(tab) -> int:
    """Number in its generation of the completion that is shown."""
    text = next(t for t in tab.locator("#token-facts span").all_inner_texts() if "number" in t)
    return int(text.removeprefix("number "))


def choose(tab, name, value):
    """Set a filter, and wait until the list has been drawn with it."""
    tab.evaluate("document.querySelector('#token-rows').dataset.seen = 1")
    tab.evaluate(
        "new MutationObserver((_, me) => { delete document.querySelector('#token-rows').dataset"
        ".seen; me.disconnect(); }).observe(document.querySelector('#token-rows'), "
        "{ childList: true })"
    )
    tab.select_option(f"#token-filters [name={name}]", value)
    wait(tab, "!document.querySelector('#token-rows').dataset.seen")


def look(tab, name):
    """Colour by a method, which is added where it is not in use."""
    options = tab.locator("[name=colour] option").all_inner_texts()
    if not any(option == f"gradient under {name}" for option in options):
        tab.select_option("#method-add", name)
        ready(tab)
    tab.select_option("[name=colour]", label=f"gradient under {name}")


def test_frames_and_colours_are_those_of_the_method(page, items):
    with opened(page) as tab:
        ready(tab)
        for name in (OWN, "atr", "gspo"):
            look(tab, name)
            tab.evaluate("document.querySelector('#token-list').focus()")
            tab.keyboard.press("Home")
            item = items[name][number(tab)]
            assert item.share == max(i.share for i in items[name].values())
            classes = tab.evaluate(EACH + ".map(s => s.className)")
            assert [("cut" in c.split()) for c in classes] == item.cut.tolist()
            signs = [("u" in c) - ("d" in c) for c in (c.split(" ")[0][:1] for c in classes)]
            wanted = np.sign(item.coefficient) * item.row.mask
            assert [s for s in signs] == wanted.astype(int).tolist()


def test_the_keyboard_walks_through_cut_tokens_and_numbers_are_read_out(page, items):
    with opened(page) as tab:
        ready(tab)
        item = items[OWN][number(tab)]
        cut = np.flatnonzero(item.cut)
        tab.locator("#token-text").focus()
        seen, here = [], EACH + ".findIndex(s => s.classList.contains('here'))"
        for _ in range(len(cut) + 1):
            tab.keyboard.press("n")
            seen.append(tab.evaluate(here))
        assert seen == [*cut, cut[0]]
        tab.keyboard.press("p")
        assert tab.evaluate(here) == cut[-1]
        tab.keyboard.press("ArrowLeft")
        place = tab.evaluate(here)
        assert place == cut[-1] - 1
        said = tab.locator("#token-readout").inner_text()
        row = item.row
        assert f"token {place + 1} of {len(row.logp)}, id {row.token_id[place]}" in said
        for label, wanted in (
            ("p ", math.exp(row.logp[place])),
            ("p old ", math.exp(row.logp_old[place])),
            ("ratio ", math.exp(row.logp[place] - row.logp_old[place])),
            ("A ", row.advantage[place]),
        ):
            shown = next(
                t
                for t in tab.locator("#token-readout span").all_inner_texts()
                if t.startswith(label)
            )
            value = float(shown.split()[-1].replace("−", "-"))
            assert value == pytest.approx(wanted, rel=5e-3), label


def test_filters_choose_completions(page, items):
    with opened(page) as tab:
        ready(tab)
        status = tab.locator("#token-status")
        assert status.inner_text() == "24 of 24 completions."
        choose(tab, "update", "11")
        assert status.inner_text() == "8 of 24 completions."
        choose(tab, "sign", "-1")
        shown = int(status.inner_text().split()[0])
        rows = [item.row for item in items[OWN].values()]
        assert shown == sum(row.update == 11 and row.advantage[0] < 0 for row in rows)
        tab.fill("#token-filters [name=low]", "2")
        wait(tab, "document.querySelector('#token-card').hidden")
        tab.click("#token-filters button[type=reset]")
        wait(tab, "document.querySelector('#token-status').innerText.startsWith('24 of')")
        ready(tab)


def test_texts_stay_texts_and_whitespace_is_seen(page):
    with opened(page) as tab:
        ready(tab)
        everything = set()
        for _ in range(24):
            block = tab.locator("#token-text")
            assert block.locator("script, img, b").count() == 0
            everything |= set(tab.evaluate(EACH + ".map(s => s.textContent)"))
            if tab.locator("#token-next").is_enabled():
                tab.click("#token-next")
        assert {"⏎\n", "⇥\t", "··", "∅", "</script>", "U+001B[31m", " the"} <= everything
        assert tab.evaluate("window.hurt") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_strongest_colours_leave_the_text_readable(page, scheme):
    """Contrast of 4.5 to 1 (WCAG AA), measured on the pixels of the strongest backgrounds."""
    with opened(page, color_scheme=scheme) as tab:
        ready(tab)
        for name in ("u8", "d8"):
            script = """name => {
              const span = document.querySelector('#token-text span'); span.className = name;
              const canvas = document.createElement("canvas");
              const ctx = canvas.getContext("2d", {willReadFrequently: true});
              const style = getComputedStyle(span), ground = getComputedStyle(span.parentNode);
              ctx.fillStyle = ground.backgroundColor; ctx.fillRect(0, 0, 1, 1);
              ctx.fillStyle = style.backgroundColor; ctx.fillRect(0, 0, 1, 1);
              const back = [...ctx.getImageData(0, 0, 1, 1).data];
              ctx.fillStyle = style.color; ctx.fillRect(0, 0, 1, 1);
              return JSON.stringify([back, [...ctx.getImageData(0, 0, 1, 1).data]]);
            }"""
            back, ink = json.loads(tab.evaluate(script, name))
            lights = sorted(_luminance(colour) for colour in (back, ink))
            assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, (name, back, ink)


def test_the_tokens_of_several_runs_have_the_colours_of_their_charts(tmp_path):
    runs = []
    for name, seed in [("clip", 0), ("atr", 0), ("atr", 1), ("dppo", 0)]:
        run = make_run(tmp_path / f"{name}-{seed}", Spec({"name": name}, seed=seed, steps=8))
        token_files.write(run / "tokens" / "1.parquet", 6)
        runs.append(run)
    with opened(build(runs, tmp_path / "out")[0]) as tab:
        ready(tab)
        colour = "e => getComputedStyle(e).getPropertyValue('--own')"
        boxes = {
            box.locator("legend").inner_text(): box.evaluate(colour)
            for box in tab.locator("#methods-used fieldset").all()
        }
        keys = {
            key.inner_text().split()[0]: key.evaluate(colour)
            for key in tab.locator(".legend .key").all()
        }
        assert {name: boxes[name] for name in keys} == keys
        assert boxes.keys() - keys.keys() == {"each run's own"}
        assert "come from 4 runs" in tab.inner_text("#shares-note")


def _luminance(colour):
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (x / 255 for x in colour[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
