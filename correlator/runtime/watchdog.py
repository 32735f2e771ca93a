"""Warns when a handler of a monitor does not return (bad input 109).

Each context publishes which call of a handler runs, and the watchdog checks this at intervals. If two successive checks
find the same call, this call has run all the time in between. The watchdog reads the stack of a thread only for a
warning, and only as text from `faulthandler`: frame objects of other threads are not safe to use, and crash some
versions of CPython.
"""

import faulthandler
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from correlator.core import calls
from correlator.core.calls import RunningCall
from correlator.runtime.actor import Actor
from correlator.runtime.clock import Clock
from correlator.runtime.logs import get_logger

LOOKS = 10
"""How often the watchdog checks within `after` seconds; with more checks, it warns closer to this time."""
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_CORE = Path(calls.__file__).parent


class Watched(NamedTuple):
    """The call that a thread runs.

    Attributes:
        thread: the identity of the thread.
        call: the call of a handler that runs; `None` if none does.
    """

    thread: int
    call: RunningCall | None


class _Seen:
    """A call of a handler that the last check has found.

    Args:
        call: the call.
        since: when a check first found it, in monotonic seconds.
    """

    def __init__(self, call: RunningCall, since: float) -> None:
        self.call = call
        self.since = since
        self.warnings = 0


class Watchdog(Actor):
    """Logs W5501 when a handler has run for `after` seconds, and again whenever this time has doubled.

    Args:
        watched: returns the calls that the threads of contexts run now.
        after: seconds before the first warning; 0 for no warnings.
        clock: monotonic seconds.
    """

    def __init__(self, watched: Callable[[], Iterable[Watched]], after: float, clock: Clock) -> None:
        super().__init__("watchdog")
        self._watched = watched
        self._after = after
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        """The calls by the identity of the object that stands for each call."""
        self._log = get_logger(part="watchdog")

    def step(self) -> float | None:
        """Check all calls once."""
        if not self._after:
            return None
        now = self._clock.monotonic()
        seen: dict[int, _Seen] = {}
        for thread, call in self._watched():
            if call is not None:
                one = seen[id(call)] = self._seen.get(id(call)) or _Seen(call, now)
                self._warn(one, thread, now)
        self._seen = seen
        return self._after / LOOKS

    def _warn(self, seen: _Seen, thread: int, now: float) -> None:
        if now - seen.since < self._after * 2**seen.warnings:
            return
        seen.warnings += 1
        handler, at = _place_of(thread)
        (monitor,) = seen.call
        self._log.warning(
            f"W5501 handler of monitor {monitor.state_name} has run {now - seen.since:.0f} s", handler=handler, at=at
        )


def _place_of(thread: int) -> tuple[str, str]:
    """Return the function that the engine has called in a thread, and the file and line that the thread executes.

    Both are empty if the stack does not show them, for example because the thread has ended or the stack is very deep.
    """
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = file.read()
    _, _, stack = stacks.partition(f"hread 0x{thread:016x} ")
    frames = list(_FRAME.finditer(stack.partition("\n\n")[0]))  # the latest call first
    called = [at for at, frame in enumerate(frames) if frame["file"] == calls.__file__]
    inner = reversed(frames[: called[-1]] if called else [])
    handler = next((frame["function"] for frame in inner if Path(frame["file"]).parent != _CORE), "")
    return handler, f"{frames[0]['file']}:{frames[0]['line']}" if handler else ""
