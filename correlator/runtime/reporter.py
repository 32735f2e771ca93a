"""Logs the status line at intervals (rule A9.2)."""

import contextlib
import resource
from collections.abc import Callable
from pathlib import Path

from correlator.runtime.actor import Actor
from correlator.runtime.clock import Clock
from correlator.runtime.logs import get_logger
from correlator.runtime.status import Status, pipeline_lines, status_line

_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")


class Reporter(Actor):
    """Logs what the engine did since the last status line.

    Args:
        status: returns the status of the engine.
        interval: seconds between two lines.
        clock: monotonic seconds.
    """

    def __init__(self, status: Callable[[], Status], interval: float, clock: Clock) -> None:
        super().__init__("reporter")
        self._status = status
        self._interval = interval
        self._clock = clock
        self._before = status()
        self._due = clock.monotonic() + interval
        self._log = get_logger()

    def step(self) -> float | None:
        """Log a line if it is due; return the seconds until the next one."""
        wait = self._due - self._clock.monotonic()
        if wait > 0:
            return wait
        now = self._status()
        self._log.info(status_line(self._before, now))
        for line in pipeline_lines(self._before, now):
            self._log.info(line)
        self._before = now
        self._due = self._clock.monotonic() + self._interval
        return self._interval


def resident_bytes() -> int:
    """Return the resident memory of this process; its peak on systems that do not report the present value."""
    with contextlib.suppress(OSError):
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
