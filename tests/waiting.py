"""Waits for what other threads or processes bring about, which send no signal."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], within_s: float = 60.0, every_s: float = 0.02) -> T:
    """Look at intervals until the condition holds; returns what it has returned."""
    deadline = time.monotonic() + within_s
    waiting = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not come"
        waiting.wait(every_s)
    return found
