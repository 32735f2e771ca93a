"""A real browser for tests: Chromium of Debian without a window, driven by Playwright.

A browser that does not start is an error, never a skip.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.servers import install_packages

_QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-gpu")


def chromium() -> str:
    """The path of Chromium. Install its package if it is absent."""
    if shutil.which("chromium") is None:
        install_packages("chromium", "fonts-dejavu-core")
    found = shutil.which("chromium")
    assert found is not None
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser. It has no sandbox if the tests run as root."""
    flags = [*_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        try:
            yield started
        finally:
            started.close()
