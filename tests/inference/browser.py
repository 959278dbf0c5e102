"""A real browser for the tests, where there is one: Chromium without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def open_browser(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """Selenium's driver of Chromium; the test is skipped where either is missing (`make test-browser` has them)."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("needs chromium and chromedriver; make test-browser installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    alone = ("disable-background-networking", "disable-component-update", "disable-sync")  # asks no other host
    screen = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"window-size={width},{height}")
    for word in (*screen, *alone):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_script_timeout(120)
    try:
        yield opened
    finally:
        opened.quit()
