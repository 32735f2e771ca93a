"""Named fault points: where a test may kill or fail the engine. One comparison with `None` in production."""

from collections.abc import Callable

_handler: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Pass a named point; does nothing unless a test has installed a handler."""
    if _handler is not None:
        _handler(name)


def install(handler: Callable[[str], None] | None) -> None:
    """Call `handler` with the name of every point that is passed from now on, from its thread; `None` ends that."""
    global _handler  # noqa: PLW0603  # one switch for the whole process, so that production pays one comparison
    _handler = handler
