"""What librdkafka itself logs, which is about things that no call reports, such as one lost broker of several."""

import logging
import threading
import time

LOG = logging.getLogger("connectors.kafka.librdkafka")
"""The logger of all clients of the library."""
_REPORTED = frozenset({"CONFWARN", "FATAL", "TXNERR"})
"""Kinds of lines that say nothing new: the connector reports the error; a setting is for the other kind of client."""
_SILENCE_S = 600.0


class LineLimit(logging.Filter):
    """Lets a warning or error of each kind through once in ten minutes. Any thread may log.

    A line of the library has three arguments; the first is its kind. Lines below warnings pass: they come only if the
    level of the logger was lowered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._due_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the line; it then says how many of its kind were left out before."""
        if record.levelno < logging.WARNING:
            return True
        kind = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        if kind in _REPORTED:
            return False
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._due_s.get(kind, now_s):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return False
            self._due_s[kind] = now_s + _SILENCE_S
            left_out = self._left_out.pop(kind, 0)
        record.msg = f"librdkafka: {record.msg}" + (f" ({left_out} similar lines were left out)" if left_out else "")
        return True


LOG.addFilter(LineLimit())
