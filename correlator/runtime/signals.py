"""SIGTERM and SIGINT ask for an orderly stop; a second one ends the process at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """While this lasts, notes the first signal; gives a function that says whether it came.

    The handler does no more than that: it runs between any two instructions of the main thread, which may hold a lock.
    Outside of the main thread nothing is noted.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: bool(noted)
        return
    handled = (signal.SIGTERM, signal.SIGINT)

    def first(number: int, _: FrameType | None) -> None:
        noted.append(number)
        for each in handled:
            signal.signal(each, lambda second, _frame: os._exit(128 + second))

    before = [signal.signal(number, first) for number in handled]
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
