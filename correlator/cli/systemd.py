"""Reports the state of the command to systemd by the protocol of `sd_notify`, for `Type=notify` and `WatchdogSec=` of a
unit.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence

from correlator.runtime.logs import get_logger
from correlator.runtime.writer import Writer

PATIENCE_S = 1.0
"""Seconds after which the command gives up a message that systemd does not take."""
INTERVAL_S = 5.0
"""Seconds between two messages, unless the watchdog needs a shorter interval."""
BEATS = 3
"""How many times within the time of the watchdog the command checks whether the engine works."""


def notify(*lines: str) -> None:
    """Send states to systemd, such as `READY=1`; has no effect in a process for which systemd does not wait."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(PATIENCE_S)
            sender.connect(f"\0{path[1:]}" if path[0] == "@" else path)
            sender.sendall("\n".join(lines).encode())
    except OSError as error:
        get_logger().warning("systemd cannot be told", states=" ".join(lines), error=error)


class Heart:
    """Sends a sign of life as long as the store writers answer. One thread calls `beat` again and again.

    A writer answers if its thread has come back to its loop since the last sign, after a wake-up. A writer that hangs
    in a disk operation does not answer, nor does a writer whose transaction takes longer than the time of the watchdog.

    Args:
        writers: returns the writers of all engines of this process.
        state: returns what `systemctl status` shows.
    """

    def __init__(self, writers: Callable[[], Sequence[Writer]], state: Callable[[], str]) -> None:
        self._writers = writers
        self._state = state
        self._listened = "NOTIFY_SOCKET" in os.environ
        self._interval_s = min(INTERVAL_S, _watchdog_s() / BEATS)
        self._due = 0.0
        self._steps: dict[Writer, int] = {}

    def beat(self) -> None:
        """Send the state, and the sign of life if the writers answer; at most once in an interval."""
        now = time.monotonic()
        if not self._listened or now < self._due:
            return
        self._due = now + self._interval_s
        steps = {writer: writer.steps for writer in self._writers()}
        answered = all(self._steps.get(writer) != count for writer, count in steps.items())
        self._steps = steps
        for writer in steps:
            writer.wake()
        notify(*(["WATCHDOG=1"] if answered else []), f"STATUS={self._state()}")


def _watchdog_s() -> float:
    """The time of the watchdog; infinite if there is no watchdog, or if it watches another process."""
    wanted, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not wanted.isascii() or not wanted.isdigit() or process != str(os.getpid()):
        return float("inf")
    return int(wanted) / 1_000_000
