"""Structured logs: one event, one line; control characters escaped; nothing per message above DEBUG."""

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

Redact = Callable[[str], str]


def configure(*, level: str = "INFO", json: bool = False, redact: Redact = lambda text: text) -> None:
    """Set up logging for a process that runs an engine (the command line does; an embedding program may).

    Args:
        level: lowest level shown.
        json: one JSON object per line instead of text.
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(**values: Any) -> Any:
    """A logger that adds these values to every line."""
    return structlog.get_logger(**values)


def _cleaner(redact: Redact) -> Any:
    def clean(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in event.items():
            if isinstance(value, str):
                event[name] = redact(_escape(value))
            elif isinstance(value, BaseException):
                event[name] = redact(_escape(str(value)))
        return event

    return clean


def _escape(text: str) -> str:
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode("ascii") for c in text)
