"""SIGTERM and SIGINT ask for an orderly stop; a second one ends the process at once.

A forked child inherits handlers, and nobody would look at what they note there: it gets back those from before.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_before: list[dict[int, Any]] = []
"""What each `signals_to` that lasts has taken the place of."""
_forking = threading.local()


@contextlib.contextmanager
def signals_to(handler: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
    """While this lasts, these signals call the handler; in a forked child they do what they did before. Main thread."""
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
    """Before a fork: a signal to the child waits until the handlers are given back; Python would drop it until then."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number for before in _before for number in before})


def _go_on() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _give_back() -> None:
    """In a forked child."""
    while _before:
        _restore(_before.pop())
    _go_on()


os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_give_back)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """While this lasts, notes the first signal; gives a function that says whether it came.

    The handler does no more than that: it runs between any two instructions of the main thread, which may hold a lock.
    Outside of the main thread nothing is noted.
    """
    noted: list[int] = []

    def note(number: int) -> None:
        if noted:
            os._exit(128 + number)
        noted.append(number)

    main = threading.current_thread() is threading.main_thread()
    with signals_to(note, (signal.SIGTERM, signal.SIGINT) if main else ()):
        yield lambda: bool(noted)
