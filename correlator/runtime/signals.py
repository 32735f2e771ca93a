"""SIGTERM and SIGINT ask for an orderly stop; a second one ends the process at once.

A forked child inherits signal handlers, but nobody there reads what they note. So the child gets back the handlers that
were set before.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_before: list[dict[int, Any]] = []
"""For each `signals_to` that is going on, the handlers that it has replaced."""
_forking = threading.local()


@contextlib.contextmanager
def signals_to(handler: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
    """Within the block these signals call the handler, except in a forked child. For the main thread only."""
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
    """Before a fork: let a signal to the child wait until it has its handlers back; Python would drop the signal."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number for before in _before for number in before})


def _go_on() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _give_back() -> None:
    """In a forked child: restore the handlers, then admit signals."""
    while _before:
        _restore(_before.pop())
    _go_on()


os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_give_back)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Within the block, note the first SIGTERM or SIGINT, and end the process at the second one.

    Yields a function that says whether the first one came. The handler only notes it, since it runs between any two
    instructions of the main thread, which may hold a lock. Outside of the main thread nothing is noted.
    """
    noted: list[int] = []

    def note(number: int) -> None:
        if noted:
            os._exit(128 + number)
        noted.append(number)

    main = threading.current_thread() is threading.main_thread()
    with signals_to(note, (signal.SIGTERM, signal.SIGINT) if main else ()):
        yield lambda: bool(noted)
