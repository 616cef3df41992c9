"""A browser for the tests of the page: Chromium without a window, by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def chromium() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def needs_browser() -> Any:
    """A mark that skips where there is no Playwright, or no Chromium."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return pytest.mark.skip(reason="playwright is not installed: pip install playwright")
    return pytest.mark.skipif(chromium() is None, reason="no Chromium is on the PATH")


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Any]:
    """A page that shows a file, ready; everything it complains of fails the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 800}, **options})
        complaints: list[str] = []
        page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(OWN) else complaints.append(r.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]")
        yield page
        browser.close()
        assert complaints == []


def drawn(page: Any) -> None:
    """Wait until what was asked for is drawn."""
    frame = "requestAnimationFrame"
    page.evaluate(f"() => new Promise(done => {frame}(() => {frame}(done)))")


OWN = ("file:", "blob:", "data:")
