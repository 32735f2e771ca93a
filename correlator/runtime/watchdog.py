"""Warns when a handler of a monitor does not return (bad input 109).

The watchdog looks at the stacks of the threads at intervals, so handling an event costs no extra time. If two
successive looks find the same call of a handler, this call has run all the time in between.
"""

import sys
from collections.abc import Callable, Iterable
from types import FrameType

from correlator.core.monitor import Monitor
from correlator.runtime.actor import Actor
from correlator.runtime.clock import Clock
from correlator.runtime.logs import get_logger

LOOKS = 10
"""How often the watchdog looks within `after` seconds; with more looks, it warns closer to this time."""


class _Running:
    """A call of a handler that the last look has found on a stack."""

    def __init__(self, frame: FrameType, since: float) -> None:
        self.frame = frame
        self.since = since
        self.warnings = 0


class Watchdog(Actor):
    """Logs W5501 when a handler has run for `after` seconds, and again whenever this time has doubled.

    Args:
        threads: returns the identities of the threads that run handlers.
        after: seconds before the first warning; 0 for no warnings.
        clock: monotonic seconds.
    """

    def __init__(self, threads: Callable[[], Iterable[int]], after: float, clock: Clock) -> None:
        super().__init__("watchdog")
        self._threads = threads
        self._after = after
        self._clock = clock
        self._running: dict[int, _Running] = {}
        self._log = get_logger(part="watchdog")

    def step(self) -> float | None:
        """Look at all stacks once."""
        if not self._after:
            return None
        frames = sys._current_frames()  # noqa: SLF001  # the only way to see the stack of another thread
        now = self._clock.monotonic()
        seen: dict[int, _Running] = {}
        for thread in self._threads():
            top = frames.get(thread)
            handler = _handler_of(top)
            if top is None or handler is None:
                continue
            known = self._running.get(thread)
            seen[thread] = known if known is not None and known.frame is handler else _Running(handler, now)
            self._warn(seen[thread], top, now)
        self._running = seen
        return self._after / LOOKS

    def _warn(self, running: _Running, top: FrameType, now: float) -> None:
        if now - running.since < self._after * 2**running.warnings:
            return
        running.warnings += 1
        name = running.frame.f_locals["self"].state_name
        self._log.warning(
            f"W5501 handler of monitor {name} has run {now - running.since:.0f} s",
            handler=running.frame.f_code.co_name,
            at=f"{top.f_code.co_filename}:{top.f_lineno}",
        )


def _handler_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the outermost call of a method of a monitor on a stack; `None` if there is none."""
    found = None
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",) and isinstance(frame.f_locals.get("self"), Monitor):
            found = frame
        frame = frame.f_back
    return found
