"""Structured logs: one line for each event, with control characters escaped.

A message that is processed without an error makes no line above DEBUG.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from correlator.errors import printable

Redact = Callable[[str], str]


def configure(*, level: str = "INFO", json: bool = False, redact: Redact = lambda text: text) -> None:
    """Set up logging for a process that runs an engine. The commands call it; a program that embeds an engine may call
    it.

    Args:
        level: the lowest level that is logged.
        json: whether each line is a JSON object instead of text.
        redact: replaces secrets in every value.
    """
    renderer: Any = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _cleaner(redact),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(_StandardError()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


class _StandardError:
    """The present `sys.stderr`. An error of a write is ignored: a closed log must not stop the engine."""

    def write(self, text: str) -> int:
        """Write to standard error; ignores errors."""
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        """Flush standard error; ignores errors."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def get_logger(**values: Any) -> Any:
    """Return a logger that adds these values to every line."""
    return structlog.get_logger(**values)


def _cleaner(redact: Redact) -> Any:
    def clean(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in event.items():
            if isinstance(value, str):
                event[name] = redact(printable(value))
            elif isinstance(value, BaseException):
                event[name] = redact(printable(str(value)))
        return event

    return clean
