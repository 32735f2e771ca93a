"""The figures of `run` on the progress line of a terminal. Elsewhere the engine's status line in the log shows them."""

import time
from typing import Protocol

from correlator.cli.progress import ProgressLine, present
from correlator.runtime.status import PIPELINE_TIMES, PipelineCounters, Status


class Watcher(Protocol):
    """Shows the progress of a run."""

    def tick(self, status: Status) -> None:
        """Show the current status; called several times a second."""
        ...


class Counts:
    """The figures that the progress line shows."""

    def __init__(self, status: Status) -> None:
        totals = status.totals()
        delivered = sum(counters.delivered for _, counters in status.receivers.values())
        self.received: int = totals["received"]
        self.processed = max(0, delivered - sum(status.contexts.values()))
        self.sent: int = totals["sent"]
        self.waiting = waiting_text(status)
        self.pipelines = [pipeline_text(name, did, status) for name, did in status.pipelines.items()]

    def text(self, rate: float) -> str:
        """The figures on one line."""
        counts = f"received {self.received:,}  processed {self.processed:,}  sent {self.sent:,}  {rate:,.0f}/s"
        return "  ".join((counts, *self.waiting, *self.pipelines))


def waiting_text(status: Status) -> list[str]:
    """The messages that the sources still hold, as far as they know."""
    backlog = status.backlog()
    messages = [] if backlog.messages is None else [f"backlog {backlog.messages:,}"]
    return messages if backlog.size is None else [*messages, f"backlog {backlog.size / 1e6:,.1f} MB"]


def pipeline_text(name: str, did: PipelineCounters, status: Status) -> str:
    """The batches of a pipeline, and the seconds that its thread has spent on each part of them."""
    if not did.batches:
        return f"{name}: {'first batch' if status.contexts.get(name) else 'no batch yet'}"
    return f"{name}: batch {did.batches:,}, {split_text(did, status)}"


def split_text(did: PipelineCounters, status: Status) -> str:
    """How the time was spent: on the parts of the batches, and on the commits of all checkpoints, in seconds."""
    split = {item.removesuffix("_s"): getattr(did, item) for item in PIPELINE_TIMES}
    split["commit"] = status.checkpoints.total_duration_s
    return " ".join(f"{part} {seconds:.1f}s" for part, seconds in split.items())


class Bar:
    """Shows the figures on the progress line.

    Args:
        line: the progress line of the process.
    """

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._rate = Rate()

    def tick(self, status: Status) -> None:
        """Show the counts of `status` and the rate of received messages. Called by the thread that waits for the
        engine.
        """
        now = Counts(status)
        self._line.show(now.text(self._rate.of(now.received)))


class Nothing:
    """Shows nothing, for a file, a pipe or a service manager: the log has the engine's status line."""

    def tick(self, status: Status) -> None:
        """Ignore the status, since there is no line to draw."""


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


def watcher() -> Watcher:
    """Return the object that shows the progress: a `Bar` if the process has a progress line, `Nothing` otherwise."""
    line = present()
    return Nothing() if line is None else Bar(line)
