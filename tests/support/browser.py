"""A page of ours in a real browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import NEVER, until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browsing() -> Iterator[Any]:
    """Headless Chromium; skips where playwright or the browser is absent."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("no Chromium on this machine (`make browser` installs Debian's)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(page: Path | str, browser: Any = None, **context: Any) -> Iterator[Any]:
    """The page in a browser, its own when None, with no network; a complaint of its console fails.

    The address of a page may take the place of its file: then nothing else may be asked for.
    """
    if browser is None:
        with browsing() as own, opened(page, own, **context) as tab:
            yield tab
        return
    complaints: list[str] = []
    url = page if isinstance(page, str) else page.resolve().as_uri()
    served = isinstance(page, str)
    alone = browser.new_context(**{"offline": not served, **context})
    try:
        tab = alone.new_page()
        tab.on("console", lambda m: m.type in ("error", "warning") and complaints.append(m.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        allowed = url if served else "file:"
        tab.on(
            "request",
            lambda r: (
                r.url.startswith("http")
                and not r.url.startswith(allowed)
                and complaints.append(r.url)
            ),
        )
        tab.on("dialog", lambda d: (complaints.append(f"dialog {d.message}"), d.dismiss()))
        tab.set_default_timeout(1000 * NEVER)
        tab.goto(url)
        yield tab
    finally:
        alone.close()
    assert not complaints, complaints


def wait(tab: Any, condition: str) -> None:
    """Until a condition holds. The page's policy forbids eval, which Playwright's waiting uses."""
    until(lambda: tab.evaluate(condition))
