"""SIGTERM and SIGINT ask for an orderly stop; a second one ends the process at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_signals(asked: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, call `asked` with the name of the first signal; only in the main thread, else do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = (signal.SIGTERM, signal.SIGINT)

    def first(number: int, _: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, lambda second, _frame: os._exit(128 + second))
        asked(signal.Signals(number).name)

    before = [signal.signal(number, first) for number in handled]
    try:
        yield
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
