"""A headless Chromium for tests of pages: no network but this machine, the installed driver, and its console log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Why there is no browser to test with; empty where there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install 'covey[dev]'"
    if not any(map(shutil.which, BROWSERS)) or not shutil.which("chromedriver"):
        return "no Chromium with its chromedriver on the PATH (Debian: apt-get install chromium chromium-driver)"
    return ""


@contextmanager
def browser(width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Any]:
    """A Chromium with a window of this size; `get_log("browser")` has its console messages."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, BROWSERS) if path)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=str(shutil.which("chromedriver"))))
    try:
        resize(driver, width, height, dark=dark)
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
    """Set the window size and colour scheme of an open browser."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def open_page(driver: Any, page: Path) -> None:
    """Open a page and wait until its completions are decompressed."""
    open_address(driver, page.resolve().as_uri())


def open_address(driver: Any, address: str) -> None:
    """Open an address and wait until nothing on the page is being loaded."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(address)
    WebDriverWait(driver, 60).until(lambda d: not d.find_elements("css selector", "[aria-busy]:not([hidden] *)"))
