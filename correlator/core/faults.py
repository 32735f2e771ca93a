"""Fault points: named places where a test may kill the engine or raise an error.

In production a fault point costs one comparison with `None`.
"""

from collections.abc import Callable

_handler: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Call the installed handler with the name of this fault point, if a test has installed one."""
    if _handler is not None:
        _handler(name)


def install(handler: Callable[[str], None] | None) -> None:
    """Install a handler for all threads of the process; `None` removes it. Each thread calls it at its own points."""
    global _handler  # noqa: PLW0603  # one switch for the whole process, so that production pays one comparison
    _handler = handler
