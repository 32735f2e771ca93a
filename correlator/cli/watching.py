"""What a run shows on a terminal while it goes on: a bar. Elsewhere the engine's own status line tells."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from correlator.runtime.status import Status


class Watcher(Protocol):
    """Shows how a run goes; entered before the first and left after the last `tick`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tick(self, status: Status) -> None:
        """Called several times a second."""
        ...


class Counts:
    """The figures of a status that a person looks at."""

    def __init__(self, status: Status) -> None:
        totals = status.totals()
        delivered = sum(counters.delivered for _, counters in status.receivers.values())
        self.received: int = totals["received"]
        self.processed = max(0, delivered - sum(status.contexts.values()))
        self.sent: int = totals["sent"]


class Bar:
    """For a terminal. Lines that are logged meanwhile appear above it."""

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
        """Draw the figures of now."""
        now = Counts(status)
        rate = self._rate.of(now.received)
        self._progress.update(self._task, received=now.received, processed=now.processed, sent=now.sent, rate=rate)


class Nothing:
    """For a file, a pipe or a service manager: the log has the engine's status line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tick(self, status: Status) -> None:
        """Show nothing."""


class Rate:
    """Growth per second of a counter between looks at it, of about the last second or longer."""

    def __init__(self) -> None:
        self._since, self._before, self._rate = time.monotonic(), 0, 0.0

    def of(self, count: int) -> float:
        """The rate as of now."""
        passed = time.monotonic() - self._since
        if passed >= 1.0:
            self._rate = (count - self._before) / passed
            self._since, self._before = time.monotonic(), count
        return self._rate


def watcher(*, log_json: bool) -> Watcher:
    """What fits where standard error goes."""
    return Bar() if sys.stderr.isatty() and not log_json else Nothing()
