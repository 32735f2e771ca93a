"""The receive log as a start reads it: which messages the queue of a context holds, and which follow it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from correlator.core.commit import QueueRun, ReceiveSegment
from correlator.core.delivery import missing
from correlator.core.queue import Run
from correlator.events import Message


class ReceiveLog:
    """The receive log as read at a start: finds messages by receiver and number.

    Args:
        segments: in the order of their numbers for each receiver.
    """

    def __init__(self, segments: Sequence[ReceiveSegment]) -> None:
        self._segments: dict[str, list[ReceiveSegment]] = {}
        for segment in segments:
            self._segments.setdefault(segment.receiver, []).append(segment)

    def last_number(self, receiver: str) -> int:
        """The highest number, 0 for an empty log."""
        segments = self._segments.get(receiver)
        return segments[-1].first + len(segments[-1].messages) - 1 if segments else 0

    def between(self, receiver: str, first: int, count: int) -> list[Message]:
        """Messages `first` to `first + count - 1`."""
        found: list[Message] = []
        for segment in self._segments.get(receiver, ()):
            begin = max(first, segment.first) - segment.first
            end = min(first + count, segment.first + len(segment.messages)) - segment.first
            found.extend(segment.messages[begin:end] if begin < end else ())
        return found

    def beyond(self, context: str, receiver: str, entered: int) -> Iterator[tuple[int, list[Message]]]:
        """The messages that had not entered a context's queue: (first number, messages) in order.

        Raises `RecoveryRefused` E4204 when the receive log lacks some of it.
        """
        for segment in self._segments.get(receiver, ()):
            skip = max(0, entered + 1 - segment.first)
            if skip < len(segment.messages):
                if segment.first + skip != entered + 1:
                    last = self.last_number(receiver)
                    raise missing(context, receiver, last - entered, len(self.between(receiver, entered + 1, last)))
                entered = segment.first + len(segment.messages) - 1
                yield segment.first + skip, segment.messages[skip:]


def restored_runs(
    context: str,
    queue: Sequence[QueueRun],
    log: ReceiveLog,
    events_of: Mapping[str, Any],
    decode: Any,
) -> list[Run]:
    """The runs of a context's queue as the checkpoint recorded them.

    Args:
        context: its name.
        queue: what the checkpoint recorded.
        log: the receive log.
        events_of: for each receiver a function from the number of the first message and the messages to their events.
        decode: makes the event of one recorded by value.

    Raises `RecoveryRefused` E4204 when the receive log lacks some of it.
    """
    runs: list[Run] = []
    for recorded in queue:
        if recorded.receiver:
            receiver, first = recorded.receiver, recorded.first
            messages = log.between(receiver, first, recorded.count)
            if len(messages) != recorded.count:
                raise missing(context, receiver, recorded.count, len(messages))
            runs.append(Run(receiver, first, messages, events_of[receiver](first, messages), stored=True))
        else:
            runs.extend(Run("", 0, (), (decode(one),), stored=True) for one in recorded.events)
    return runs
