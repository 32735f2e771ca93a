"""SIGTERM and SIGINT ask for an orderly stop; a second signal ends the process at once.

A forked child inherits signal handlers, but no thread of the child reads what they note. So a fork restores the earlier
handlers in the child.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_before: list[dict[int, Any]] = []
"""For each block of `signals_to` that runs now, the handlers that it has replaced."""
_forking = threading.local()


@contextlib.contextmanager
def signals_to(handler: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
    """Let these signals call the handler within the block, except in a forked child. Only the main thread may call it.

    Args:
        handler: gets the number of the signal. It runs in the main thread, between any two of its instructions.
        numbers: the signals; if there are none, nothing changes, and any thread may call it.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    _before.append(before)
    for number in before:
        signal.signal(number, lambda received, _frame: handler(received))
    try:
        yield
    finally:
        if before in _before:
            _before.remove(before)
            _restore(before)


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def _hold() -> None:
    """Before a fork, block these signals, so that a signal for the child waits until the child has restored its
    handlers.

    Python would drop a signal that comes earlier.
    """
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number for before in _before for number in before})


def _go_on() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _give_back() -> None:
    """In a forked child, restore the handlers, then unblock signals."""
    while _before:
        _restore(_before.pop())
    _go_on()


os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_give_back)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Note the first SIGTERM or SIGINT within the block, and end the process at the second one.

    Yields a function that returns whether the first signal has come. The handler does nothing else, since it runs
    between any two instructions of the main thread, which may hold a lock. In any other thread the function always
    returns `False`.
    """
    noted: list[int] = []

    def note(number: int) -> None:
        if noted:
            os._exit(128 + number)
        noted.append(number)

    main = threading.current_thread() is threading.main_thread()
    with signals_to(note, (signal.SIGTERM, signal.SIGINT) if main else ()):
        yield lambda: bool(noted)
