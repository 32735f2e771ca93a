"""A real browser for tests: Chromium of Debian without a window, driven by Playwright.

A browser that does not start is an error. Only where it cannot be installed, outside CI, the tests are skipped.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.servers import install_packages

try:
    from playwright.sync_api import Browser, sync_playwright
except ImportError:
    if "CI" in os.environ:
        raise
    pytest.skip("Playwright is not installed: pip install -e '.[test]'", allow_module_level=True)

_QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-gpu")


def chromium() -> str:
    """The path of Chromium. Install its package if it is absent, as root can."""
    if shutil.which("chromium") is None and os.geteuid() == 0:
        install_packages("chromium", "fonts-dejavu-core")
    found = shutil.which("chromium")
    if found is None and "CI" not in os.environ:
        pytest.skip("Chromium is not installed, and only root can do that: apt-get install chromium")
    assert found is not None, "Chromium is not installed"
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
