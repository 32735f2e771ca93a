"""Names what a process does while it starts, works and stops, for a person who waits at a terminal.

Whoever begins a phase calls `begin`; the listener of the process, if it has one, shows the text (`cli.progress`).
Without a listener the call does nothing. Phases are not logged: the log has its own lines for a start and a stop.
"""

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def begin(text: str) -> None:
    """Tell the listener what the process does from now on, such as "reading the store". Any thread may call it."""
    for listener in _listeners:
        listener(text)


def listen(listener: Callable[[str], None]) -> None:
    """Call this function with the text of each phase. It must return at once and raise nothing."""
    _listeners.append(listener)


def ignore(listener: Callable[[str], None]) -> None:
    """Stop calling a function that listens."""
    _listeners.remove(listener)
