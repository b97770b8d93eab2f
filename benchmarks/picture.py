"""A picture of a page, as the documentation shows it, in headless Chromium (make browser).

python benchmarks/picture.py arena.html docs/lab/arena.png --height 900
python benchmarks/picture.py report/report.html docs/tokens.png --element "#tokens"
"""

import argparse
import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def picture(
    page: Path, out: Path, size: tuple[int, int], element: str | None, theme: str = "light"
) -> None:
    """Write a PNG of a page's first screen, or of one element of it.

    Args:
      page: HTML file.
      out: PNG file.
      size: of the window, pixels.
      element: CSS selector; the window itself when None.
      theme: ``"light"`` or ``"dark"``.

    Raises:
      ValueError: there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        raise ValueError("no Chromium on this machine: make browser installs Debian's.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        view = {"width": size[0], "height": size[1]}
        tab = browser.new_context(offline=True, viewport=view, color_scheme=theme).new_page()  # type: ignore[arg-type]
        tab.goto(page.resolve().as_uri())
        tab.wait_for_timeout(500)  # charts are drawn when they come into view
        target = tab if element is None else tab.locator(element).first
        target.screenshot(path=str(out))
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1240)
    parser.add_argument("--height", type=int, default=1420)
    parser.add_argument("--element")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    args = parser.parse_args()
    picture(args.page, args.out, (args.width, args.height), args.element, args.theme)
