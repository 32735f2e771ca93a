"""How long messages take from the handler that sends them to the confirm of the broker.

No message has a time of its own. Whoever works in a context notes the time and the numbers of sends that are staged so
far, at most once in `GAP_S`. Each cut makes runs of these notes: sends with consecutive numbers and one time. When the
broker confirms a batch, the sender counts it by its runs. So the cost depends on the number of steps, cuts and batches.
"""

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from correlator.core.commit import OutboundSegment
from correlator.errors import SendRejected
from correlator.events import Message, Outgoing
from correlator.runtime.status import DURATIONS_S, LatencyCounters

GAP_S = 0.01
"""Seconds between two notes of a context."""
MOST_NOTES = 256
"""The largest number of notes of a context between two cuts; if more are due, each second one is dropped."""
SHARE = 0.001
"""Two runs are this share of the age of the first run apart, so that a long outage leaves few of them."""

Runs = Sequence[tuple[int, float]]
"""Numbers of sends that follow each other, each with the time since which they are staged."""

_LIMITS = tuple(DURATIONS_S.values())


class StagingTimes:
    """When a context has staged its sends since the last cut. Owner: whoever holds the lock of the context.

    A time may be too early, by at most `GAP_S` and the duration of a step; it is never too late.
    """

    def __init__(self) -> None:
        self._gap = GAP_S
        self._due = 0.0
        self._notes: list[tuple[float, dict[str, int]]] = []

    def note(self, now: float, sends: Mapping[str, Sequence[Message]]) -> None:
        """Note what was staged before a step that begins now.

        Args:
            now: engine time.
            sends: the staged sends by sender.
        """
        if now < self._due:
            return
        self._notes.append((now, {sender: len(staged) for sender, staged in sends.items()}))
        if len(self._notes) > MOST_NOTES:
            del self._notes[1::2]
            self._gap *= 2
        self._due = now + self._gap

    def take(self, now: float, sends: Mapping[str, Sequence[Message]]) -> Mapping[str, Runs]:
        """Return the runs of all staged sends by sender, and begin anew; called just before a cut takes the sends.

        Args:
            now: engine time.
            sends: the staged sends by sender.
        """
        runs = {sender: list(self._runs(now, sender, len(staged))) for sender, staged in sends.items()}
        self._gap, self._due, self._notes = GAP_S, 0.0, []
        return runs

    def _runs(self, now: float, sender: str, count: int) -> Iterator[tuple[int, float]]:
        begin, since = 0, now
        for time, counts in self._notes:
            if (before := counts.get(sender, 0)) > begin:
                yield before - begin, since
                begin = before
            since = time
        if count > begin:
            yield count - begin, since


def numbered(
    taken: Sequence[Mapping[str, Runs]], outbound: Sequence[OutboundSegment]
) -> Iterator[tuple[str, int, Runs]]:
    """Yield, for each sender to which a cut has sends, the number of the first send and all runs.

    Args:
        taken: the runs of all contexts, in the order in which the cut has numbered their sends.
        outbound: the sends of the cut.
    """
    first: dict[str, int] = {}
    for segment in outbound:
        first.setdefault(segment.sender, segment.first)
    for sender, number in first.items():
        yield sender, number, [run for runs in taken for run in runs.get(sender, ())]


class Latency:
    """Counts how long the messages of one sender took. The checkpointer calls `add`, the sender `confirmed`, and any
    thread `counters`.

    It does not count the messages that the start found in the store, since nobody knows when these were staged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[tuple[int, int, float]] = deque()
        """Number of the first and of the last send, and the time since which they are staged."""
        self._refused: dict[int, float] = {}
        self._counts = [0] * (len(_LIMITS) + 1)
        self._total_s = 0.0

    def add(self, first: int, runs: Runs) -> None:
        """Note the times of sends before they may leave.

        Args:
            first: number of the first send.
            runs: all sends from this one on.
        """
        with self._lock:
            for count, since in runs:
                last = first + count - 1
                newest = self._runs[-1] if self._runs else None
                if newest and newest[1] == first - 1 and since - newest[2] <= SHARE * (since - self._runs[0][2]):
                    self._runs[-1] = (newest[0], last, newest[2])
                else:
                    self._runs.append((first, last, since))
                first = last + 1

    def confirmed(
        self, sends: Sequence[Outgoing], results: Sequence[SendRejected | None], again: bool, now: float
    ) -> None:
        """Count the confirmed sends of a batch.

        Args:
            sends: the sends, in the order of their numbers.
            results: one result for each; `None` for a confirmed send.
            again: whether the broker has refused these sends before.
            now: engine time.
        """
        refused = [send.sequence for send, result in zip(sends, results, strict=True) if result] if any(results) else []
        with self._lock:
            if again:
                self._settle_refused(sends, refused, now)
            else:
                self._settle(sends[-1].sequence, refused, now)

    def _settle(self, through: int, refused: Sequence[int], now: float) -> None:
        while self._runs and self._runs[0][0] <= through:
            first, last, since = self._runs[0]
            end = min(last, through)
            again = [number for number in refused if first <= number <= end] if refused else []
            for number in again:
                self._refused[number] = since
            self._count(now - since, end - first + 1 - len(again))
            if last > through:
                self._runs[0] = (through + 1, last, since)
            else:
                self._runs.popleft()

    def _settle_refused(self, sends: Sequence[Outgoing], refused: Sequence[int], now: float) -> None:
        left = set(refused)
        for send in sends:
            if send.sequence not in left and (since := self._refused.pop(send.sequence, None)) is not None:
                self._count(now - since, 1)

    def _count(self, took_s: float, messages: int) -> None:
        self._counts[bisect_left(_LIMITS, took_s)] += messages
        self._total_s += took_s * messages

    def forget(self, sends: Sequence[Outgoing]) -> None:
        """Forget sends that are given up."""
        with self._lock:
            for send in sends:
                self._refused.pop(send.sequence, None)

    def counters(self) -> LatencyCounters:
        """How many messages took at most how long, at this moment."""
        with self._lock:
            sums, total_s = list(accumulate(self._counts)), self._total_s
        return LatencyCounters(sums[-1], total_s, dict(zip(DURATIONS_S, sums, strict=False)))
