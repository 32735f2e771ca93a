"""The progress bar of `run` on a terminal. Elsewhere the engine's status line in the log shows the progress."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from correlator.runtime.status import Status


class Watcher(Protocol):
    """Shows the progress of a run; entered before the first `tick` and left after the last one."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tick(self, status: Status) -> None:
        """Show the current status; called several times a second."""
        ...


class Counts:
    """The figures that the progress bar shows."""

    def __init__(self, status: Status) -> None:
        totals = status.totals()
        delivered = sum(counters.delivered for _, counters in status.receivers.values())
        self.received: int = totals["received"]
        self.processed = max(0, delivered - sum(status.contexts.values()))
        self.sent: int = totals["sent"]


class Bar:
    """A progress bar on a terminal. Log lines appear above it."""

    def __init__(self) -> None:
        figures = "received {task.fields[received]:,}  processed {task.fields[processed]:,}  sent {task.fields[sent]:,}"
        columns = (BarColumn(20), TextColumn(figures), TextColumn("{task.fields[rate]:,.0f}/s"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=None, received=0, processed=0, sent=0, rate=0.0)
        self._rate = Rate()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tick(self, status: Status) -> None:
        """Draw the counts of `status` and the rate of received messages. Called by the thread that waits for the
        engine.
        """
        now = Counts(status)
        rate = self._rate.of(now.received)
        self._progress.update(self._task, received=now.received, processed=now.processed, sent=now.sent, rate=rate)


class Nothing:
    """Shows nothing, for a file, a pipe or a service manager: the log has the engine's status line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tick(self, status: Status) -> None:
        """Ignore the status: there is no bar to draw. Has the signature of `Bar.tick`."""


class Rate:
    """Computes how fast a counter grows, over intervals of at least one second."""

    def __init__(self) -> None:
        self._since, self._before, self._rate = time.monotonic(), 0, 0.0

    def of(self, count: int) -> float:
        """Return the growth per second, given the current count."""
        passed = time.monotonic() - self._since
        if passed >= 1.0:
            self._rate = (count - self._before) / passed
            self._since, self._before = time.monotonic(), count
        return self._rate


def watcher(*, log_json: bool) -> Watcher:
    """Return a progress bar if standard error is a terminal and the log is text; else a watcher without output."""
    return Bar() if sys.stderr.isatty() and not log_json else Nothing()
