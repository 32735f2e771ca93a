"""Structured logs: one line for each event, with control characters escaped.

A message that is processed without an error makes no line above DEBUG.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, MutableMapping
from difflib import get_close_matches
from typing import Any

import structlog

from correlator.errors import UsageError, printable, quoted

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
    _levels[""] = level


def set_level(level: str, logger: str | None = None) -> str:
    """Set the lowest level that the log of this process shows, and return the previous level.

    Args:
        level: one of the names of levels.
        logger: name of a logger of Python's `logging`, such as that of a client of a broker; its lines then go to the
            log of the engine. `None` for the log of the engine itself.

    Raises:
        UsageError: E2048, the program has not called `configure`, or there is no such logger.
    """
    if not _levels:
        what = "was set up by the program in which the engine runs"
        raise UsageError("E2048", "log", what, "", "Change its level there")
    number = logging.getLevelNamesMapping()[level]
    if logger is None:
        before, _levels[""] = _levels[""], level
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))
        return before
    known = logging.Logger.manager.loggerDict
    if logger not in known:
        near = get_close_matches(logger, known, n=1)
        hint = f"Did you mean {quoted(near[0])}?" if near else f"There are: {', '.join(sorted(known)[:50]) or 'none'}"
        raise UsageError("E2048", quoted(logger), "no library of this process has a logger of this name", hint)
    found = logging.getLogger(logger)
    before = logging.getLevelName(found.getEffectiveLevel())
    found.setLevel(number)
    if not any(isinstance(handler, _ToLog) for handler in found.handlers):
        found.addHandler(_ToLog())
        found.propagate = False
    return before


def level() -> str | None:
    """Return the lowest level that the log of this process shows; `None` if the program has not called `configure`."""
    return _levels.get("")


_levels: dict[str, str] = {}
"""The level of the log under ""; empty as long as `configure` was not called."""


class _ToLog(logging.Handler):
    """Writes the lines of a logger of Python's `logging` into the log of the engine, regardless of the log's level."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line of the logger as one line of the log. Never raises; any thread may call it."""
        every = structlog.make_filtering_bound_logger(logging.NOTSET)
        log = structlog.wrap_logger(None, wrapper_class=every, library=record.name)
        with contextlib.suppress(Exception):  # the arguments of a line of a third-party library may not fit its text
            log.log(max(record.levelno, logging.DEBUG), record.getMessage())


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
                event[name] = printable(redact(value))
            elif isinstance(value, BaseException):
                event[name] = printable(redact(str(value)))
        return event

    return clean
