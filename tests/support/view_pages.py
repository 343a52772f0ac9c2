"""`covey view` in a browser: servers of a folder, and going from page to page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GO = """document.querySelector("main").replaceChildren();
if (location.hash === arguments[0]) dispatchEvent(new Event("hashchange")); else location.hash = arguments[0];"""
THERE = 'return !!document.querySelector("main .page") && !document.querySelector("[aria-busy]:not([hidden] *)")'


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "covey", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def view(folder: Path) -> Iterator[str]:
    """The address of a view of this folder."""
    with command("view", str(folder), "--port", "0", "--no-open") as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    assert server.returncode == 0


def go(page: Any, hash_: str) -> None:
    """Go to a page of the app, and wait for it."""
    page.execute_script(GO, hash_)
    wait(page, lambda: page.execute_script(THERE))


def wait(page: Any, found: Callable[[], Any], seconds: float = 300) -> Any:
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    waiting = WebDriverWait(page, seconds, ignored_exceptions=[StaleElementReferenceException])
    return waiting.until(lambda _: found())
